"""Results of this page beside recorded ones, and one line on whether they agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasklab.book.words import counted, say
from tasklab.figures.merging import MERGE_LABEL, merges_in
from tasklab.figures.rows import methods_in
from tasklab.figures.schemes import scheme
from tasklab.figures.style import INIT_LABEL, METHOD_LABEL
from tasklab.records import images
from tasklab.records.table import summarise

_HEADS = {"model": "encoder", "n_tasks": "tasks", "lr": "learning rate"}
_LABELS: dict[str, Callable[[Any], str]] = {
    "method": METHOD_LABEL.__getitem__,
    "merge": MERGE_LABEL.__getitem__,
    "model": scheme,
    "init": INIT_LABEL.__getitem__,
    "n_tasks": lambda n: counted(n, n, "task"),
    "lr": "rate {:g}".format,
}


def beside_recorded(
    live: pd.DataFrame,
    recorded: pd.DataFrame,
    experiment: str | Sequence[str],
    metric: str,
    *,
    n_tasks: int | None = None,
    split: str = "test",
    by: str = "method",
    labels: Mapping[Any, str] | None = None,
    what: str = "",
) -> pd.DataFrame:
    """Compare results of this page with recorded ones of the same models and tasks.

    Args:
        live: Records of one model; of several where `by` is not `method`.
        recorded: Recorded results, of any models.
        experiment: One or several experiments.
        metric: One of their metrics.
        n_tasks: Number of added tasks, for addition.
        split: Of the images.
        by: Column that identifies a row: `method`, `merge`, `model`, `n_tasks`, `lr`, `task`, ...
        labels: Names of the rows, by the column's values; by default the book's.
        what: Heading of the first column.

    Returns:
        Columns method (or encoder, ...), live, recorded, ± images (half of the 95 % interval for
        the live images of the first seed), seeds, std over seeds, how many (recorded seeds).
    """
    experiments = [experiment] if isinstance(experiment, str) else experiment

    def chosen(table: pd.DataFrame) -> pd.DataFrame:
        rows = table[table["experiment"].isin(experiments) & (table["metric"] == metric)]
        rows = rows[rows["split"] == split]
        return rows if n_tasks is None else rows[(rows["n_tasks"] == n_tasks).fillna(False)]

    live, recorded = chosen(live), chosen(recorded)
    for name in ("model", "init", "task", *(("method", "subset") if by != "method" else ())):
        recorded = recorded[recorded[name].isin(live[name])]
    if by not in recorded:  # nothing is recorded yet
        recorded = recorded.assign(**{by: ""})
    if by == "method":
        keys = methods_in(live, baseline=True)
    else:
        keys = merges_in(live) if by == "merge" else [*live[by].dropna().unique()]
    named = {key: (labels or {}).get(key) or _LABELS.get(by, str)(key) for key in keys}
    halves = {key: _half(live[live[by] == key]) for key in keys}
    return _side_by_side(live, recorded, by, what or _HEADS.get(by, by), named, halves)


def beside_each_seed(
    live: pd.DataFrame,
    recorded: pd.DataFrame,
    measure: Callable[[pd.DataFrame], pd.Series],
    by: str,
) -> pd.DataFrame:
    """Compare what is computed from all records of a seed, e.g. rank correlations.

    Args:
        live: Records.
        recorded: Recorded results of the same model and tasks.
        measure: Records of one seed -> numbers by name.
        by: Heading of these names.

    Returns:
        As `beside_recorded`.
    """

    def measured(table: pd.DataFrame) -> pd.DataFrame:
        found = [
            pd.DataFrame({by: names.index, "value": names.to_numpy(float), "seed": seed})
            for seed, rows in table.groupby("seed")
            for names in [measure(rows)]
        ]
        return pd.concat(found) if found else pd.DataFrame(columns=[by, "value", "seed"])

    here, there = map(measured, (live, recorded))
    return _side_by_side(here, there, by, by, {name: name for name in here[by].unique()}, {})


def _side_by_side(
    live: pd.DataFrame,
    recorded: pd.DataFrame,
    by: str,
    head: str,
    named: Mapping[Any, str],
    halves: Mapping[Any, float],
) -> pd.DataFrame:
    here, there = (summarise(t, [by]).set_index(by) for t in (live, recorded))
    there = there.reindex(list(named))
    return pd.DataFrame({
        head: [*named.values()],
        "live": here.loc[list(named), "mean"].to_numpy(float),
        "recorded": there["mean"].to_numpy(float),
        "± images": [halves.get(key, math.nan) for key in named],
        "seeds": here.loc[list(named), "n_seeds"].to_numpy(int),
        "std over seeds": there["std"].to_numpy(float),
        "how many": there["n_seeds"].fillna(0).to_numpy(int),
    })  # fmt: skip


def _half(rows: pd.DataFrame) -> float:
    """Return half of the 95 % interval of a mean of shares in %, for the images drawn."""
    rows = rows[rows["seed"].isna() | (rows["seed"] == rows["seed"].min())]
    metric = rows["metric"].iloc[0]
    one = ~rows["task"].astype(str).str.contains("+", regex=False)  # task: no sum of two shares
    if metric == "stitched" or (metric in images.DISAGREEMENTS and one.all()):
        metric = "accuracy"  # a share of images like any other
    if metric not in (*images.PROPORTIONS, *images.DISAGREEMENTS):
        return math.nan  # no share of images
    errors = images.standard_errors(rows, metric, None)
    sets = errors.groupby(images.sets_of(rows, metric)).sum(min_count=1)  # of the same images
    return 1.96 * math.hypot(*sets) / len(rows)


def agreement(beside: pd.DataFrame, form: str = "{:.1f}") -> Any:
    """Return one line: how many live values agree with the recorded ones, and the largest gap.

    They agree within twice the standard deviation over recorded seeds and half of the interval for
    the live images, added as independent errors.

    Args:
        beside: A table of `beside_recorded`.
        form: Of a number.
    """
    rows = beside.dropna(subset=["live", "recorded"]).set_index(beside.columns[0])
    if rows.empty:
        return say("Nothing is recorded of the same models and tasks.")
    times, many = _apart(rows), len(rows)
    far = int((times > 1).sum())
    gap = (rows["live"] - rows["recorded"]).abs() if times.isna().all() else times
    name = gap.idxmax()
    live, recorded = (form.format(rows.loc[name, side]) for side in ("live", "recorded"))
    worst = f"{name}, {live} live and {recorded} recorded"
    if times.isna().all():
        return say(f"Largest difference: {worst}.")
    if not far:
        return say("All live values agree with the recorded ones within their noise.")
    return say(
        f"{far} of {many} live values differ from the recorded ones by more than their noise, "
        f"most of all {worst}."
    )


def _apart(rows: pd.DataFrame) -> pd.Series:
    """Return each row's difference divided by its expected noise, NaN where that is unknown."""
    noise, seeds = rows["± images"], 2 * rows["std over seeds"]
    expected = np.hypot(noise.fillna(0), seeds.fillna(0)).where(noise.notna() | seeds.notna())
    return (rows["live"] - rows["recorded"]).abs() / expected.clip(lower=1e-12)
