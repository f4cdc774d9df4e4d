"""Figures that compare schemes on grids: disentanglement, subsets of tasks, learning rates."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tasklab.figures.disentanglement import BOX, COLOUR_MAP, SCALES
from tasklab.figures.schemes import looks, scheme_legend
from tasklab.figures.style import METHOD_LABEL, WIDTH, book_figure, select, some


@book_figure
def scheme_maps(
    df: pd.DataFrame,
    *,
    method: str = "nonlinear",
    metric: str = "xi_classifier",
    box: tuple[float, float] = (-1.0, 1.0),
    columns: int = 4,
) -> Figure:
    """Draw the disentanglement errors of one pair of tasks, a panel a scheme (figures 1, 3, 4, 5).

    Args:
        df: Records of `experiments.disentanglement` of several models.
        method: Of the vectors; `full` is figure 5.
        metric: `xi_classifier` or `xi_representation`.
        box: The search box (figure 1), whose mean and number of cells the titles tell.
        columns: Panels side by side at most.
    """
    rows = df[(df["metric"] == metric) & (df["method"] == method)]
    some(rows)
    rows = rows[rows["task"] == rows["task"].iloc[0]]
    named, (label, usual) = looks(rows), SCALES[metric]
    columns = min(columns, len(named))
    lines = -(-len(named) // columns)
    side = min(2.6, (WIDTH - 1.0) / columns - 0.25)
    size = (WIDTH, (side + 0.8) * lines + 0.35)
    figure, panels = plt.subplots(
        lines, columns, figsize=size, squeeze=False, sharex=True, sharey=True
    )
    means = rows.groupby(["model", "alpha2", "alpha1"])["value"].mean()
    top = usual or float(means.max())
    low, high = box
    for axes, model in zip(panels.flat, named, strict=False):
        table = means[model].unstack("alpha1")
        x, y = table.columns.to_numpy(), table.index.to_numpy()
        mesh = axes.pcolormesh(x, y, table, cmap=COLOUR_MAP, vmin=0, vmax=top, shading="nearest")
        square = plt.Rectangle((low, low), high - low, high - low, fill=False, ec=BOX, lw=1.8)
        axes.add_patch(square)
        inside = [(a >= low - 1e-9) & (a <= high + 1e-9) for a in (y, x)]
        cells = table.to_numpy()[np.ix_(*inside)]
        told = f"{cells.mean():.1f} %" if metric == "xi_classifier" else f"{cells.mean():.2f} nats"
        name = named[model][0].replace(", ", ",\n") if columns > 3 else named[model][0]
        axes.set_title(f"{name}\nbox: {told} ({cells.size} cells)", fontsize=8.5)
        reach = int(np.floor(x.max() + 1e-9))
        axes.set(aspect="equal", xticks=[-reach, 0, reach], yticks=[-reach, 0, reach])
        axes.grid(visible=False)
    for axes in panels.flat[len(named) :]:
        axes.set_axis_off()
    one, _, two = rows["task"].iloc[0].partition("+")
    figure.supxlabel(f"$\\lambda_1$ ({one})", fontsize=10)
    figure.supylabel(f"$\\lambda_2$ ({two})", fontsize=10)
    figure.colorbar(mesh, ax=panels, label=label, shrink=0.9, aspect=25)
    return figure


@book_figure
def subset_curves(df: pd.DataFrame, *, method: str = "nonlinear") -> Figure:
    """Draw the accuracy of sums by the number of added tasks (figures 6 to 9).

    Left: normalised accuracy, a line through the means of each scheme, a dot for each subset.
    Right: the sum's gain over probing on the same subsets, absolute, as means, with the standard
    deviation over subsets where at most four schemes are drawn; it is left out where probing was
    not measured on the same images.

    Args:
        df: Records of `experiments.subsets`.
        method: Whose vectors are added.
    """
    rows = select(df, "subsets")
    mine, probes = rows[rows["method"] == method], rows[rows["method"] == "probe"]
    some(mine)
    named = looks(mine)
    shifts = np.linspace(-0.26, 0.26, len(named)) if len(named) > 1 else [0.0]
    keys = ["model", "seed", "subset", "n_tasks", "n"]  # the same images
    gains = mine[mine["metric"] == "absolute"].merge(
        probes[probes["metric"] == "absolute"][[*keys, "value"]], on=keys, suffixes=("", "_probe")
    )
    gains["gain"] = gains["value"] - gains["value_probe"]
    panels = 2 if len(gains) else 1
    figure, axes = plt.subplots(1, panels, figsize=(WIDTH, 4.1), squeeze=False)
    left, right = axes[0, 0], axes[0, -1]
    for (model, (label, colour, marker)), shift in zip(named.items(), shifts, strict=True):
        share = mine[(mine["model"] == model) & (mine["metric"] == "normalised")]
        share = share.groupby(["n_tasks", "subset"], as_index=False)["value"].mean()
        x = share["n_tasks"].astype(float)
        left.plot(x + shift, share["value"], "o", ms=2.2, color=colour, alpha=0.4, mew=0)
        mean = share.groupby("n_tasks")["value"].mean()
        left.plot(mean.index, mean, marker=marker, ms=5, color=colour, label=label, lw=1.5)
        gain = gains[gains["model"] == model].groupby(["n_tasks", "subset"])["gain"].mean()
        if len(gain):
            found = gain.groupby("n_tasks").agg(["mean", "std"])
            crowded = len(named) > 4
            x = found.index.astype(float) + (0 if crowded else shift)
            spread = None if crowded else found["std"].fillna(0)
            look = {"fmt": marker, "ms": 5, "lw": 1.2, "capsize": 2, "ls": "-", "color": colour}
            right.errorbar(x, found["mean"], spread, **look)
    if panels == 2:
        right.axhline(0, color="#333333", lw=0.8)
        right.set_ylabel("gain over probing (points)")
    left.set_ylabel("normalised test accuracy (%)")
    for panel in axes[0]:
        panel.set_xlabel("number of added tasks")
        panel.set_xticks(sorted(mine["n_tasks"].unique()))
    scheme_legend(figure, left)
    return figure


@book_figure
def learning_rate(df: pd.DataFrame) -> Figure:
    """Draw validation accuracy by learning rate (appendix C), the best rate of each line larger.

    Crosses at the bottom are runs that diverged. The dotted line is the minimum of the probe's
    convex problem, which has no rate.

    Args:
        df: Records of `experiments.learning_rates`.
    """
    rows = df[df["experiment"] == "learning_rate"]
    some(rows)
    methods = [m for m in ("probe", "nonlinear", "full") if m in set(rows["method"])]
    methods += [m for m in dict.fromkeys(rows["method"]) if m not in methods]
    figure, panels = plt.subplots(1, len(methods), figsize=(WIDTH, 3.3), sharey=True, squeeze=False)
    titles = {"probe": "linear probe (AdamW)", "nonlinear": "encoder, after probing",
              "full": METHOD_LABEL["full"]}  # fmt: skip
    for axes, method in zip(panels[0], methods, strict=True):
        mine = rows[rows["method"] == method]
        for model, (label, colour, marker) in looks(rows).items():
            found = mine[mine["model"] == model]
            seeds = found[found["metric"] == "single"].groupby("lr")["value"]
            mean = seeds.mean()
            axes.plot(mean.index, mean, marker=marker, color=colour, label=label, ms=5)
            if len(mean):
                best = mean.idxmax()
                axes.plot(best, mean[best], marker, ms=9, color=colour, mec="#333333", zorder=5)
            exact = found[found["metric"] == "exact"]["value"]
            if len(exact):
                axes.axhline(exact.mean(), ls=":", lw=1.4, color=colour)
            gone = found[found["metric"] == "diverged_at"]["lr"]
            if len(gone):
                axes.plot(gone, [0] * len(gone), "x", ms=7, color=colour, mew=1.8, clip_on=False)
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.set_title(titles.get(method, METHOD_LABEL.get(method, method)))
    panels[0, 0].set_ylabel("validation accuracy (%)")
    panels[0, 0].set_ylim(bottom=0)
    scheme_legend(figure, panels[0, 0])
    return figure
