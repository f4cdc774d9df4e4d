"""Figures of cross-task linearity: features layer by layer, averages, stitched models.

Tables are records of `tasklab.experiments`: `cross_task` and its kin, `averaging`,
`stitched_addition`, `stitched_negation`.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import pearsonr

from tasklab.errors import TasklabError
from tasklab.plots.style import COLOURS, MARKERS, METHOD_LABEL, WIDTH, book_figure, methods_in

BASE = "#595959"
SHADES = ("#56B4E9", "#0072B2", "#E69F00")  # of coefficients
FRONTS = {  # label, colour, marker
    "own": ("features of the task's own model", "#0072B2", "s"),
    "other": ("of the other task's", "#D55E00", "v"),
    "both": ("mean of both's features", "#009E73", "o"),
    "edited": ("features of mean weights", "#000000", "x"),
    "features": ("features subtracted", "#009E73", "o"),
    "weights": ("weights subtracted", "#000000", "x"),
}


def _some(df: pd.DataFrame) -> None:
    if df.empty:
        raise TasklabError("nothing to draw: the table has no rows of this kind.")


def _depth(df: pd.DataFrame) -> pd.Series:
    """Return the place of each row on the axis: blocks from 1, features after the last."""
    last = int(df["block"].max()) + 1 if df["block"].notna().any() else 0
    return df["block"].fillna(last).astype(int) + 1


def _ticks(axes: Axes, df: pd.DataFrame) -> None:
    places = sorted(set(_depth(df)))
    whole = df["block"].isna().any()
    names = [str(place) for place in places[:-1]] + ["out" if whole else str(places[-1])]
    step = -(-len(places) // 13)
    axes.set_xticks(places[::-1][::step], names[::-1][::step])


@book_figure
def cross_task(df: pd.DataFrame, tasks: Sequence[str] | None = None) -> Figure:
    """Draw 1 - cosine of merged and single features, layer by layer, a panel a pair or task.

    Points are means over images and bars quartiles (the paper's figures 2, 5, 7, 13, 15 and 17 to
    24); where a panel stands for several pairs, points are means of means.

    Args:
        df: Records with the metrics `distance` and `base` of one method and seed.
        tasks: The pairs to show; by default one panel with all of them.
    """
    _some(df)
    return _layers(df, tasks, ("base", "distance"), "1 − cosine")


@book_figure
def cross_task_coefficients(df: pd.DataFrame, tasks: Sequence[str] | None = None) -> Figure:
    """Draw the coefficient of merged features on single ones, layer by layer: 1 is equal length.

    Args:
        df: Records with the metric `coef` of one method and seed.
        tasks: The pairs to show; by default one panel with all of them.
    """
    _some(df)
    return _layers(df, tasks, ("coef",), "coefficient")


def _layers(
    df: pd.DataFrame, tasks: Sequence[str] | None, metrics: Sequence[str], label: str
) -> Figure:
    groups = [("all", df)] if tasks is None else [(t, df[df["task"] == t]) for t in tasks]
    columns = min(3, len(groups))
    lines = -(-len(groups) // columns)
    figure, panels = plt.subplots(
        lines, columns, figsize=(WIDTH, 0.9 + 2.3 * lines), sharey=True, squeeze=False
    )
    for axes in panels.flat[len(groups) :]:
        axes.set_visible(False)
    alphas = sorted(set(df["alpha"].dropna()))
    for axes, (name, part) in zip(panels.flat, groups, strict=False):
        _some(part)
        part = part.assign(depth=_depth(part))
        if "base" in metrics:
            look = {"color": BASE, "marker": "s", "label": "between the models"}
            _with_quartiles(axes, part[part["metric"] == "base"], 0, look)
        merged = part[part["metric"] == metrics[-1]]
        for i, alpha in enumerate(alphas):
            look = {"color": SHADES[i % len(SHADES)], "marker": "o^D"[i % 3]}
            look["label"] = f"merged, {alpha:g}" if len(alphas) > 1 else "merged"
            shift = 0.12 * (i - (len(alphas) - 1) / 2)
            _with_quartiles(axes, merged[np.isclose(merged["alpha"], alpha)], shift, look)
        if metrics == ("coef",):
            axes.axhline(1, color="#333333", lw=1, ls="--")
        else:
            axes.set_yscale("log")
        axes.set_title(name.replace("+", " and ") if name != "all" else "")
        axes.set_xlabel("block")
        _ticks(axes, part)
    for axes in panels[:, 0]:
        axes.set_ylabel(label)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure


def _with_quartiles(axes: Axes, rows: pd.DataFrame, shift: float, look: dict) -> None:
    found = rows.groupby("depth")[["value", "low", "high"]].mean()
    values = found["value"].to_numpy()
    # A mean may lie outside the quartiles of a skewed distribution; bars have no negative length.
    spread = [
        np.maximum(values - found["low"].to_numpy(), 0),
        np.maximum(found["high"].to_numpy() - values, 0),
    ]
    x = found.index.to_numpy() + shift
    axes.errorbar(x, values, yerr=spread, lw=1.4, ms=4, capsize=1.5, elinewidth=0.9, **look)


@book_figure
def cross_task_methods(df: pd.DataFrame) -> Figure:
    """Draw 1 - cosine and coefficient of several methods, layer by layer.

    Args:
        df: Records of `experiments.cross_task` of several methods; means over pairs, bands from the
            closest pair to the farthest.
    """
    _some(df)
    half = df[np.isclose(df["alpha"], 0.5)]
    half = half.assign(depth=_depth(half))
    figure, panels = plt.subplots(1, 3, figsize=(WIDTH, 3.3))
    titles = {"base": "between the models", "distance": "merged", "coef": "merged"}
    for axes, (metric, title) in zip(panels, titles.items(), strict=True):
        for method in methods_in(half):
            rows = half[(half["metric"] == metric) & (half["method"] == method)]
            found = rows.groupby(["depth", "task"])["value"].mean().groupby("depth")
            mean, low, high = found.mean(), found.min(), found.max()
            look = {"color": COLOURS[method], "marker": MARKERS[method]}
            axes.plot(mean.index, mean, lw=1.6, ms=4, label=METHOD_LABEL[method], **look)
            axes.fill_between(mean.index, low, high, color=COLOURS[method], alpha=0.12, lw=0)
        axes.set_title(title)
        axes.set_ylabel("coefficient" if metric == "coef" else "1 − cosine")
        axes.set_xlabel("block")
        _ticks(axes, half)
        if metric == "coef":
            axes.axhline(1, color="#333333", lw=1, ls="--")
        else:
            axes.set_yscale("log")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure


@book_figure
def averaging(df: pd.DataFrame) -> Figure:
    """Draw accuracies of averaged weights against those of ensembles (the paper's figure 4).

    Args:
        df: Records of `experiments.averaging`.
    """
    table = df[df["metric"] != "alone"].pivot(index="subset", columns="metric", values="value")
    _some(table)
    x, y = table["averaged"].to_numpy(), table["ensemble"].to_numpy()
    figure, axes = plt.subplots(figsize=(WIDTH, 4.2))
    axes.plot(x, y, "o", color="#0072B2", mec="white", mew=0.5, ms=6, label="a group of models")
    alone = df[df["metric"] == "alone"]["value"].to_numpy()
    ends = np.array([min(x.min(), y.min(), alone.min()), max(x.max(), y.max(), alone.max())])
    ends += np.array([-0.5, 0.5])
    axes.plot(ends, ends, color="#333333", ls="--", lw=1, label="equal")
    look = {"color": "#D55E00", "ms": 7, "ls": "", "marker": "_", "mew": 1.6, "clip_on": False}
    axes.plot(np.full(len(alone), ends[0]), alone, label="one model alone", **look)
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    axes.set_xlabel("accuracy of averaged weights (%)")
    axes.set_ylabel("accuracy of averaged logits (%)")
    if len(table) > 2 and np.ptp(x) and np.ptp(y):
        found = pearsonr(x, y)
        low, high = found.confidence_interval()
        axes.set_title(
            f"correlation {found.statistic:.2f} [{low:.2f}, {high:.2f}], {len(table)} groups"
        )
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


@book_figure
def stitched_addition(df: pd.DataFrame) -> Figure:
    """Draw accuracies of stitched models on both tasks of each pair (the paper's figure 9).

    Args:
        df: Records of `experiments.stitched_addition` at one block: lines join coefficients.
    """
    _some(df)
    names = list(dict.fromkeys(df["subset"]))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure, panels = plt.subplots(lines, columns, figsize=(WIDTH, 0.9 + 2.7 * lines), squeeze=False)
    for axes in panels.flat[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(panels.flat, names, strict=False):
        rows = df[df["subset"] == name]
        i, j = name.split("+")
        table = rows.pivot_table(index=["front", "alpha"], columns="task", values="value")
        own, other = table.loc["own"], table.loc["other"]
        # On the axis of its own task a model is "own", on that of the other one "other".
        ends = {
            f"features of θ₀ + λτ, {i}": (own[i], other[j], "#0072B2", "s"),
            f"features of θ₀ + λτ, {j}": (other[i], own[j], "#D55E00", "v"),
        }
        for front in ("both", "edited"):
            label, colour, marker = FRONTS[front]
            ends[label] = (table.loc[front][i], table.loc[front][j], colour, marker)
        for label, (x, y, colour, marker) in ends.items():
            axes.plot(x, y, color=colour, marker=marker, lw=0.7, ms=3.5, label=label)
        axes.set_xlabel(f"{i} (%)")
        axes.set_ylabel(f"{j} (%)")
        axes.legend(fontsize=7, loc="best")
    return figure


@book_figure
def stitched_depth(df: pd.DataFrame) -> Figure:
    """Draw accuracies of stitched models against the block that they are cut after.

    Args:
        df: Records of `experiments.stitched_addition` with `block=-1`: means over both tasks.
    """
    _some(df)
    names = list(dict.fromkeys(df["subset"]))
    figure, panels = plt.subplots(1, len(names), figsize=(WIDTH, 3.2), sharey=True, squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        rows = df[df["subset"] == name]
        for front in ("own", "other", "both", "edited"):
            label, colour, marker = FRONTS[front]
            means = rows[rows["front"] == front].groupby("block")["value"].mean()
            axes.plot(means.index + 1, means, color=colour, marker=marker, ms=4.5, label=label)
        axes.set_title(name.replace("+", " and "))
        axes.set_xlabel("cut after block")
    panels[0, 0].set_ylabel("mean accuracy of both tasks (%)")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure


@book_figure
def stitched_negation(df: pd.DataFrame) -> Figure:
    """Draw accuracies of stitched negation on the task and the control (the paper's figure 10).

    Args:
        df: Records of `experiments.stitched_negation`.
    """
    _some(df)
    names = list(dict.fromkeys(df["subset"]))
    figure, panels = plt.subplots(1, len(names), figsize=(WIDTH, 3.3), sharey=True, squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        rows = df[df["subset"] == name]
        for front in ("features", "weights"):
            label, colour, marker = FRONTS[front]
            for own, line in ((True, "-"), (False, "--")):
                part = rows[(rows["front"] == front) & ((rows["task"] == name) == own)]
                part = part.groupby("alpha")["value"].mean()
                told = f"{label}: {'the task' if own else 'control'}"
                look = {"color": colour, "marker": marker, "ms": 3.5, "ls": line}
                axes.plot(part.index, part, label=told, **look)
        axes.set_title(name)
        axes.set_xlabel("coefficient λ")
    panels[0, 0].set_ylabel("accuracy (%)")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


@book_figure
def segments(df: pd.DataFrame, features: pd.DataFrame | None = None) -> Figure:
    """Draw accuracy along the segments between models, beside the features' distance from linear.

    Args:
        df: Records of `experiments.segments` of one network: means over pairs, thin lines are
            pairs.
        features: Records of `experiments.scratch_linearity` of the same network.
    """
    _some(df)
    count = 2 if features is None else 3
    figure, panels = plt.subplots(1, count, figsize=(WIDTH, 3.3), squeeze=False)
    names = df["subset"].str.split("+", expand=True)
    kinds = np.select([df["task"] == names[0], df["task"] == names[1]], ["i", "j"], "start")
    looks = {
        "i": ("#0072B2", "task i"),
        "j": ("#D55E00", "task j"),
        "start": ("#595959", "pre-training task"),
    }
    for axes, metric in zip(panels[0], ("loss", "accuracy"), strict=False):
        rows = df.assign(kind=kinds)[df["metric"] == metric]
        for kind, (colour, label) in looks.items():
            part = rows[rows["kind"] == kind]
            for _, line in part.groupby(["subset", "seed"]):
                axes.plot(line["alpha"], line["value"], color=colour, lw=0.5, alpha=0.4)
            mean = part.groupby("alpha")["value"].mean()
            axes.plot(mean.index, mean, color=colour, lw=2, label=label)
        axes.set_xlabel("α (0: model j, 1: model i)")
        axes.set_ylabel({"loss": "loss (nats)", "accuracy": "accuracy (%)"}[metric])
        axes.set_ylim(bottom=0)
    if features is not None:
        axes = panels[0, 2]
        part = features.assign(depth=_depth(features))
        for metric, colour, label in (
            ("base", BASE, "between the models"),
            ("distance", "#009E73", "merged"),
        ):
            mean = part[part["metric"] == metric].groupby(["depth", "alpha"])["value"].mean()
            for depth, line in mean.groupby("depth"):
                shade = 0.3 + 0.7 * depth / part["depth"].max()
                last = depth == part["depth"].max()
                told = {"label": label} if last else {}
                x = line.index.get_level_values("alpha")
                axes.plot(x, line, color=colour, lw=1.2, marker="o", ms=3, alpha=shade, **told)
        axes.set_yscale("log")
        axes.set_xlabel("α")
        axes.set_ylabel("1 − cosine (faint: early layers)")
        axes.legend(fontsize=8)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure


@book_figure
def emergence(tables: Sequence[tuple[str, pd.DataFrame]], column: Sequence[str]) -> Figure:
    """Draw how cross-task linearity changes with a condition (the paper's figures 11 and 12).

    Args:
        tables: Title and records of `experiments.emergence`, a column of panels each.
        column: Which column of each table is the condition: `pretraining`, `finetuning`, `ratio`.
    """
    figure, panels = plt.subplots(2, len(tables), figsize=(WIDTH, 4.6), sharey="row", squeeze=False)
    for (title, df), name, (top, bottom) in zip(tables, column, panels.T, strict=True):
        _some(df)
        deepest = df["block"].max()
        chosen = df[df["block"].isin([0, deepest // 2, deepest])]
        for i, block in enumerate(sorted(set(chosen["block"]))):
            part = chosen[chosen["block"] == block]
            look = {"color": SHADES[i % 3], "marker": "o^D"[i % 3], "ms": 4}
            for axes, metric in ((top, "distance"), (bottom, "coef")):
                found = part[part["metric"] == metric].groupby(name)[["value", "low", "high"]]
                mean = found.mean()
                axes.plot(mean.index, mean["value"], label=f"block {int(block) + 1}", **look)
                axes.fill_between(
                    mean.index, mean["low"], mean["high"], color=SHADES[i % 3], alpha=0.12, lw=0
                )
            base = part[part["metric"] == "base"].groupby(name)["value"].mean()
            top.plot(base.index, base, color=SHADES[i % 3], ls=":", lw=1.1)
        top.set_yscale("log")
        top.set_title(title)
        bottom.axhline(1, color="#333333", lw=1, ls="--")
        bottom.set_xlabel("share of samples" if name == "ratio" else "epochs")
    panels[0, 0].set_ylabel("1 − cosine\n(dotted: between models)")
    panels[1, 0].set_ylabel("coefficient")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure
