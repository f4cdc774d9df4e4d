"""Maps over two coefficients as one number each."""

from __future__ import annotations

import pandas as pd

from tasklab.records import images
from tasklab.records.schema import COLUMNS, MAKE
from tasklab.records.table import tidy


def box_means(
    df: pd.DataFrame, low: float = 0.0, high: float = 1.0, *, name: str = "box"
) -> pd.DataFrame:
    """Return the mean disentanglement error of each map over the cells in a square, as records.

    Args:
        df: Records of the experiment `disentanglement`, one a cell.
        low: Lowest coefficient of the square; the default is the search box of addition.

    Returns:
        Records with the metrics `xi_classifier_box` (%) and `xi_representation_box` (nats), or with
        another ending, one a map; `hits` has the mean of its cells' for each image.
    """
    cells = df[df["experiment"] == "disentanglement"]
    near = 1e-9  # the end of a grid may miss the edge of the box by a rounding error
    for axis in ("alpha1", "alpha2"):
        cells = cells[cells[axis].between(low - near, high + near)]
    keys = [column for column in COLUMNS if column not in ("alpha", "value", "n")]
    groups = cells.groupby(keys, dropna=False, sort=False)
    whole = {MAKE: (MAKE, "first")} if MAKE in cells else {}
    means = groups.agg(value=("value", "mean"), n=("n", "first"), **whole)
    if "hits" in cells:
        means["hits"] = [
            images.averaged(list(one["hits"]), int(one["n"].iloc[0]))
            if one["hits"].notna().all()
            else None
            for _, one in groups
        ]
    means = means.reset_index()
    return tidy(means.assign(metric=means["metric"] + f"_{name}"))
