"""Worlds side by side: verdicts, effects beside those that papers print, curves over sets."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tasklab.analyses.merging.registry import METHODS
from tasklab.evidence.figures.forest_plot import (
    FARTHEST,
    LOOKS,
    PAPERS,
    in_half_widths,
    strengths_of,
)
from tasklab.evidence.figures.labels import METRIC_LABEL
from tasklab.evidence.figures.marks import curves, scatter
from tasklab.evidence.figures.pictures import WIDTH, put_legend
from tasklab.evidence.figures.rows import averaged, require_rows, select, where
from tasklab.evidence.figures.style import COLOURS, INK, book_figure
from tasklab.evidence.records.claims import Claim
from tasklab.evidence.records.judgement import Verdict
from tasklab.evidence.records.papers import printed
from tasklab.evidence.records.replication import SIDES, of_pairs, properties, set_gains
from tasklab.evidence.records.statements import at, plain

WORLDS = ("synthetic images", "real drawings")
TEXTS = "texts"  # the world of a text encoder that other people pre-trained
_WORLD_LOOKS = {
    WORLDS[0]: (WORLDS[0], "#0072B2", "o"),
    WORLDS[1]: (WORLDS[1], "#D55E00", "s"),
    TEXTS: (TEXTS, "#009E73", "D"),
}
_PROPERTY = METRIC_LABEL | {
    "single": "single-task accuracy (%)",
    "zero_shot": "zero-shot accuracy (%)",
    "classes": "classes of a task",
}
_SIZES = {
    "vitb32": "ViT-B/32, printed",
    "vitb16": "ViT-B/16, printed",
    "vitl14": "ViT-L/14, printed",
}
_FAR = 25.0  # points, where an axis of effects ends
_MARKERS = dict(zip(SIDES, "os", strict=True))


@book_figure
def replication(rows: pd.DataFrame) -> Figure:
    """Plot each statement's effect in two worlds, in half-widths of its 95 % interval.

    Beyond 1 it is confirmed in that world, below -1 it is contradicted.

    Args:
        rows: Of `records.replication`.
    """
    require_rows(rows, "no statement was tested in both worlds")
    again = rows["id"].duplicated()  # its other settings stand below a statement
    lines = zip(rows.to_dict("records"), again, strict=True)
    rows = rows.assign(label=[at(r["setting"]) if below else _named(r) for r, below in lines])
    groups = [(PAPERS.get(name, name), part) for name, part in rows.groupby("paper", sort=False)]
    figure, panels = in_half_widths(groups, "effect divided by its margin of error", WIDTH, 0.2)
    for (_, part), axes in zip(groups, panels, strict=True):
        _panel(axes, part)
    grey = {"color": "#404040", "ls": "", "ms": 6}
    handles = [
        Line2D([], [], marker=marker, **grey, label=world)
        for marker, world in zip(_MARKERS.values(), WORLDS, strict=True)
    ]
    found = {outcome for side in SIDES for outcome in rows[f"outcome{side}"]}
    handles += [
        Line2D([], [], color=colour, lw=4, label=plain(outcome))
        for outcome, (colour, _) in LOOKS.items()
        if outcome in found
    ]
    put_legend(figure, handles, [str(one.get_label()) for one in handles])
    return figure


def _panel(axes: Axes, rows: pd.DataFrame) -> None:
    strengths = {side: strengths_of(rows, side)[0] for side in SIDES}
    places = {side: np.clip(x, -FARTHEST, FARTHEST) for side, x in strengths.items()}
    for y, ends in enumerate(zip(*places.values(), strict=True)):
        axes.plot(ends, [y, y], color="#B0B0B0", linewidth=1.2, zorder=2)
    for side, marker in _MARKERS.items():
        for y, (x, outcome) in enumerate(zip(places[side], rows[f"outcome{side}"], strict=True)):
            axes.plot(x, y, marker=marker, color=LOOKS[outcome][0], ms=5.5, zorder=3)


def _named(row: Mapping[str, Any]) -> str:
    return row["short"] if row["setting"] == "chosen" else f"{row['short']} ({at(row['setting'])})"


@book_figure
def headline_effects(worlds: Mapping[str, Sequence[Verdict]]) -> Figure:
    """Plot the headlines' effects in every world, with those that papers print for CLIP as crosses.

    Effects are in points, positive where the claim holds, with 95 % intervals for the tasks that
    were tried; an end beyond the axis is an arrow.

    Args:
        worlds: Name (one of `WORLDS` or `TEXTS`) -> verdicts.
    """
    told = {
        world: {one.claim.id: one.on_these_tasks or one for one in verdicts if _is_printed(one)}
        for world, verdicts in worlds.items()
    }
    claims = {one.claim.id: one.claim for own in told.values() for one in own.values()}
    require_rows(pd.DataFrame({"id": [*claims]}), "no headline was tested")
    figure = Figure(figsize=(WIDTH, 1.0 + 0.52 * len(claims)))
    axes = figure.subplots()
    *lanes, lowest = np.linspace(-0.27, 0.27, len(told) + 1)
    for row, claim in enumerate(claims.values()):
        effects = printed(claim)
        clips = [effects[size] for size in _SIZES if size in effects]
        axes.plot(clips, [row + lowest] * len(clips), "x", color="#595959", ms=5, mew=1.4)
        for offset, (world, own) in zip(lanes, told.items(), strict=True):
            if claim.id not in own or math.isnan(own[claim.id].interval.effect):
                continue
            effect, low, high = own[claim.id].interval
            _, colour, marker = _WORLD_LOOKS[world]
            if not math.isnan(low):
                ends = np.clip([low, high], -_FAR, _FAR)
                axes.plot(ends, [row + offset] * 2, color=colour, lw=2, zorder=3)
                for end, bound, tip in zip((low, high), ends, "<>", strict=True):
                    if end != bound:
                        axes.plot(bound, row + offset, tip, color=colour, ms=6, zorder=3)
            axes.plot(np.clip(effect, -_FAR, _FAR), row + offset, marker, color=colour, zorder=4)
    axes.axvline(0, color=INK, lw=0.8, zorder=1)
    names = [*map(_with_cell, claims.values())]
    axes.set_yticks(range(len(names)), ["\n".join(textwrap.wrap(n, 38)) for n in names])
    axes.set(ylim=(len(names) - 0.5, -0.5))
    figure.supxlabel("effect in points (positive where the claim holds)", fontsize=9)
    axes.grid(visible=False, axis="y")
    handles = [
        Line2D([], [], marker=marker, color=colour, label=label)
        for label, colour, marker in (_WORLD_LOOKS[world] for world in told)
    ]
    handles.append(Line2D([], [], marker="x", color="#595959", ls="", label="CLIP, printed"))
    put_legend(figure, handles, [str(one.get_label()) for one in handles])
    return figure


def _is_printed(one: Verdict) -> bool:
    claim = one.claim
    headline = bool(claim.headline) and not claim.grows and claim.setting == "chosen"
    return headline and bool(printed(claim))


def beside_printed(worlds: Mapping[str, Sequence[Verdict]]) -> pd.DataFrame:
    """Return the effects of our worlds beside those that papers print for CLIP, in points.

    Args:
        worlds: Name -> verdicts, of which headlines at their chosen rates are taken.

    Returns:
        Columns statement, column (a world, or a size of CLIP), value, low and high (95 % interval),
        which `tabulate` shows.
    """
    shown = [(world, one) for world, each in worlds.items() for one in each if _is_printed(one)]
    named = {one.claim.id: _with_cell(one.claim) for _, one in shown}
    rows = [
        {"statement": named[one.claim.id], "column": world, "value": one.interval.effect,
         "low": one.interval.low, "high": one.interval.high}
        for world, one in shown
    ] + [
        {"statement": named[claim.id], "column": words, "value": effects[size]}
        for claim in {one.claim.id: one.claim for _, one in shown}.values()
        for effects in [printed(claim)]
        for size, words in _SIZES.items() if size in effects
    ]  # fmt: skip
    return pd.DataFrame(rows).dropna(subset="value")


def _with_cell(claim: Claim) -> str:
    return f"{claim.short}: {claim.cell}" if claim.cell else claim.short


def worlds_table(worlds: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return mean test accuracies in % on all merged tasks, one row per world.

    Columns are the pre-trained model, the sum, the best merge of vectors by test accuracy with its
    name, joint training, and one model a task.

    Args:
        worlds: Name -> records `single`, `merging` and `joint` of one model.
    """
    lines = []
    for world, df in worlds.items():
        rows = where(df, metric=["absolute", "single"], split="test")
        rows = rows[(rows["n_tasks"] == rows["n_tasks"].max()) | rows["n_tasks"].isna()]
        rows = where(rows, method=["nonlinear", "pretrained"])
        made = where(rows, experiment="merging").groupby("merge")["value"].mean()
        made = made[[name for name in made.index if name in METHODS]]
        single = where(rows, experiment="single").groupby("method")["value"].mean()
        lines.append({
            "world": world,
            "pre-trained": single["pretrained"],
            "sum": made["arithmetic"],
            "best merge": f"{made.max():.1f} ({METHODS[made.idxmax()].title})",
            "joint training": where(rows, experiment="joint")["value"].mean(),
            "one model a task": single["nonlinear"],
        })  # fmt: skip
    return pd.DataFrame(lines)


@book_figure
def errors_by_accuracy(worlds: Mapping[str, tuple[pd.DataFrame, Mapping[str, int]]]) -> Figure:
    """Plot the error ξ of every pair over the accuracy of its two models alone, in both worlds.

    Args:
        worlds: Name, in `WORLDS` -> records `crossing` of one model, and classes by task.
    """
    parts = []
    for world, given in worlds.items():
        pairs = of_pairs(*given).groupby("task")[["single", "xi_pair"]].mean()
        parts.append(pairs.assign(world=world))
    plot = scatter(
        pd.concat(parts), "single", "xi_pair", hue="world", looks=_WORLD_LOOKS, height=3.6
    )
    return plot.finish(x="test accuracy of the two models alone (%)", y="error ξ of the pair (%)")


def properties_table(
    worlds: Mapping[str, tuple[pd.DataFrame, Mapping[str, int]]],
) -> pd.DataFrame:
    """Return the means of properties of pairs, and their rank correlations with the error ξ.

    One row per property, two columns per world; arguments of `errors_by_accuracy`. A star marks a
    correlation that a permutation test of tasks confirms, corrected for the number of properties.
    """
    columns: dict[str, Any] = {}
    for world, given in worlds.items():
        table = properties(*given).set_index("metric")
        columns[world] = table["mean"].map(lambda x: f"{x:#.3g}".replace("-", "−"))
        columns[f"{world}: correlation with ξ"] = [
            f"{row.value:.2f} [{row.low:.2f}, {row.high:.2f}]".replace("-", "−")
            + "*" * (row.p_holm < 0.05)
            for row in table.itertuples()
        ]
    found = pd.DataFrame(columns).rename(index=_PROPERTY)
    return found.rename_axis("mean over pairs").reset_index()


@book_figure
def set_curves(df: pd.DataFrame) -> Figure:
    """Plot the accuracy of merges over the number of merged tasks, in sets drawn beforehand.

    A line is the mean over sets. On the left is mean test accuracy; on the right its gain over the
    sum of non-linear vectors of the same set and seed, with 95 % intervals for other tasks
    (`records.set_gains`). Records: `merging` of a lab of all tasks, of one model.
    """
    at, what = ["n_tasks", "subset", "seed"], ["method", "merge", "n_tasks", "subset", "metric"]
    rows = where(select(df, "merging"), metric="absolute")
    means = averaged(rows, "method", "merge", *at).assign(metric="absolute")
    plain = where(means, method="nonlinear", merge="arithmetic").set_index(at)["value"]
    gains = means["value"] - means.join(plain.rename("plain"), on=at)["plain"]
    means = averaged(pd.concat([means, means.assign(metric="gain", value=gains)]), *what)
    ways = means[["method", "merge"]].drop_duplicates().apply(tuple, axis=1)
    named = {way: _way(*way) for way in ways}
    means["way"] = [_way(*way) for way in zip(means["method"], means["merge"], strict=True)]
    looks = {way: look for way, look in _WAYS.items() if way in set(means["way"])}
    metrics = {"absolute": "test accuracy (%)", "gain": "points above the set's sum"}
    plot = curves(
        means[means["way"].isin(list(looks))], "n_tasks", hue="way", looks=looks, col="metric",
        col_order=list(metrics), share=(True, False), height=3.8, errorbar=None,
    )  # fmt: skip
    (*_, (axes, _, _)) = plot
    for way, name in named.items():
        if name in looks and name != "arithmetic":
            told = set_gains(rows, way)
            band = (told["n_tasks"], told["low"], told["high"])
            axes.fill_between(*band, color=looks[name][1], alpha=0.12, lw=0)
    plot.first.set_xticks(sorted(means["n_tasks"].unique()))
    return plot.finish(x="number of merged tasks", y="", title=metrics)


def _way(method: str, merge: str) -> str:
    return merge if method == "nonlinear" else f"{method} {merge}"


_WAYS = {
    "arithmetic": ("sum", COLOURS["nonlinear"], "o"),
    "ties": ("TIES", "#E69F00", "s"),
    "tsv_m": ("TSV-M", "#CC79A7", "D"),
    "regmean": ("RegMean", "#56B4E9", "^"),
    "linearized arithmetic": ("linearized, sum", COLOURS["linearized"], "v"),
    "linearized tsv_m": ("linearized, TSV-M", "#8C564B", "<"),
    "attention arithmetic": ("attention only, sum", COLOURS["attention"], "P"),
    "attention tsv_m": ("attention only, TSV-M", "#7F7F7F", "X"),
}
