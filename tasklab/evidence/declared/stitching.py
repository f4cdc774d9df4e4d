"""Records of stitched models and averages, and the sides of claims about them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tasklab.evidence.declared import shared
from tasklab.evidence.records.claims import Claim, Sides, by_seed
from tasklab.evidence.records.schema import Rows, declare


def _stitched(name: str) -> Rows:
    row = "the pre-trained back on a `front` up to `block`"
    return Rows(name, row, "stitched %", "block, front", figure=name)


def _stitched_sums(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Each front on both of its pair's tasks, over all coefficients: `both`, `one`, `edited`.

    A pair's images are those of its tasks, the same at every coefficient.
    """
    rows = rows[rows["subset"].str.contains("+", regex=False)]
    fronts = {"both": ("both",), "one": ("own", "other"), "edited": ("edited",)}
    sides = {}
    for side, names in fronts.items():
        part = rows[rows["front"].isin(names)]
        pairs = part.groupby(["seed", "subset"], dropna=False)
        tasks = part.drop_duplicates(["seed", "subset", "task"]).groupby(["seed", "subset"])
        means = pairs["value"].mean().to_frame().assign(n=tasks["n"].sum()).reset_index()
        sides[side] = means.assign(task=means["subset"])
    return sides


def _stitched_negations(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Accuracy at the largest coefficient of either front, and at 0 (`start`)."""
    own = rows["task"] == rows["subset"]
    rows = rows.assign(task=rows["subset"])
    chosen = own if claim.metric == "target" else ~own
    by_features, low = rows["front"] == "features", np.isclose(rows["alpha"], 0)
    high = np.isclose(rows["alpha"], rows["alpha"].max())
    return {
        "start": rows[chosen & by_features & low],
        "features": rows[chosen & by_features & high],
        "weights": rows[chosen & ~by_features & high],
    }


def _averages(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Accuracies of averaged weights against those of each model averaged (`alone`).

    Or, over the groups, their correlation with ensembles (`correlation`) against `one`.
    """
    rows = rows.fillna({"subset": ""})
    if claim.metric == "accuracy":
        averaged = rows[rows["metric"] == "averaged"]
        averaged = averaged.assign(member=averaged["subset"].str.split(" | ", regex=False))
        averaged = averaged.explode("member", ignore_index=True)
        averaged = averaged.assign(subset=averaged["subset"] + ": " + averaged["member"])
        alone = rows[rows["metric"] == "alone"].rename(columns={"subset": "member"})
        alone = averaged[["seed", "member", "subset"]].merge(alone, on=["seed", "member"])
        return {"averaged": averaged, "alone": alone}

    def numbers(part: pd.DataFrame) -> dict[str, float]:
        table = part[part["metric"] != "alone"]
        table = table.pivot(index="subset", columns="metric", values="value")
        return {"correlation": table["averaged"].corr(table["ensemble"]), "one": 1.0}

    return by_seed(rows, numbers)


STITCHED_ADDITION = declare(_stitched("stitched_addition"), sides={"stitched_sums": _stitched_sums})
STITCHED_NEGATION = declare(
    _stitched("stitched_negation"), sides={"stitched_negations": _stitched_negations}
)
AVERAGING = declare(
    Rows(
        "averaging",
        "the mean of weights, and of logits, of the models in `subset`",
        "averaged %, ensemble %, alone %",
        "hits",
        figure="averaging",
    ),
    sides={"averages": _averages},
)
CTL_AVERAGE = declare(shared.linearity("ctl_average"))
