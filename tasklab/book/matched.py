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
from tasklab.records.statements import effect_of, how_many, verdict_rows

_EQUAL = {"equal accuracy": "equally accurate alone", "equal length": "equally long"}


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
    ends = f"{_on_these_tasks(told, names)}{_ends(chosen, told, df, model)}"
    if not decided:
        return say(f"Nothing of this is decided at the chosen rates. {ends}")
    holding = sum(one.outcome == "holds" for one in decided)
    equal = [
        f"where both sides are {words}, {_counts(decided, told, setting.split()[-1])}"
        for setting, words in _EQUAL.items()
    ]
    seeds = max((one.n_seeds for name, one in told.items() if "@" in name), default=0)
    claimed = {0: "none", len(decided): "all"}.get(holding, word(holding))
    many = "all" if len(decided) == len(chosen) > 1 else word(len(decided))
    return say(
        f"Decided at the chosen rates are {many} of the "
        f"{counted(len(chosen), len(chosen), 'comparison')}, {claimed} of them as claimed. "
        f"Of these, {'; '.join(equal)}. What stays as it was is more than having learnt, or moved, "
        f"less; of what becomes undecided {counted(seeds, seeds, 'seed')} cannot tell. {ends}"
    )


def merges_made_equal(df: pd.DataFrame) -> Any:
    """Return how far merges of ways of fine-tuning are apart where these are equally accurate.

    Args:
        df: Records of the experiment `merging_rates` of one model.
    """
    gaps = gaps_at_equal_accuracy(df)
    if gaps.empty:
        return say("No way's rates reach down to where another one ends: nothing can be compared.")
    told = []
    for method in methods_in(gaps):
        parts = []
        for n_tasks, part in gaps[gaps["method"] == method].groupby("n_tasks"):
            medians = part.groupby("seed")["gap"].median()
            alone = " (one seed)" if len(medians) < 2 else ""
            parts.append(f"{ranged(*of_mean(medians))}{alone} of {word(int(n_tasks))} tasks")
        told.append(f"{METHOD_LABEL[method]} {', '.join(parts)}")
    few = gaps.groupby(["method", "n_tasks"])["seed"].nunique().min() < 2
    note = " With one seed there is no interval, and nothing is decided." if few else ""
    return say(
        f"Where all are {gaps['alone'].mean():.1f} % accurate alone, merges are above those of "
        "non-linear vectors by, in points and as the median over ways of merging: "
        f"{'; '.join(told)}.{note}"
    )


def _counts(decided: list[Verdict], told: Mapping[str, Verdict], setting: str) -> str:
    """Return how many comparisons come out as before where both sides are made equal."""
    kinds = []
    for one in decided:
        there = told.get(f"{one.claim.id}@{setting}")
        kinds.append(
            "not compared" if there is None
            else "undecided" if there.outcome == "undecided"
            else "as before" if there.outcome == one.outcome
            else "the other way round"
        )  # fmt: skip
    counts = pd.Series(kinds).value_counts(sort=False)
    return ", ".join(f"{word(n)} {'is' if n == 1 else 'are'} {kind}" for kind, n in counts.items())


def _on_these_tasks(told: Mapping[str, Verdict], names: Iterable[str]) -> str:
    """Return what is decided with the tasks held fixed; nothing where no others are meant."""
    parts, general = [], False
    for setting, words in {"": "at the chosen rates", **_EQUAL}.items():
        ending = f"@{setting.split()[-1]}" if setting else ""
        found = [told[name + ending] for name in names if name + ending in told]
        general |= any(one.on_these_tasks for one in found)
        outcomes = [(one.on_these_tasks or one).outcome for one in found]
        where = f"where both are {words}" if setting else words
        parts += [f"{where} {how_many(outcomes, word)}"] if found else []
    return f"On these tasks alone, {'; '.join(parts)}. " if general else ""


def _ends(chosen: list[Verdict], told: Mapping[str, Verdict], df: pd.DataFrame, model: str) -> str:
    """Return how far verdicts at equal length hang on where the ways of both methods end."""
    usual = [told[name] for one in chosen if (name := one.claim.id + "@length") in told]
    further = [
        verdict(dataclasses.replace(one.claim, setting=FURTHER), df, model=model) for one in usual
    ]
    if not further:
        return ""
    changed = []
    for pair in zip(usual, further, strict=True):
        if pair[0].outcome != pair[1].outcome:
            before, after = verdict_rows(pair, cells=False).to_dict("records")
            sides = [METHOD_LABEL[side] for side in (pair[0].claim.left, pair[0].claim.right)]
            changed.append(
                f"{before['short']} ({pair[0].claim.metric.partition('_')[0]}, {sides[0]} against "
                f"{sides[1]}): {before['outcome']}, {effect_of(before)}, becomes "
                f"{after['outcome']}, {effect_of(after)}"
            )
    most = max(abs(b.interval.effect - a.interval.effect)
               for a, b in zip(usual, further, strict=True))  # fmt: skip
    return (
        "Each side ends at the rate that was chosen for it in the recorded search. If it may go on "
        f"to the last rate of its grid instead, effects at equal length move by up to {most:.1f} "
        + (f"points: {'; '.join(changed)}." if changed else "points, and no outcome changes.")
    )
