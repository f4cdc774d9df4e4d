"""What comparisons at equal accuracy and at equal length answer, in sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from tasklab.book.words import counted, say, word
from tasklab.figures.merging import ranged
from tasklab.figures.rows import methods_in
from tasklab.figures.style import METHOD_LABEL
from tasklab.records.intervals import of_mean
from tasklab.records.judgement import Verdict, verdict
from tasklab.records.matched import FURTHER, gaps_at_equal_accuracy
from tasklab.records.statements import verdict_rows


def made_equal(verdicts: Iterable[Verdict], df: pd.DataFrame, model: str) -> Any:
    """Return whether what is decided at the chosen rates is more than having learnt or moved less.

    Args:
        verdicts: On claims in all settings.
        df: The records that they were judged by.
        model: Whose.
    """
    told = {v.claim.id: v for v in verdicts if v.outcome != "not tested"}
    names = dict.fromkeys(name.partition("@")[0] for name in told if "@" in name)
    chosen = [told[name] for name in names if name in told]
    decided = [one for one in chosen if one.outcome != "undecided"]
    if not decided:
        return say(
            f"Nothing of this is decided at the chosen rates. {_ends(chosen, told, df, model)}"
        )
    several = "all" if len(decided) == len(chosen) > 1 else word(len(decided))
    many = counted(len(chosen), len(chosen), "comparison")
    holding = sum(one.outcome == "holds" for one in decided)
    claimed = {0: "none", len(decided): "all"}.get(holding, word(holding))
    equal = [
        f"at {setting} {_counts(decided, told, setting.split()[-1])}"
        for setting in ("equal accuracy", "equal length")
    ]
    return say(
        f"At the chosen rates {several} of the {many} are decided, {claimed} as "
        f"claimed. Of these, {'; '.join(equal)}. What is unchanged is more than an effect of "
        "learning, or moving, less. "
        f"{_ends(chosen, told, df, model)}"
    )


def merges_made_equal(df: pd.DataFrame) -> Any:
    """Return how far merges of ways of fine-tuning are apart where these are equally accurate.

    Args:
        df: Records of the experiment `merging_rates` of one model.
    """
    gaps = gaps_at_equal_accuracy(df)
    if gaps.empty:
        return say("No way's rates reach down to where another one ends: nothing can be compared.")
    gaps = gaps[gaps["n_tasks"] == gaps["n_tasks"].max()]
    told = []
    for method in methods_in(gaps):
        medians = gaps[gaps["method"] == method].groupby("seed")["gap"].median()
        alone = " (one seed)" if len(medians) < 2 else ""
        told.append(f"{METHOD_LABEL[method]} {ranged(*of_mean(medians))}{alone}")
    few = gaps.groupby("method")["seed"].nunique().min() < 2
    note = " With one seed there is no interval, and nothing is decided." if few else ""
    return say(
        f"Over ways of merging all {word(int(gaps['n_tasks'].max()))} tasks, at equal accuracy "
        f"alone ({gaps['alone'].mean():.1f} %), the median gain over non-linear vectors is, in "
        f"points: {'; '.join(told)}.{note}"
    )


def _counts(decided: list[Verdict], told: Mapping[str, Verdict], setting: str) -> str:
    """Return how many comparisons come out as before where both sides are made equal."""
    kinds = []
    for one in decided:
        there = told.get(f"{one.claim.id}@{setting}")
        kinds.append(
            "not compared" if there is None
            else "undecided" if there.outcome == "undecided"
            else "unchanged" if there.outcome == one.outcome
            else "the other way round"
        )  # fmt: skip
    counts = pd.Series(kinds).value_counts(sort=False)
    return ", ".join(f"{word(n)} {'is' if n == 1 else 'are'} {kind}" for kind, n in counts.items())


def _ends(chosen: list[Verdict], told: Mapping[str, Verdict], df: pd.DataFrame, model: str) -> str:
    """Return how far verdicts at equal length hang on where the ways of both methods end."""
    usual = [told[name] for one in chosen if (name := one.claim.id + "@length") in told]
    further = [
        verdict(dataclasses.replace(one.claim, setting=FURTHER), df, model=model) for one in usual
    ]
    if not further:
        return ""
    changed = []
    for before, after in zip(usual, further, strict=True):
        if before.outcome != after.outcome:
            short = verdict_rows([after], cells=False)["short"].iloc[0]
            metric = after.claim.metric.partition("_")[0]
            changed.append(f"{short} ({metric}): {before.outcome} becomes {after.outcome}")
    end = (
        f"these outcomes at equal length change: {'; '.join(changed)}"
        if changed
        else "no outcome at equal length changes"
    )
    return f"If each side may go on to the last rate of its grid instead of the chosen one, {end}."
