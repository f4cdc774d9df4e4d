"""What all figures share: a colour, marker and label for each method, sizes, and selections."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasklab.errors import TasklabError

# Okabe and Ito's palette, distinguishable with the common forms of colour blindness; its yellow is
# too faint on white, so black, a grey and a brown end the list. Markers repeat the colours.
COLOURS = {
    "pretrained": "#595959",
    "nonlinear": "#D55E00",
    "posthoc": "#56B4E9",
    "linearized": "#0072B2",
    "attention": "#009E73",
    "attention_posthoc": "#7FC9AF",
    "attention_bias": "#E69F00",
    "attention_mlp": "#CC79A7",
    "attention_mlp_bias": "#000000",
    "probe": "#A6A6A6",
    "full": "#7A4B00",
}
MARKERS = dict(zip(COLOURS, "|osD^Pv<>Xd", strict=True))
METHOD_LABEL = {
    "pretrained": "pre-trained",
    "nonlinear": "non-linear",
    "posthoc": "post-hoc linearized",
    "linearized": "linearized",
    "attention": "attention weights",
    "attention_posthoc": "attention, post-hoc lin.",
    "attention_bias": "attention + biases",
    "attention_mlp": "all linear weights",
    "attention_mlp_bias": "all linear + biases",
    "probe": "linear probe",
    "full": "encoder and head",
}
WIDTH = 7.5  # inches
STYLE = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.8,
    "figure.constrained_layout.use": True,
    "figure.dpi": 144,
}


def book_figure(function: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw in the book's style, and leave showing the figure to the notebook's last line."""

    @functools.wraps(function)
    def styled(*args: Any, **kwargs: Any) -> Figure:
        with plt.rc_context(STYLE):
            figure = function(*args, **kwargs)
        plt.close(figure)  # else a notebook shows it twice: as open figure and as result
        return figure

    return styled


def some(df: pd.DataFrame) -> None:
    """Raise a `TasklabError` if there is no row to draw."""
    if df.empty:
        raise TasklabError("nothing to draw: the table has no rows of this kind.")


def select(
    df: pd.DataFrame,
    experiment: str,
    metric: str | None = None,
    n_tasks: int | None = None,
    split: str = "test",
) -> pd.DataFrame:
    """Return the records of an experiment; raise a `TasklabError` if there are none.

    Args:
        df: Records.
        experiment: Its name.
        metric: Its name; `None` takes all.
        n_tasks: Number of added tasks; `None` takes all.
        split: Images the accuracy is of.
    """
    chosen = (df["experiment"] == experiment) & (df["split"] == split)
    if metric is not None:
        chosen &= df["metric"] == metric
    if n_tasks is not None:
        chosen &= (df["n_tasks"] == n_tasks).fillna(False).astype(bool)
    if not chosen.any():
        told = " ".join(str(word) for word in (experiment, metric, split) if word)
        raise TasklabError(f"nothing to draw: there are no records of {told!r}.")
    return df[chosen]


def methods_in(df: pd.DataFrame, *, baseline: bool = False) -> list[str]:
    """Return the methods in `df` in the book's order, without the pre-trained one by default."""
    present = set(df["method"])
    return [m for m in COLOURS if m in present and (baseline or m != "pretrained")]


def tasks_in(df: pd.DataFrame) -> list[str]:
    """Return the tasks in `df` in order of appearance."""
    return list(dict.fromkeys(df["task"]))


def legend(figure: Figure, axes: Axes) -> None:
    """Put the axes' legend above the whole figure, in one line where it fits."""
    handles, labels = axes.get_legend_handles_labels()
    lines = -(-sum(len(label) + 6 for label in labels) // 110)  # characters in the book's width
    look = {"columnspacing": 1.2, "handlelength": 1.5, "handletextpad": 0.5}
    columns = -(-len(labels) // max(1, lines))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, **look)
