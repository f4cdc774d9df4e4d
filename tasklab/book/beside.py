"""What ran on a page beside what is recorded of it, and whether the two agree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasklab.book.words import counted, order, say, word

_FEW = 3  # pairs of methods that are named one by one
_HEADS = {"model": "encoder", "n_tasks": "tasks", "lr": "learning rate"}
_HERE = "one short fine-tuning on few images"


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
    """Put what ran here beside what is recorded of the same model and tasks, row by row.

    Args:
        live: Records of one model; of several where `by` is another column than the method's.
        recorded: Recorded results, of any models.
        experiment: Its name in the records, or several.
        metric: One of its metrics.
        n_tasks: Number of added tasks, where the experiment is addition.
        split: Of the images.
        by: The column that tells rows apart: `method` of fine-tuning, `merge`,
            `model`, `n_tasks`, `lr`, `task`, `init`, or any other.
        labels: What rows are called, by the column's values, where that is not known.
        what: What is compared, as the first column's heading; by default what rows are.

    Returns:
        Columns method (or encoder, ...), live, recorded, ± images (half of the 95 % interval for
        the number of live images, of the first seed), seeds, std over seeds, how many seeds; a row
        a method, encoder, ... that ran here. What recorded tasks, or pairs, did not run here
        stands in `attrs["left out"]`; the recorded numbers are without them.
    """
    from tasklab.figures.merging import merges_in
    from tasklab.figures.rows import methods_in

    experiments = [experiment] if isinstance(experiment, str) else experiment

    def chosen(table: pd.DataFrame) -> pd.DataFrame:
        rows = table[table["experiment"].isin(experiments) & (table["metric"] == metric)]
        rows = rows[rows["split"] == split]
        return rows if n_tasks is None else rows[(rows["n_tasks"] == n_tasks).fillna(False)]

    live, recorded = chosen(live), chosen(recorded)
    mine = recorded[recorded["model"].isin(live["model"]) & recorded["init"].isin(live["init"])]
    left_out = {*mine["task"]} - {*live["task"]} if len(mine) else set()
    for name in ("model", "init", "task", *(("method", "subset") if by != "method" else ())):
        recorded = recorded[recorded[name].isin(live[name])]
    if by not in recorded:  # nothing is recorded yet
        recorded = recorded.assign(**{by: ""})
    every = {"method": lambda: methods_in(live, baseline=True), "merge": lambda: merges_in(live)}
    keys = every.get(by, lambda: live[by].dropna().unique())()
    named = {key: (labels or {}).get(key) or _label(by, key) for key in keys}
    halves = {key: _half(live[live[by] == key]) for key in keys}
    table = _side_by_side(live, recorded, by, what or _HEADS.get(by, by), named, halves)
    pairs = {task for task in left_out if "+" in task}
    more = {"more task": left_out - pairs, "more pair": pairs}
    told = [counted(len(n), len(n), noun) for noun, n in more.items() if n]
    table.attrs["left out"] = " and ".join(told)
    return table


def beside_each_seed(
    live: pd.DataFrame,
    recorded: pd.DataFrame,
    measure: Callable[[pd.DataFrame], pd.Series],
    by: str,
) -> pd.DataFrame:
    """Put what is computed from all records of a seed beside the same from recorded ones.

    Args:
        live: Records.
        recorded: Recorded results of the same model and tasks.
        measure: Records of one seed -> numbers by name, as rank correlations.
        by: What these names are: the first column's heading.

    Returns:
        As of `beside_recorded`.
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
    """Return the table of `beside_recorded`, a row a key of `named`."""
    from tasklab.records.table import summarise

    here, there = (summarise(t, [by]).set_index(by) for t in (live, recorded))
    rows = []
    for key, name in named.items():
        kept = there.loc[key] if key in there.index else {}
        row = {head: name, "live": here.loc[key, "mean"]}
        row |= {"recorded": kept.get("mean", math.nan)}
        row |= {"± images": halves.get(key, math.nan), "seeds": int(here.loc[key, "n_seeds"])}
        row |= {"std over seeds": kept.get("std", math.nan)}
        rows.append(row | {"how many": int(kept.get("n_seeds", 0))})
    return pd.DataFrame(rows)


def _label(by: str, key: Any) -> str:
    """Return what a row is called, in a table and in a sentence."""
    from tasklab.figures.merging import MERGE_LABEL
    from tasklab.figures.schemes import scheme
    from tasklab.figures.style import INIT_LABEL, METHOD_LABEL

    if by in ("method", "merge"):
        return (METHOD_LABEL if by == "method" else MERGE_LABEL)[key]
    if by == "model":
        return scheme(key)
    if by == "init":
        return INIT_LABEL[key]
    if by == "n_tasks":
        return counted(key, key, "task")
    return f"rate {key:g}" if by == "lr" else str(key)


def _half(rows: pd.DataFrame) -> float:
    """Return half of the 95 % interval of a mean of shares in %, for the images drawn."""
    from tasklab.records import images

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


def agreement(beside: pd.DataFrame, form: str = "{:.1f}", here: str = _HERE) -> Any:
    """Return a sentence on whether what ran here has the order of what is recorded, and its size.

    Sizes differ where they are further apart than twice the standard deviation over recorded seeds
    and half of the interval for the live images make together, as independent errors.

    Args:
        beside: What `beside_recorded` returns.
        form: Of a number.
        here: What the live run is, to be told where it differs.
    """
    left = beside.attrs.get("left out", "")
    verb = "are" if left.endswith("s") else "is"
    note = f" {left.capitalize()} {verb} recorded that did not run here." if left else ""
    comparable = beside.dropna(subset=["live", "recorded"]).set_index(beside.columns[0])
    if not len(comparable):
        return say("Nothing is recorded of the same models and tasks to compare with." + note)
    if len(comparable) == 1:
        told, differ = _alone(comparable, form), _apart(comparable)[0].gt(1).any()
    else:
        (ranks, turned), (sizes, far) = _order(comparable, form), _sizes(comparable, form)
        told, differ = f"{ranks} {sizes}".strip(), turned or far
    return say(told + (f" The live run: {here}." if differ else "") + note)


def _noise(rows: pd.DataFrame) -> tuple[pd.Series, str]:
    """Return by how much a live value may differ from a recorded one by chance, and what makes it.

    NaN where nothing is known of it.
    """
    images, seeds = rows["± images"], 2 * rows["std over seeds"]
    expected = np.hypot(images.fillna(0), seeds.fillna(0)).where(images.notna() | seeds.notna())
    names = {"so few images": images, "the spread over seeds": seeds}
    return expected, " and ".join(name for name, known in names.items() if known.notna().any())


def _apart(rows: pd.DataFrame) -> tuple[pd.Series, str]:
    """Return by how many times what is expected rows are apart, and the name of that."""
    expected, told = _noise(rows)
    verb = "explains" if told == "the spread over seeds" else "explain"
    times = (rows["live"] - rows["recorded"]).abs() / expected.clip(lower=1e-12)
    return times.dropna(), f"than {told} {verb}"


def _alone(rows: pd.DataFrame, form: str) -> str:
    """Return a sentence on the only row that can be compared."""
    live, recorded = (form.format(rows[side].iloc[0]) for side in ("live", "recorded"))
    times, than = _apart(rows)
    further = f", {'further' if times.gt(1).any() else 'no further'} apart {than}"
    return f"Live, {rows.index[0]}: {live}; recorded: {recorded}{further if len(times) else ''}."


def _sizes(rows: pd.DataFrame, form: str) -> tuple[str, int]:
    """Return a sentence on how many live values differ from the recorded ones, and the number."""
    times, than = _apart(rows)
    far = int((times > 1).sum())
    if not far:
        return f"No value differs from the recorded one by more {than}." if len(times) else "", 0
    name = times.idxmax()
    live, recorded = (form.format(rows.loc[name, side]) for side in ("live", "recorded"))
    many = f"{word(far).capitalize()} of the {word(len(times))} values"
    if far == len(times):
        many = {1: "One value", 2: "Both values"}.get(far, f"All {word(far)} values")
    return (
        f"{many} differ{'s' if far == 1 else ''} from what is recorded by more {than}, most of all "
        f"{name}: {live} live, {recorded} recorded.",
        far,
    )


def _order(rows: pd.DataFrame, form: str) -> tuple[str, int]:
    """Return a sentence on the order of the rows, and the number of pairs that are turned.

    What is told as the same number has no order.
    """
    live, recorded, (noise, made_of) = rows["live"], rows["recorded"], _noise(rows)
    turned = [
        (one, two) if live[one] > live[two] else (two, one)
        for one, two in itertools.combinations(rows.index, 2)
        if (live[one] - live[two]) * (recorded[one] - recorded[two]) < 0
        and all(form.format(side[one]) != form.format(side[two]) for side in (live, recorded))
    ]
    if not turned:
        return f"The live order is the recorded one: {order(live, form)}.", 0
    reversals, within = [], 0
    for one, two in turned:
        far, half = live[one] - live[two], math.hypot(*noise[[one, two]])
        within += far < half
        if far < half and len(turned) > _FEW:
            continue
        size = form.format(far) + (" points" if rows["± images"].notna().any() else "")
        told = f"; noise {form.format(half)}" if far < half else ""
        reversals.append(f"{one} above {two} ({size}{told})")
    if (more := len(reversals) - _FEW) > 0:
        reversals[_FEW:] = [counted(more, more, "more pair")]
    if within and len(turned) > _FEW:
        where = ", within the noise" if within < len(turned) else ""
        reversals.append(f"{counted(within, within, 'pair')} in another order{where}")
    opening = (
        f"The live order differs, but within the noise of {made_of}"
        if within == len(turned)
        else "**The live order differs from the recorded one**"
    )
    return (
        f"{opening}: it has {'; '.join(reversals)}. The recorded order is {order(recorded, form)}.",
        len(turned),
    )
