"""What merges lose in the tangent model, in three metrics, and the merge that it chooses."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from tasklab.analyses.merging.registry import METHODS
from tasklab.figures.marks import points
from tasklab.figures.merging import MERGE_LABEL
from tasklab.figures.rows import averaged, most_tasks, select, where
from tasklab.figures.style import book_figure

_BY = {
    "features": ("features", "#0072B2", "o"),
    "normalised": ("features, tasks alike", "#009E73", "s"),
    "logits": ("logits", "#D55E00", "D"),
}
_LABELS = "labels"


@book_figure
def merge_loss(df: pd.DataFrame) -> Figure:
    """Plot E(τ) / E(0) of every merge in three metrics on validation images.

    At the option and the coefficient of least E in each; 0 loses nothing, 1 is the pre-trained
    model. Records: `merge_loss` of one model and method.
    """
    rows = most_tasks(select(df, "merge_loss", "relative_loss", split="validation"))
    means = averaged(rows, "merge", "chosen_by", "seed")
    order = means.groupby("merge")["value"].mean().sort_values().index
    plot = points(
        means, "merge", height=1.2 + 0.3 * len(order), hue="chosen_by", looks=_BY,
        order={name: MERGE_LABEL[name] for name in order},
    )  # fmt: skip
    plot.first.set_xlim(0, 1.05 * float(means["value"].max()))
    return plot.finish(x="E(τ) / E(0) in the tangent model")


def merge_choice_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return the merge and coefficient that each rule chooses, with its test accuracy in %.

    A row for the choice by labels of validation images and for each metric of E, which needs none;
    the last columns are points below the choice by labels, and Spearman's correlation over merges
    of −E with the test accuracy at labels' coefficients. Means over seeds. Records: `merge_loss`
    and `merging` of one model and method.
    """
    rows = most_tasks(where(df, experiment="merge_loss", merge=list(METHODS)))
    keys = ["seed", "chosen_by", "merge"]
    tested = rows[(rows["metric"] == "absolute") & (rows["split"] == "test")]
    labelled = most_tasks(where(df, experiment="merging", merge=list(METHODS), metric="absolute"))
    tested = pd.concat([tested, labelled.assign(chosen_by=_LABELS)])
    reached = tested.groupby(keys)["value"].mean()
    by_labels = where(rows, metric="absolute", split="validation", chosen_by=_LABELS)
    score = pd.concat(
        [by_labels, where(rows, metric="relative_loss").assign(value=lambda x: -x["value"])]
    )
    score = score.groupby(keys)["value"].mean()
    both = pd.DataFrame({"score": score, "reached": reached}).dropna().reset_index()
    if both.empty:
        return pd.DataFrame(columns=["chosen by", "merge", "test accuracy"])
    labels = reached.xs(_LABELS, level="chosen_by").rename("own")
    lines = []
    for by in (_LABELS, *_BY):
        part = both[both["chosen_by"] == by].join(labels, on=["seed", "merge"])
        best = part.loc[part.groupby("seed")["score"].idxmax()]
        ranks = [one[["score", "own"]].rank().corr().iloc[0, 1] for _, one in part.groupby("seed")]
        lines.append({
            "chosen by": _BY[by][0] if by in _BY else "labels",
            "merge": MERGE_LABEL[best["merge"].mode()[0]],
            "test accuracy": best["reached"].mean(),
            "rank correlation": sum(ranks) / len(ranks),
        })  # fmt: skip
    table = pd.DataFrame(lines)
    below = table["test accuracy"].iloc[0] - table["test accuracy"]
    table.insert(3, "below labels", below)
    return table
