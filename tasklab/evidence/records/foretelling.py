"""Read recorded correlations of metrics with the cost of merging, over tasks or pairs."""

from __future__ import annotations

import functools
import io
from pathlib import Path

import pandas as pd

from tasklab.errors import TasklabError, choose
from tasklab.storage import shipped

FORETOLD = Path(__file__).with_name("foretold.csv")
GROUP = ["model", "init", "method", "seed"]  # whose tasks and pairs are compared


def foretold(outcome: str, *, each: bool = False) -> pd.DataFrame:
    """Return recorded rank correlations of metrics with the cost of merging (`foretold.csv`).

    `benchmarks/foretelling.py` computed the file from the cross-examination (`merging`, parts
    `matrix` and `pairs`) and describes its tests and intervals.

    Args:
        outcome: `lost` in a pair, `lost_sum` of a task in the sum of all, or `xi_pair`.
        each: Whether rows are of one model and one method of fine-tuning; else of all of them.

    Returns:
        Columns outcome, model, method, metric, value, low and high (rank correlation with the
        outcome, 95 %), p_holm (of a permutation test of tasks, corrected for the number of
        metrics), groups (a method of an encoder at a seed), and error and mean_error: of
        predictions for tasks that a rule has not seen, by the metric and by the mean of the others.
    """
    table = _foretold()
    choose("outcome", outcome, table["outcome"].unique())
    return table[table["outcome"].eq(outcome) & table["model"].ne("").eq(each)]


@functools.cache
def _foretold() -> pd.DataFrame:
    table = pd.read_csv(io.BytesIO(shipped.content(FORETOLD)))
    return table.fillna({"model": "", "method": ""})


def units(df: pd.DataFrame, n_tasks: int) -> pd.DataFrame:
    """Return all metrics of tasks, or of pairs, side by side.

    A metric of tasks counts for a pair by its mean over both; a metric of pairs counts for a task
    by its mean over all pairs with it.

    Returns:
        One row per unit and group: model, init, method, seed, task, one, other (the same as one for
        a task), and one column per metric.
    """
    df = df[(df["experiment"] == "crossing") & (df["method"] != "pretrained")]
    if df.empty:
        raise TasklabError("there are no records of the experiment 'crossing'.")
    ends = df["task"].str.partition("+")
    df = df.assign(one=ends[0], other=ends[2].where(ends[2] != "", ends[0]))
    index = [*GROUP, "one", "other"]
    own = df[df["n_tasks"] == n_tasks].pivot_table(index=index, columns="metric", values="value")
    rest = df[df["n_tasks"] == 3 - n_tasks]
    if n_tasks == 2:
        alone = rest.pivot_table(index=[*GROUP, "one"], columns="metric", values="value")
        sides = [
            alone.reindex(own.index.droplevel(away)).set_axis(own.index)
            for away in ("other", "one")
        ]
        more = (sides[0] + sides[1]) / 2
    else:
        twice = [rest.assign(task=rest[end]) for end in ("one", "other")]
        means = pd.concat(twice).pivot_table(
            index=[*GROUP, "task"], columns="metric", values="value"
        )
        more = means.reindex(own.index.droplevel("other")).set_axis(own.index)
    table = own.join(more.drop(columns=[name for name in more if name in own])).reset_index()
    names = table["one"].where(table["one"] == table["other"], table["one"] + "+" + table["other"])
    return table.assign(task=names).rename_axis(None, axis=1)
