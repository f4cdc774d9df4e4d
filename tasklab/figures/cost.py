"""Figures of what a step costs: of linearization, and of training a part of the weights.

Both take the table of `tasklab.analyses.cost.measure`.
"""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from tasklab.errors import TasklabError
from tasklab.figures.marks import GIVEN, Panels, curves, ends, level
from tasklab.figures.rows import where
from tasklab.figures.style import COLOURS, METHOD_LABEL, book_figure

_GREY, _ORANGE = "#595959", "#E69F00"
_VARIANTS = {  # of the linearized model: a method's colour, grey for the paper's listing
    "ours": ("ours", COLOURS["linearized"], "s"),
    "listing": ("paper's listing", _GREY, "^"),
    "cached": ("cached features", "#56B4E9", "o"),
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
    `ours` makes, counted; bars are quartiles over rounds.

    Raises:
        TasklabError: If `standard` or every linearized variant is missing.
    """
    runs = [what for what in ("training", "inference") if what in set(df["what"])]
    looks = {v: look for v, look in _VARIANTS.items() if v in set(df["variant"])}
    if not looks or "standard" not in set(df["variant"]):
        raise TasklabError("nothing to draw: measure 'standard' and a linearized variant.")
    ratios = _over_standard(df)
    shown = ratios[ratios["variant"].isin(looks) & ratios["metric"].isin(_TITLES)]
    plot = curves(
        ends(shown, ["what", "metric", "variant", "batch_size"]), "batch_size", hue="variant",
        looks=looks, row="what", row_order=runs, col="metric", col_order=list(_TITLES),
        height=0.9 + 2.3 * len(runs), share=(True, False), err_style="bars",
        err_kws={"elinewidth": 1.2}, **GIVEN,
    )  # fmt: skip
    counted = where(ratios, metric="flops", variant="ours").assign(metric="time_ratio")
    plot.trace(counted.sort_values("batch_size"), "batch_size", ls="--", lw=1.2, color="#000000")
    drawn = pd.concat([shown, counted.assign(high=counted["value"])])
    batches = sorted(set(df["batch_size"]))
    for axes, what, metric in plot:
        level(axes, 1, ls="-", lw=0.8)
        claimed = _claim(axes, _CLAIMS.get((what, metric)))
        top = max(where(drawn, what=what, metric=metric)["high"].max(), claimed)
        axes.set(ylim=(0, 1.12 * top), title=f"{what}: {_TITLES[metric]}")
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 5, 10]))
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [str(size) for size in batches])
        axes.xaxis.set_minor_locator(NullLocator())
    extra = [Patch(color=_ORANGE, alpha=0.5, label="paper's estimate"),
             Line2D([], [], ls="--", color="#000000", label="matrix products (ours)")]  # fmt: skip
    return plot.finish(extra, x="batch size (images)", y="× non-linear")


def _over_standard(df: pd.DataFrame) -> pd.DataFrame:
    """Return costs as multiples of `standard`'s; times are so already, within each round."""
    by = ["what", "batch_size", "metric"]
    base = df[df["variant"] == "standard"].set_index(by)["value"].rename("base")
    table = df.join(base, on=by)
    table.loc[table["metric"] == "time_ratio", "base"] = 1.0
    for name in ("value", "low", "high"):
        table[name] = table[name] / table["base"]
    return table


def _claim(axes: Axes, claim: tuple[float, float] | None) -> float:
    """Draw what the paper expects; return its top."""
    if claim is None:
        return 0.0
    low, high = claim
    axes.axhspan(low - 0.02, high + 0.02, color=_ORANGE, alpha=0.5, lw=0, zorder=1)
    return high


@book_figure
def paradigm_cost(df: pd.DataFrame, batch_size: int | None = None) -> Figure:
    """Draw what training by each method takes, with its ratio to non-linear fine-tuning.

    The faint part of the memory is held between steps: weights, what is trained, the optimiser's
    state.

    Args:
        df: As measured.
        batch_size: The one to draw; by default the largest.

    Raises:
        TasklabError: If there are no training steps of that batch size.
    """
    rows = where(df, what="training")
    batch_size = rows["batch_size"].max() if batch_size is None else batch_size
    rows = where(rows, batch_size=batch_size)
    if rows.empty:
        raise TasklabError(f"nothing to draw: no training step was measured at batch {batch_size}.")
    values = rows.pivot(index="variant", columns="metric", values="value")
    methods = rows.drop_duplicates("variant").set_index("variant")["method"]
    order = sorted(methods.index, key=lambda v: list(COLOURS).index(methods[v]))
    values = values.loc[order]
    palette = {v: _GREY if v == "listing" else COLOURS[methods[v]] for v in order}
    shown = {
        "seconds": (1e3, f"time of a step, batch {batch_size} (ms)"),
        "peak_memory": (1, "peak memory (MiB), faint: held"),
        "trainable": (1e-6, "trained parameters (million)"),
        "stored_bytes": (1e-6, "stored task vector (MB)"),
    }
    table = values[list(shown)].mul({metric: scale for metric, (scale, _) in shown.items()})
    grid = sns.catplot(
        table.reset_index().melt("variant", var_name="metric"), x="value", y="variant",
        col="metric", col_wrap=2, kind="bar", hue="variant", order=order, hue_order=order,
        palette=palette, sharex=False, legend=False, saturation=1, width=0.7,
    )  # fmt: skip
    plot = Panels(grid, "variant", {}, {"col": "metric"}, height=1.6 + 0.52 * len(order))
    held = table["peak_memory"] - values["step_memory"]
    grid.axes_dict["peak_memory"].barh(range(len(order)), held, 0.7, color="#FFFFFF", alpha=0.6)
    names = {v: METHOD_LABEL[methods[v]] + ", listing 1" * (v == "listing") for v in order}
    for axes, _, metric in plot:
        bars = zip(table[metric], _ratios(values, metric), strict=True)
        for y, (length, ratio) in enumerate(bars):
            axes.text(length, y, f" {length:.3g}{ratio}", va="center", fontsize=9)
        axes.set_xlim(0, table[metric].max() * 1.75)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_yticks(range(len(order)), names.values())
    return plot.finish(x={metric: label for metric, (_, label) in shown.items()})


def _ratios(values: pd.DataFrame, metric: str) -> list[str]:
    """Return the ratios to `standard` as text; for time the median of those within a round."""
    if "standard" not in values.index:
        return [""] * len(values)
    ratios = values[metric] / values.loc["standard", metric]
    if metric == "seconds":
        ratios = values["time_ratio"]
    return [f" ({ratio:.2f}×)" for ratio in ratios]
