"""What ran on a page beside what is recorded of it, and whether the two agree."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pandas as pd

from tasklab.book.words import counted, order, say, word

_FEW = 3  # pairs of methods that are named one by one
_HEADS = {"model": "encoder", "n_tasks": "tasks", "lr": "learning rate"}


def beside_recorded(
    live: pd.DataFrame,
    recorded: pd.DataFrame,
    experiment: str,
    metric: str,
    *,
    n_tasks: int | None = None,
    split: str = "test",
    by: str = "method",
) -> pd.DataFrame:
    """Put what ran here beside what is recorded of the same model and tasks, row by row.

    Args:
        live: Records of one model; of several where `by` is another column than the method's.
        recorded: Recorded results, of any models.
        experiment: Its name in the records.
        metric: One of its metrics.
        n_tasks: Number of added tasks, where the experiment is addition.
        split: Of the images.
        by: The column that tells rows apart: `method` of fine-tuning, `merge`,
            `model`, `n_tasks`, `lr`, `task`, `init`.

    Returns:
        Columns method (or encoder, ...), live, ± images (half of the 95 % interval for the number
        of images, of the first seed), seeds, recorded, std over seeds, recorded seeds; a row a
        method, encoder, ... that ran here. How many recorded tasks, or pairs, did not run here
        stands in `attrs["left out"]`; the recorded numbers are without them.
    """
    from tasklab.figures.merging import merges_in
    from tasklab.figures.rows import methods_in
    from tasklab.records.table import summarise

    def chosen(table: pd.DataFrame) -> pd.DataFrame:
        rows = table[(table["experiment"] == experiment) & (table["metric"] == metric)]
        rows = rows[rows["split"] == split]
        return rows if n_tasks is None else rows[(rows["n_tasks"] == n_tasks).fillna(False)]

    live, recorded = chosen(live), chosen(recorded)
    mine = recorded[recorded["model"].isin(live["model"]) & recorded["init"].isin(live["init"])]
    left_out = len({*mine["task"]} - {*live["task"]}) if len(mine) else 0
    for name in ("model", "init", "task", *(("method", "subset") if by != "method" else ())):
        recorded = recorded[recorded[name].isin(live[name])]
    if by not in recorded:  # nothing is recorded yet
        recorded = recorded.assign(**{by: ""})
    here, there = (summarise(t, [by]).set_index(by) for t in (live, recorded))
    keys = methods_in(live, baseline=True) if by == "method" else here.index
    rows = []
    for key in merges_in(live) if by == "merge" else keys:
        kept = there.loc[key] if key in there.index else {}
        row = {_HEADS.get(by, by): _label(by, key), "live": here.loc[key, "mean"]}
        row |= {"± images": _half(live[live[by] == key])}
        row |= {"seeds": int(here.loc[key, "n_seeds"]), "recorded": kept.get("mean", math.nan)}
        row |= {"std over seeds": kept.get("std", math.nan)}
        rows.append(row | {"recorded seeds": int(kept.get("n_seeds", 0))})
    table = pd.DataFrame(rows)
    table.attrs["left out"] = left_out
    return table


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
    from tasklab.records.schema import ACCURACIES

    rows = rows[rows["seed"].isna() | (rows["seed"] == rows["seed"].min())]
    metric = rows["metric"].iloc[0]
    if (rows["metric"] != metric).any() or metric not in (*ACCURACIES, "xi_classifier_box"):
        return math.nan  # no share of images
    errors = images.standard_errors(rows, metric, None)
    sets = errors.groupby(images.sets_of(rows, metric)).sum(min_count=1)  # of the same images
    return 1.96 * math.hypot(*sets) / len(rows)


def agreement(beside: pd.DataFrame, form: str = "{:.1f}") -> Any:
    """Return a sentence on whether what ran here has the order of what is recorded.

    Args:
        beside: What `beside_recorded` returns.
        form: Of a number.
    """
    left = beside.attrs.get("left out", 0)
    note = (
        f" Recorded {'is' if left == 1 else 'are'} {word(left)} more, which did not run here."
        if left
        else ""
    )
    return say(_agreement(beside, form) + note)


def _agreement(beside: pd.DataFrame, form: str) -> str:
    """Return that sentence; see `agreement`."""
    comparable = beside.dropna(subset="recorded").set_index(beside.columns[0])
    if not len(comparable):
        return "Nothing is recorded of this model with these tasks to be compared with."
    live, recorded, images = comparable["live"], comparable["recorded"], comparable["± images"]
    if len(comparable) == 1:
        off, half = abs(live.iloc[0] - recorded.iloc[0]), images.iloc[0]
        note = "" if pd.isna(half) else f", {'within' if off < half else 'beyond'} "
        note += f"the {half:.1f} of so few images" if note else ""
        return (
            f"Live, {live.index[0]}: {form.format(live.iloc[0])}; recorded: "
            f"{form.format(recorded.iloc[0])}{note}."
        )
    turned = [
        (one, two) if live[one] > live[two] else (two, one)
        for one, two in itertools.combinations(comparable.index, 2)
        if (live[one] - live[two]) * (recorded[one] - recorded[two]) < 0
    ]
    if not turned:
        return f"Live, the order is the recorded one: {order(live, form)}."
    reversals, within = [], 0
    for one, two in turned:
        far, half = live[one] - live[two], math.hypot(*images[[one, two]])
        if far < half and len(turned) > _FEW:
            within += 1
            continue
        size = form.format(far) if pd.isna(half) else f"{form.format(far)} points"
        small = f"{size}, within the {half:.1f} of so few images"
        reversals.append(f"{one} above {two} ({small if far < half else size})")
    reversals[_FEW:] = (
        [counted(more, more, "more pair")] if (more := len(reversals) - _FEW) > 0 else []
    )
    reversals += (
        [f"{counted(within, within, 'pair')} within what so few images tell"] if within else []
    )
    return (
        f"**The live run turns the recorded order over**: it has {'; '.join(reversals)}. It is "
        f"one short fine-tuning of few images; the recorded order is {order(recorded, form)}."
    )
