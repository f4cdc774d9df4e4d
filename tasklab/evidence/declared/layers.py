"""Records of comparisons of layers, and the sides of claims about them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tasklab.evidence.records.claims import Claim, Sides
from tasklab.evidence.records.schema import Rows, declare


def _at_equal_length(claim: Claim, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """How far two methods are from linear where their vectors are equally long.

    The longer one is taken back along itself to where the other ends, for each task and seed.
    """
    way = rows[(rows["metric"] == "gap_along") & rows["block"].isna()]
    ends = way[np.isclose(way["alpha"], 1)].set_index(["method", "seed", "task"])["size"]
    sides: dict[str, list] = {claim.left: [], claim.right: []}
    for (seed, task), part in way.groupby(["seed", "task"], sort=False):
        if not {claim.left, claim.right} <= set(part["method"]):
            continue
        length = min(ends[side, seed, task] for side in sides)
        for side, points in sides.items():
            mine = part[part["method"] == side].sort_values("size")
            gap = np.interp(length, [0, *mine["size"]], [0, *mine["value"]])
            points.append({**mine.iloc[-1], "value": gap, "alpha": np.nan})
    return {side: pd.DataFrame(points, columns=rows.columns) for side, points in sides.items()}


COSINES = declare(
    Rows(
        "cosines",
        "a vector against another task's, whole or in a part; its length over theta_0's",
        "cosine, cosine_part, norm",
        "other, block, projection",
        figure="cosine_matrices",
    )
)
ALIGNMENT = declare(
    Rows(
        "alignment",
        "what vectors do to a task's inputs of one projection, relative to its own",
        "relative, random",
        "part, block, projection",
        figure="layer_alignment",
    )
)
INTERFERENCE = declare(
    Rows(
        "interference",
        "what the others' vectors do to a task's features and accuracy",
        "predicted, predicted_ratio, change, change_ratio, alone %, together %, lost %",
    )
)
LINEARITY = declare(
    Rows(
        "linearity",
        "remainder over linear part of the features, or of a block, at distance `alpha`",
        "gap, gap_along, gap_block",
        "size, block",
        figure="linearity",
    ),
    sides={"at_equal_length": _at_equal_length},
)
GRADIENTS = declare(
    Rows(
        "gradients",
        "gradients of the losses of a pair (`T1+T2`), each at its own model",
        "gradient_cosine, gradient_distance",
    )
)
