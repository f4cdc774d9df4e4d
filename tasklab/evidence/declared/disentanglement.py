"""Records of weight disentanglement, and the sides of claims about them."""

from __future__ import annotations

import pandas as pd

from tasklab.evidence.records.claims import Claim, Sides
from tasklab.evidence.records.schema import Rows, declare
from tasklab.evidence.records.table import where


def _beyond(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Ratio of attention's error beyond coefficients of 1 to that below.

    Of the `representation`, in nats, and of the `classifier`, in per cent: ratios have no unit.
    """
    rows, keys = rows[rows["method"] == "attention"], ["seed", "task", "subset"]
    sides = {}
    for side in ("representation", "classifier"):
        box, far = (rows[rows["metric"] == f"xi_{side}_{end}"] for end in ("box", "beyond"))
        inner = box.set_index(keys)["value"].rename("inner")
        both = far.join(inner, on=keys, how="inner").drop(columns="hits", errors="ignore")
        sides[side] = both.assign(value=both["value"] / both["inner"])
    return sides


def _pretraining(claim: Claim, rows: pd.DataFrame, records: pd.DataFrame) -> Sides:
    """The disentanglement error of a model (`pretrained`), and of the untrained one (`random`)."""
    chosen = {"experiment": claim.experiment, "metric": claim.metric, "method": "nonlinear"}
    sides = {"pretrained": rows, "random": records}
    return {side: where(part, init=side, **chosen) for side, part in sides.items()}


DISENTANGLEMENT = declare(
    Rows(
        "disentanglement",
        "error of a pair of tasks at two coefficients; with `_box` the mean over a square",
        "xi_classifier %, xi_classifier_box %, xi_classifier_beyond %, "
        "xi_representation nats, xi_representation_box nats, xi_representation_beyond nats",
        "alpha1, alpha2, hits",
        figure="heatmaps",
    ),
    sides={"beyond": _beyond, "pretraining": _pretraining},
)
SEARCH_BOX = declare(
    Rows(
        "search_box",
        "error of a pair of tasks, the mean over 5 by 5 coefficients from 0 to 1",
        "xi_classifier_box %, xi_representation_box nats",
        "hits",
    )
)
EXACT_ALPHA = declare(
    Rows(
        "exact_alpha",
        "the sum along `alpha`: between knots of the exact curve, and on the grid",
        "normalised_exact %, normalised_grid %, chosen_exact %, chosen_grid %",
        figure="exact_curve",
    )
)
OWN_COEFFICIENTS = declare(
    Rows(
        "own_coefficients",
        "the sum with one coefficient for all, and with one of each task's own, its `alpha`",
        "absolute_shared %, absolute_own %, normalised_shared %, normalised_own %",
        figure="per_task_coefficients",
    )
)
