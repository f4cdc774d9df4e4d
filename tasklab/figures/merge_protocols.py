"""Published accuracies of merges, in three protocols, beside ours.

They are of different checkpoints, splits and searches, so that only orders within one are compared.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from tasklab.figures.marks import level
from tasklab.figures.merging import BASE, MERGE_LABEL, by_merge
from tasklab.figures.rows import averaged, most_tasks, where
from tasklab.figures.style import book_figure
from tasklab.records.papers import papers

PROTOCOLS = {
    "task_vectors": ("checkpoints of task_vectors", "#0072B2", "o"),
    "tall_masks": ("of TALL masks and TSV", "#009E73", "s"),
    "fusionbench": ("of FusionBench", "#CC79A7", "D"),
    "here": ("here", "#D55E00", "P"),
}
_SHORT = {"task_vectors": "task_vectors", "tall_masks": "TALL, TSV", "fusionbench": "FusionBench"}
SIZES = {"vitb32": "ViT-B/32", "vitl14": "ViT-L/14"}


def printed_merges() -> pd.DataFrame:
    """Return the published averages over eight tasks, by protocol.

    Returns:
        Columns protocol, model, merge (our name; `single` for each task's own model) and value.
    """
    names = {title: name for name, title in MERGE_LABEL.items()} | {"Single": "single"}
    rows = papers("merging").rename(columns={"table": "protocol"})
    return rows.assign(merge=rows["row"].map(names))[["protocol", "model", "merge", "value"]]


def merge_table(df: pd.DataFrame) -> pd.DataFrame:
    """Put the recorded accuracies of all tasks merged beside the published ones.

    Args:
        df: Records of the experiments `single` and `merging`, of one model.

    Returns:
        A row a merge, and one for each task's own model: our mean, standard deviation over seeds
        and seeds, and the published numbers by protocol and model; NaN where there is none.
    """
    wide = printed_merges().pivot_table(index="merge", columns=["protocol", "model"],
                                        values="value")  # fmt: skip
    columns = [(p, m) for p in PROTOCOLS for m in SIZES if (p, m) in wide]
    wide = wide[columns]
    wide.columns = [f"{_SHORT[p]} {SIZES[m].removeprefix('ViT-')}" for p, m in columns]
    wide.insert(0, "here", _own(df).groupby("merge")["value"].mean())
    wide.insert(1, "± seeds", _own(df).groupby("merge")["value"].std())
    order = ["single", *(name for name in MERGE_LABEL if name in wide.index)]
    wide = wide.loc[order].rename(MERGE_LABEL | {"single": "each task's own"})
    return wide.rename_axis("merge").reset_index()


def _own(df: pd.DataFrame) -> pd.DataFrame:
    """Return our accuracies with all tasks, merge by merge and of each task's own model."""
    tuned = where(df, method="nonlinear", split="test")
    if "merge" not in tuned:
        return pd.DataFrame(columns=["merge", "seed", "value"])
    mine = most_tasks(where(tuned, experiment="merging", metric="absolute"))
    alone = where(tuned, experiment="single").assign(merge="single")
    return averaged(pd.concat([mine, alone]), "merge", "seed")


@book_figure
def published_merges(*, here: pd.DataFrame | None = None) -> Figure:
    """Draw by how many points merges are above task arithmetic, here and in three protocols.

    Args:
        here: Records of the experiment `merging` of one model; without, the published ones alone.
    """
    rows = printed_merges()
    sides = [rows.assign(panel=rows["model"].map(SIZES), seed=0)]
    mine = pd.DataFrame() if here is None else _own(here)
    if len(mine):
        sides.insert(0, mine.assign(panel="here", protocol="here"))
    both, keys = pd.concat(sides, ignore_index=True), ["panel", "protocol", "seed"]
    base = where(both, merge=BASE).set_index(keys)["value"].rename("base")
    both = both[~both["merge"].isin([BASE, "single"])].join(base, on=keys).dropna(subset="base")
    both["value"] -= both["base"]
    looks = {name: look for name, look in PROTOCOLS.items() if name in set(both["protocol"])}
    plot = by_merge(both, "protocol", looks, "panel", apart=False)
    for axes, _, _ in plot:
        level(axes, 0, along="y", ls="-", lw=0.8)
    return plot.finish(x=lambda _: "points above\ntask arithmetic", title=str)
