"""Figures of sums in a closed vocabulary: by coefficient, number of tasks, regime, cost."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from tasklab.evidence.figures.accuracies import probed
from tasklab.evidence.figures.marks import ZERO, against, curves, level, points
from tasklab.evidence.figures.rows import averaged, require_rows, select, where
from tasklab.evidence.figures.schemes import broken, looks, of_vocabulary
from tasklab.evidence.figures.style import book_figure, method_looks

GAIN = "gain over probing (points)"


@book_figure
def lambda_curves(df: pd.DataFrame) -> Figure:
    """Plot the accuracy of the sum of all vectors along its coefficient (figure 2).

    Left: mean normalised validation accuracy; the hollow marker is probing alone. Right: the
    difference from probing near 0, in points. Records: `sweep`.
    """
    rows = select(of_vocabulary(df, "closed"), "sweep", "normalised", split="validation")
    rows, by = require_rows(where(rows, method="nonlinear")), ["model", "seed", "alpha"]
    whole = averaged(rows, *by).assign(panel="whole")
    start = where(whole, alpha=0).set_index(by[:2])["value"].rename("start")
    near = whole[whole["alpha"] <= 0.3 + 1e-9].join(start, on=by[:2]).assign(panel="near")
    near["value"] -= near["start"]
    table = pd.concat([whole, near], ignore_index=True)
    plot = curves(
        table, "alpha", hue="model", looks=looks(rows), col="panel", share=(False, False),
        dots=False, height=4.2, lw=1.6,
    )  # fmt: skip
    means = averaged(table, "panel", "model", "alpha")
    plot.mark(where(means, alpha=0), "alpha", ms=7, mfc="white", mew=1.5)
    # A dense grid has a marker at every 0.05, so that lines stay lines.
    steps = means["alpha"] / 0.05
    marked = means[(steps > 0) & ((steps - steps.round()).abs() < 1e-6)]
    plot.mark(marked, "alpha", ms=4.5, mew=0, mfc="auto")
    right = plot.grid.axes_dict["near"]
    level(right, 0, **ZERO)
    right.set_ylim(max(right.get_ylim()[0], -20), None)  # the rest is on the left
    labels = {"whole": "normalised validation accuracy (%)", "near": GAIN}
    return plot.finish(x="coefficient λ", y=labels)


@book_figure
def subset_curves(df: pd.DataFrame, *, method: str = "nonlinear") -> Figure:
    """Plot the accuracy of sums by the number of added tasks (figures 6 to 9).

    Left: normalised. Right: gain over probing on the same subsets, absolute; left out where probing
    was measured on other images. Lines are means over subsets; with at most four schemes a band is
    their standard deviation. Records: `subsets`.
    """
    rows = select(df, "subsets")
    mine = require_rows(where(rows, method=method))
    same = ["model", "seed", "subset", "n_tasks", "n"]  # the same images
    probes = where(rows, method="probe", metric="absolute")[[*same, "value"]]
    gains = where(mine, metric="absolute").merge(probes, on=same, suffixes=("", "_probe"))
    gains = gains.assign(metric="gain", value=gains["value"] - gains["value_probe"])
    shown = pd.concat([where(mine, metric="normalised"), gains], ignore_index=True)
    shown, named = averaged(shown, "metric", "model", "n_tasks", "subset"), looks(mine)
    labels = {"normalised": "normalised test accuracy (%)", "gain": GAIN}
    plot = curves(
        shown, "n_tasks", hue="model", looks=named, height=4.0, col="metric",
        col_order=list(labels), share=(True, False), errorbar="sd" if len(named) <= 4 else None,
    )  # fmt: skip
    for axes, _, metric in plot:
        axes.set_xticks(sorted(mine["n_tasks"].astype(int).unique()))
        if metric == "gain":
            level(axes, 0, **ZERO)
    return plot.finish(x="number of added tasks", y=labels)


_REGIMES = {  # what is drawn of a method -> label, colour, marker; a figure's order
    "probe single": ("probing alone", "#333333", "X"),
    "nonlinear single": ("single task, probe first", "#56B4E9", "o"),
    "nonlinear sum": ("sum, probe first", "#0072B2", "s"),
    "full single": ("single task, together", "#E69F00", "D"),
    "full sum": ("sum, encoder and head together", "#D55E00", "^"),
}
_KINDS = {"single single": "single", "addition absolute": "sum"}  # experiment and metric


@book_figure
def regimes(df: pd.DataFrame) -> Figure:
    """Plot single-task accuracy and the sum's, probe first or with the head (table 3).

    A line joins the two of a regime: what addition loses. Records: `single` and `addition`.
    """
    df = of_vocabulary(df, "closed")
    named = looks(require_rows(where(df, method="full"), "there are no records of 'full'"))
    rows = where(df, model=named, split="test")
    kind = (rows["experiment"] + " " + rows["metric"]).map(_KINDS)
    rows = where(rows.assign(what=rows["method"] + " " + kind), what=_REGIMES)
    means = averaged(rows, "model", "what", "seed")
    plot = points(
        means, "model", hue="what", looks=_REGIMES, order=broken(named), markersize=6.5,
        height=1.6 + 0.62 * len(named),
    )  # fmt: skip
    middle, step = means.groupby(["model", "what"])["value"].mean(), 0.64 / (len(_REGIMES) - 1)
    for place, model in enumerate(named):
        for method, at in (("nonlinear", 1.5), ("full", 3.5)):
            ends = [(model, f"{method} {part}") for part in ("sum", "single")]
            if all(end in middle.index for end in ends):
                y, colour = place + (at - 2) * step, _REGIMES[f"{method} sum"][1]
                plot.first.plot(middle[ends], [y + step / 2, y - step / 2], color=colour, lw=1.2)
    return plot.finish(x="mean test accuracy of the tasks (%)")


@book_figure
def linearity_against_addition(linearity: pd.DataFrame, sums: pd.DataFrame) -> Figure:
    """Plot the cross-task linearity of each scheme against the accuracy of its vectors' sum.

    Args:
        linearity: Records of `experiments.cross_task` at alpha 0.5, of several models.
        sums: Records of `experiments.closed_addition`.
    """
    df = where(linearity, experiment="ctl", metric="distance", alpha=0.5, method="nonlinear")
    distance = require_rows(df).groupby("model")["value"].mean().rename("distance")
    sums = of_vocabulary(sums, "closed")
    kept = where(sums, experiment="addition", method="nonlinear")
    kept = kept.pivot_table(index="model", columns="metric", values="value")
    kept["gain"] = kept["absolute"] - probed(sums)
    table = kept.join(distance, how="inner").reset_index()
    pairs = [("distance", "normalised"), ("distance", "gain")]
    labels = {"distance": "1 − cosine, mean over\npairs and blocks", "gain": GAIN,
              "normalised": "normalised accuracy\nof the sum (%)"}  # fmt: skip
    plot = against(
        table, pairs, labels, hue="model", looks=looks(table), s=80, alpha=1.0, height=3.9,
        share=(True, False),
    )  # fmt: skip
    plot.grid.set(xmargin=0.12, ymargin=0.12)
    return plot.finish()


@book_figure
def ways_after_probing(df: pd.DataFrame, methods: Sequence[str]) -> Figure:
    """Plot the sum's gain over probing and its coefficient, by method of fine-tuning.

    `methods` are in the order of the legend. Records: `single` and `addition`.
    """
    df = of_vocabulary(df, "closed")
    rows = require_rows(where(df, method=list(methods), experiment="addition"))
    means = averaged(rows, "model", "method", "seed", "metric").join(probed(df), on="model")
    means.loc[means["metric"] == "absolute", "value"] -= means["probed"]
    means = where(means, metric=["absolute", "lambda"]).dropna().sort_values("metric")
    named = looks(rows)
    plot = points(
        means, "model", looks=method_looks(methods), order=broken(named), facets={"col": "metric"},
        height=1.4 + 0.55 * len(named),
    )  # fmt: skip
    level(plot.first, 0, along="y", **ZERO)
    return plot.finish(x={"absolute": GAIN, "lambda": "chosen coefficient λ"})
