"""Figures of what a step costs: of linearization, and of training a part of the weights.

Both take the table of `tasklab.analyses.cost.measure`.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from tasklab.errors import TasklabError
from tasklab.figures.style import COLOURS, METHOD_LABEL, WIDTH, book_figure, legend

_BLUE, _GREY, _ORANGE = COLOURS["linearized"], "#595959", "#E69F00"
_LINES = {  # a method's colour for our way to compute it, grey for the paper's listing
    "ours": {"color": _BLUE, "marker": "s", "label": "ours"},
    "listing": {"color": _GREY, "marker": "^", "label": "paper's listing"},
    "cached": {
        "color": _BLUE,
        "marker": "o",
        "mfc": "white",
        "ls": ":",
        "label": "cached features",
    },
}
_CLAIMS = {  # tangent paper, appendix B: from, to
    ("training", "time_ratio"): (2, 2),
    ("training", "peak_memory"): (2, 2),
    ("inference", "time_ratio"): (2, 3),
}
_TITLES = {"time_ratio": "time", "peak_memory": "peak memory"}


@book_figure
def linearization_cost(df: pd.DataFrame) -> Figure:
    """Draw time and memory of the linearized model as multiples of the non-linear one's.

    In orange what the tangent paper expects (appendix B): training takes about twice the time and
    the memory, inference two to three times the time. Dashed is the number of matrix products that
    `ours` makes, counted; whiskers are quartiles over rounds.

    Raises:
        TasklabError: If `standard` or every linearized variant is missing.
    """
    runs = [what for what in ("training", "inference") if what in set(df["what"])]
    variants = [v for v in _LINES if v in set(df["variant"])]
    if not variants or "standard" not in set(df["variant"]):
        raise TasklabError("nothing to draw: measure 'standard' and a linearized variant.")
    figure, panels = plt.subplots(
        len(runs), 2, figsize=(WIDTH, 0.7 + 2.3 * len(runs)), sharex=True, squeeze=False
    )
    batches = sorted(set(df["batch_size"]))
    for line, what in zip(panels, runs, strict=True):
        rows = df[df["what"] == what]
        for axes, metric in zip(line, _TITLES, strict=True):
            axes.axhline(1, color="#333333", lw=0.8)
            highest = max(_draw(axes, rows, metric, variant) for variant in variants)
            if metric == "time_ratio":
                _counted(axes, rows)
            _claim(axes, _CLAIMS.get((what, metric)))
            axes.set_ylim(0, 1.12 * max(highest, axes.dataLim.y1))
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 5, 10]))
            axes.set_ylabel("× non-linear")
            axes.set_title(f"{what}: {_TITLES[metric]}")
    for axes in panels[-1]:
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [str(size) for size in batches])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(x=0.12)
        axes.set_xlabel("batch size (images)")
    legend(figure, panels[0, 0])
    return figure


def _claim(axes: Axes, claim: tuple[float, float] | None) -> None:
    if claim is None:
        return
    low, high = claim
    look = {"color": _ORANGE, "label": "paper's estimate", "zorder": 1}
    if low == high:
        axes.axhline(low, lw=2.5, **look)
    else:
        axes.axhspan(low, high, alpha=0.3, **look)


def _draw(axes: Axes, rows: pd.DataFrame, metric: str, variant: str) -> float:
    """Draw one line, which may be empty but for its place in the legend; return its top."""
    table = rows[rows["metric"] == metric].set_index(["variant", "batch_size"])
    table = table[["value", "low", "high"]].sort_index()
    if variant not in table.index:
        axes.plot([], [], lw=1.8, **_LINES[variant])
        return 0.0
    found = table.loc[variant]
    if metric != "time_ratio":
        found = found.div(table.loc["standard", "value"], axis=0)
    axes.plot(found.index, found["value"], lw=1.8, **_LINES[variant])
    axes.vlines(found.index, found["low"], found["high"], lw=1.2, color=_LINES[variant]["color"])
    return float(found["high"].max())


def _counted(axes: Axes, rows: pd.DataFrame) -> None:
    table = rows[rows["metric"] == "flops"].pivot(
        index="batch_size", columns="variant", values="value"
    )
    if "ours" in table:
        ratio = table["ours"] / table["standard"]
        axes.plot(ratio.index, ratio, "--", color="#000000", lw=1.2, label="matrix products (ours)")


@book_figure
def paradigm_cost(df: pd.DataFrame, batch_size: int | None = None) -> Figure:
    """Draw what training by each method takes, with its ratio to non-linear fine-tuning.

    The light part of the memory is held between steps: weights, what is trained, the optimiser's
    state.

    Args:
        df: As measured.
        batch_size: The one to draw; by default the largest.

    Raises:
        TasklabError: If there are no training steps of that batch size.
    """
    rows = df[df["what"] == "training"]
    batch_size = rows["batch_size"].max() if batch_size is None else batch_size
    rows = rows[rows["batch_size"] == batch_size]
    if rows.empty:
        raise TasklabError(f"nothing to draw: no training step was measured at batch {batch_size}.")
    values = rows.pivot(index="variant", columns="metric", values="value")
    methods = rows.drop_duplicates("variant").set_index("variant")["method"]
    order = sorted(methods.index, key=lambda v: list(COLOURS).index(methods[v]))
    values, methods = values.loc[order], methods[order]
    labels = [
        f"{METHOD_LABEL[m]}{', listing 1' if v == 'listing' else ''}" for v, m in methods.items()
    ]
    colours = [_GREY if v == "listing" else COLOURS[m] for v, m in methods.items()]
    figure, panels = plt.subplots(
        2, 2, figsize=(WIDTH, 1.4 + 0.5 * len(order)), sharey=True, squeeze=False
    )
    bars = (
        ("seconds", 1e3, f"time of a step, batch {batch_size} (ms)"),
        ("peak_memory", 1, "peak memory (MiB), light: held"),
        ("trainable", 1e-6, "trained parameters (million)"),
        ("stored_bytes", 1e-6, "stored task vector (MB)"),
    )
    for axes, (metric, scale, label) in zip(panels.flat, bars, strict=True):
        lengths = values[metric] * scale
        axes.barh(range(len(order)), lengths, 0.7, color=colours)
        if metric == "peak_memory":
            held = lengths - values["step_memory"] * scale
            axes.barh(range(len(order)), held, 0.7, color="#FFFFFF", alpha=0.6)
        ratios = _ratios(values, metric)
        for y, (length, ratio) in enumerate(zip(lengths, ratios, strict=True)):
            axes.text(length, y, f" {length:.3g}{ratio}", va="center", fontsize=9)
        axes.set_xlim(0, lengths.max() * 1.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel(label)
        axes.grid(axis="y", visible=False)
        axes.set_yticks(range(len(order)), labels)
    panels[0, 0].invert_yaxis()
    return figure


def _ratios(values: pd.DataFrame, metric: str) -> list[str]:
    """Return the ratios to `standard` as text; for time the median of those within a round."""
    if "standard" not in values.index:
        return [""] * len(values)
    ratios = values[metric] / values.loc["standard", metric]
    if metric == "seconds":
        ratios = values["time_ratio"]
    return [f" ({ratio:.2f}×)" for ratio in ratios]
