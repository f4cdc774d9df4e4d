"""Figures of sums in a closed vocabulary: along the coefficient, by regime, cost, linearity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tasklab.errors import TasklabError
from tasklab.figures.schemes import looks, of_vocabulary, scheme_legend
from tasklab.figures.style import COLOURS, MARKERS, METHOD_LABEL, WIDTH, book_figure, select, some
from tasklab.records.table import summarise


@book_figure
def lambda_curves(
    df: pd.DataFrame, *, method: str = "nonlinear", zoom: float = 0.3, vocabulary: str = "closed"
) -> Figure:
    """Draw the accuracy of the sum of all vectors along the coefficient (figure 2).

    Left: mean normalised validation accuracy; the hollow marker at 0 is probing alone. Right: the
    difference to probing near 0, in points of the same. Bands span the seeds.

    Args:
        df: Records of `experiments.closed_addition`.
        method: Whose vectors are added.
        zoom: Largest coefficient on the right.
        vocabulary: `"closed"` or `"open"`.
    """
    rows = select(of_vocabulary(df, vocabulary), "sweep", "normalised", split="validation")
    rows = rows[rows["method"] == method]
    some(rows)
    figure, (whole, near) = plt.subplots(1, 2, figsize=(WIDTH, 3.9))
    for model, (label, colour, marker) in looks(rows).items():
        mine = rows[rows["model"] == model]
        seeds = mine.groupby(["seed", "alpha"])["value"].mean().unstack("alpha")
        for axes, table in ((whole, seeds), (near, seeds.sub(seeds[0.0], axis=0))):
            x = table.columns if axes is whole else table.columns[table.columns <= zoom + 1e-9]
            mean = table[x].mean()
            # A dense grid has a marker at every 0.05, so that lines stay lines.
            marked = [i for i, a in enumerate(x) if i and abs(a / 0.05 - round(a / 0.05)) < 1e-6]
            look = {"color": colour, "label": label if axes is whole else None}
            axes.plot(x, mean, marker=marker, ms=4.5, lw=1.4, markevery=marked, **look)
            axes.plot(0, mean[0.0], marker, ms=7, mfc="white", mec=colour, mew=1.5, zorder=5)
            if len(table) > 1:
                axes.fill_between(x, table[x].min(), table[x].max(), color=colour, alpha=0.15, lw=0)
    near.axhline(0, color="#333333", lw=0.8)
    low = near.get_ylim()[0]
    near.set_ylim(max(low, -20), None)  # what is lost further on is on the left
    whole.set_ylabel("normalised validation accuracy (%)")
    near.set_ylabel("gain over probing (points)")
    for axes in (whole, near):
        axes.set_xlabel("coefficient λ")
    scheme_legend(figure, whole)
    return figure


_REGIMES = {  # (method, what) -> label, marker, filled
    ("probe", "single"): ("probing alone", "|", True),
    ("nonlinear", "sum"): ("sum, probe first", "o", True),
    ("nonlinear", "single"): ("single task, probe first", "o", False),
    ("full", "sum"): ("sum, encoder and head together", "d", True),
    ("full", "single"): ("single task, together", "d", False),
}
_RECORDS = {"single": ("single", "single"), "sum": ("addition", "absolute")}


@book_figure
def regimes(df: pd.DataFrame) -> Figure:
    """Draw single-task accuracy and the sum's, fine-tuned after probing or with the head (table 3).

    A line joins the two of each regime: what adding the vectors loses.

    Args:
        df: Records of `experiments.probing` and `experiments.closed_addition`.
    """
    df = of_vocabulary(df, "closed")
    named = looks(df[df["method"] == "full"])
    if not named:
        raise TasklabError("nothing to draw: there are no records of 'full'.")
    colours = {"probe": "#333333", "nonlinear": "#0072B2", "full": "#D55E00"}
    shifts = {"probe": 0.0, "nonlinear": -0.16, "full": 0.16}
    figure, axes = plt.subplots(figsize=(WIDTH, 2.0 + 0.5 * len(named)))
    for place, model in enumerate(named):
        mine, ends = df[df["model"] == model], {}
        for (method, what), (label, marker, filled) in _REGIMES.items():
            experiment, metric = _RECORDS[what]
            rows = mine[(mine["experiment"] == experiment) & (mine["metric"] == metric)]
            rows = rows[(rows["method"] == method) & (rows["split"] == "test")]
            if rows.empty:
                continue
            seeds, colour = summarise(rows, ["seed"])["mean"], colours[method]
            y, ends[method, what] = place + shifts[method], float(seeds.mean())
            if len(seeds) > 1:
                axes.hlines(y, seeds.min(), seeds.max(), color=colour, lw=5, alpha=0.3)
            look = {"ms": 17 if marker == "|" else 7, "mec": colour, "mew": 1.6, "ls": ""}
            look |= {"mfc": colour if filled else "white", "zorder": 4}
            axes.plot(seeds.mean(), y, marker, label=label if not place else None, **look)
        for method in ("nonlinear", "full"):
            pair = [ends.get((method, what)) for what in ("sum", "single")]
            if None not in pair:
                axes.plot(pair, [place + shifts[method]] * 2, color=colours[method], lw=1.4)
    axes.set_yticks(range(len(named)), [label for label, _, _ in named.values()])
    axes.set_ylim(len(named) - 0.5, -0.5)
    axes.set_xlabel("mean test accuracy of the tasks (%)")
    axes.grid(axis="y", visible=False)
    scheme_legend(figure, axes, 3)
    return figure


_COSTS = {
    "seconds_features": ("features of the training images", "#56B4E9"),
    "seconds_probe": ("fit of the probes", "#0072B2"),
    "seconds_finetune": ("fine-tuning", "#D55E00"),
    "seconds_sweep": ("search for λ", "#E69F00"),
}


@book_figure
def closed_cost(df: pd.DataFrame, *, method: str = "nonlinear") -> Figure:
    """Draw the seconds that probing and addition take for all tasks, a pair of bars a scheme.

    Args:
        df: Records of `experiments.closed_cost`.
        method: Whose vectors are added.
    """
    rows = df[(df["experiment"] == "closed_cost") & df["metric"].isin(_COSTS)]
    rows = rows[rows["method"].isin(["probe", method])]
    some(rows)
    totals = rows.groupby(["model", "metric"])["value"].sum()
    named = looks(rows)
    figure, axes = plt.subplots(figsize=(WIDTH, 1.6 + 0.55 * len(named)))
    for place, model in enumerate(named):
        probing = ("seconds_features", "seconds_probe")
        for y, parts in ((place - 0.19, probing), (place + 0.19, tuple(_COSTS))):
            left = 0.0
            for part in parts:
                seconds = float(totals.get((model, part), 0.0))
                label = _COSTS[part][0] if not place and y > place else None
                axes.barh(y, seconds, 0.34, left=left, color=_COSTS[part][1], label=label)
                left += seconds
            word = "probing" if parts == probing else "addition"
            axes.annotate(f"{word} {left:.1f} s", (left, y), (4, 0), fontsize=8.5,
                          textcoords="offset points", va="center")  # fmt: skip
    axes.set_yticks(range(len(named)), [label for label, _, _ in named.values()])
    axes.set_ylim(len(named) - 0.5, -0.5)
    axes.margins(x=0.22)
    axes.set_xlabel("seconds for all tasks together")
    axes.grid(axis="y", visible=False)
    scheme_legend(figure, axes)
    return figure


@book_figure
def linearity_against_addition(
    linearity: pd.DataFrame, sums: pd.DataFrame, *, metric: str = "distance"
) -> Figure:
    """Draw the cross-task linearity of each scheme against what its vectors' sum keeps.

    Args:
        linearity: Records of `experiments.cross_task` at alpha 0.5, of several models.
        sums: Records of `experiments.closed_addition`.
        metric: Of linearity: `distance` (1 - cosine, lower is more linear) or `coef`.
    """
    df = linearity[(linearity["experiment"] == "ctl") & (linearity["metric"] == metric)]
    df = df[(df["alpha"] == 0.5) & (df["method"] == "nonlinear")]
    some(df)
    across = df.groupby("model")["value"].agg(["mean", "std"])
    sums = of_vocabulary(sums, "closed")
    figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 3.7), sharex=True)
    told = {
        "normalised": "normalised accuracy of the sum (%)",
        "gain": "gain over probing (points)",
    }
    for axes, what in zip(panels, told, strict=True):
        kept = _kept(sums, what)
        for model, (label, colour, marker) in looks(df).items():
            if model not in kept:
                continue
            axes.plot(across["mean"][model], kept[model], marker, ms=9, color=colour,
                      mec="#333333", mew=0.5, label=label)  # fmt: skip
        axes.set_xlabel("1 − cosine, mean over pairs and blocks" if metric == "distance"
                        else "coefficient of the projection")  # fmt: skip
        axes.set_ylabel(told[what])
        axes.margins(0.12)
    scheme_legend(figure, panels[0])
    return figure


@book_figure
def ways_after_probing(df: pd.DataFrame, methods: Sequence[str]) -> Figure:
    """Draw what the sum gains over probing and its coefficient, by way of fine-tuning.

    Dots are means over seeds, lines their range.

    Args:
        df: Records of `experiments.probing` and `experiments.closed_addition`.
        methods: Whose vectors are added, in the order of the legend.
    """
    df = of_vocabulary(df, "closed")
    rows = df[(df["experiment"] == "addition") & df["method"].isin(methods)]
    some(rows)
    probes = df[(df["experiment"] == "single") & (df["method"] == "probe")]
    base = probes[probes["split"] == "test"].groupby("model")["value"].mean()
    sums = rows[rows["metric"] == "absolute"].groupby(["model", "method", "seed"])["value"].mean()
    shown = {
        "gain over probing (points)": sums - base.reindex(sums.index, level="model"),
        "chosen coefficient λ": rows[rows["metric"] == "lambda"]
        .groupby(["model", "method", "seed"])["value"]
        .mean(),
    }
    named = looks(rows)
    figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 1.7 + 0.5 * len(named)), sharey=True)
    shifts = np.linspace(-0.24, 0.24, len(methods)) if len(methods) > 1 else [0.0]
    for axes, (title, values) in zip(panels, shown.items(), strict=True):
        for method, shift in zip(methods, shifts, strict=True):
            label, colour = METHOD_LABEL[method], COLOURS[method]
            marker = MARKERS[method]
            for place, model in enumerate(named):
                if (model, method) not in values.index:
                    continue
                seeds, y = values[model, method], place + shift
                axes.hlines(y, seeds.min(), seeds.max(), color=colour, lw=5, alpha=0.3)
                told = label if not place and axes is panels[0] else None
                axes.plot(seeds.mean(), y, marker, ms=7, color=colour, mec="#333333", mew=0.5,
                          label=told)  # fmt: skip
        axes.set_xlabel(title)
        axes.grid(axis="y", visible=False)
    panels[0].axvline(0, color="#333333", lw=0.8)
    panels[0].set_yticks(range(len(named)), [label for label, _, _ in named.values()])
    panels[0].set_ylim(len(named) - 0.5, -0.5)
    scheme_legend(figure, panels[0])
    return figure


def _kept(sums: pd.DataFrame, what: str) -> Mapping[str, float]:
    """Return the normalised accuracy of each model's sum, or its absolute gain over probing."""
    metric = "normalised" if what == "normalised" else "absolute"
    rows = sums[(sums["experiment"] == "addition") & (sums["metric"] == metric)]
    found = rows[rows["method"] == "nonlinear"].groupby("model")["value"].mean()
    if what == "normalised":
        return found.to_dict()
    probes = sums[(sums["experiment"] == "single") & (sums["method"] == "probe")]
    base = probes[probes["split"] == "test"].groupby("model")["value"].mean()
    return (found - base).dropna().to_dict()
