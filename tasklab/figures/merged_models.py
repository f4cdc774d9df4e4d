"""Figures of merged models: in the network and its linearization, at equal accuracy; cost."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from tasklab.figures.budgets import against_alone
from tasklab.figures.merging import MERGE_LABEL, by_merge, merges_in
from tasklab.figures.rows import averaged, methods_in, most_tasks, select, where
from tasklab.figures.style import book_figure, method_looks
from tasklab.records.matched import merges_at_equal_accuracy

MODELS = {
    "network": ("in the network f", "#D55E00", "o"),
    "tangent": ("in its linearization f_lin", "#0072B2", "D"),
}
_TOLD = {
    "absolute": "test accuracy\n(%)",
    "xi_classifier": "changed predictions ξ\n(%)",
    "distance": "distance\nfrom linear",
}


@book_figure
def merge_models(df: pd.DataFrame) -> Figure:
    """Draw each merged vector in the network and in its tangent model.

    From the left: accuracy; predictions that differ from those of each task's own model of the same
    kind; and the distance, 1 - cos, of the merged model's features from the mean of the features of
    all tasks' own. Points are means over tasks and seeds, bars the standard deviation over seeds.

    Args:
        df: Records of the experiment `merged` of one model and method.
    """
    rows = most_tasks(select(df, "merged"))
    means = averaged(rows, "metric", "merge", "edited", "seed")
    means = means[means["metric"].isin(_TOLD)].sort_values(
        "metric", key=lambda names: names.map(list(_TOLD).index)
    )
    return by_merge(means, "edited", MODELS, "metric").finish(x=_TOLD)


@book_figure
def merge_rates(df: pd.DataFrame) -> Figure:
    """Draw merged accuracy against accuracy alone, along the learning rates of each method.

    A marker is a rate, as means over tasks and seeds. Methods are compared above one another: at
    equal accuracy alone.

    Args:
        df: Records of the experiment `merging_rates` of one model.
    """
    rows = select(df, "merging_rates")
    plot = against_alone(rows, "lr", "merge", MERGE_LABEL)
    return plot.finish(x="accuracy alone (%)", y="merged (%)", title=MERGE_LABEL)


def merge_rates_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return merged accuracies where all ways of fine-tuning are equally accurate alone.

    Args:
        df: Records of the experiment `merging_rates` of one model.

    Returns:
        A row a merge: the accuracy alone, and by way of fine-tuning the merged one, in %, as means
        over seeds.
    """
    merged = merges_at_equal_accuracy(df)
    table = merged.pivot_table(index="merge", columns="method", values="value")
    table.insert(0, "alone", merged.groupby("merge")["alone"].mean())
    ways = [method for method in methods_in(merged) if method in table]
    labels = {method: look[0] for method, look in method_looks(ways).items()}
    table = table.loc[merges_in(merged), ["alone", *ways]].rename(columns=labels, index=MERGE_LABEL)
    return table.rename_axis(columns=None).reset_index()


def merge_cost_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return what each merge of all tasks' vectors takes.

    Args:
        df: Records of the experiment `merging_cost` of one model and method.

    Returns:
        A row a merge: seconds, peak memory as a multiple of the vectors' own, training images
        passed through a model, and validation images looked at in the search.
    """
    rows = most_tasks(where(df, experiment="merging_cost"))
    names = {"seconds": "seconds", "memory_ratio": "memory / the vectors'",
             "passed": "images passed", "searched": "images searched"}  # fmt: skip
    if rows.empty:
        return pd.DataFrame(columns=["merge", *names.values()])
    table = rows.pivot_table(index="merge", columns="metric", values="value")[list(names)]
    table = table.loc[merges_in(rows)].rename(columns=names, index=MERGE_LABEL)
    counts = {name: int for name in list(names.values())[2:]}
    return table.astype(counts).rename_axis(columns=None).reset_index()
