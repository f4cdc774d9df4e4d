"""Comparisons where both sides are equally accurate, or their vectors equally long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from tasklab.book.words import say
from tasklab.figures.merging import ranged
from tasklab.figures.rows import methods_in
from tasklab.figures.style import METHOD_LABEL
from tasklab.figures.tables import table
from tasklab.records.intervals import of_mean
from tasklab.records.judgement import Verdict
from tasklab.records.matched import gaps_at_equal_accuracy


def made_equal(verdicts: Iterable[Verdict]) -> Any:
    """Return one line: how many decided comparisons have the same outcome at equal accuracy, norm.

    Args:
        verdicts: On claims in all settings.
    """
    outcomes = {v.claim.id: v.outcome for v in verdicts if v.outcome != "not tested"}
    ends = ("@accuracy", "@length")
    names = dict.fromkeys(name.partition("@")[0] for name in outcomes if name.endswith(ends))
    decided = [name for name in names if outcomes.get(name, "undecided") != "undecided"]
    if not decided:
        return say("None of these comparisons is decided at the chosen rates.")
    same = {
        setting: sum(outcomes.get(f"{name}@{setting}") == outcomes[name] for name in decided)
        for setting in ("accuracy", "length")
    }
    return say(
        f"Of {len(decided)} comparisons that are decided at the chosen rates, {same['accuracy']} "
        f"have the same outcome at equal accuracy and {same['length']} at equal norm."
    )


def merges_made_equal(df: pd.DataFrame) -> Any:
    """Return the median gain over merges of non-linear vectors at equal single-task accuracy.

    Args:
        df: Records of the experiment `merging_rates` of one model.
    """
    gaps = gaps_at_equal_accuracy(df)
    if gaps.empty:
        return say("The rates of these methods share no accuracy at which to compare them.")
    gaps, rows = gaps[gaps["n_tasks"] == gaps["n_tasks"].max()], []
    for method in methods_in(gaps):
        medians = gaps[gaps["method"] == method].groupby("seed")["gap"].median()
        gain = ranged(*of_mean(medians))
        rows.append([METHOD_LABEL[method], gain, len(medians)])
    head = f"median gain of {gaps['n_tasks'].max()} tasks at {gaps['alone'].mean():.1f} % (points)"
    return table(pd.DataFrame(rows, columns=["fine-tuning", head, "seeds"]))
