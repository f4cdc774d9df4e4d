"""How far an effect depends on which test images were drawn.

All seeds and both sides of a claim see the same images, so their sampling is not in the spread
over seeds: it is a source of error of its own.

Where records hold per-image correctness (`hits`), this variance is that of the
bootstrap over images, every draw serving both sides and all seeds. Of a mean this variance is
known without drawing (B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993): the
covariance of the images' contributions to two seeds' effects, over the number of images. Two
*different* seeds, because the interaction of image and seed is in the spread over seeds
already (N. Obuchowski and H. Rockette, Communications in Statistics B 24, 1995, 285-308, of readers
and patients; here seeds and images).

Where records hold counts alone, it is bounded by the binomial variances of both sides, as if they
saw different images. Two models of one origin answer most images alike, so this is wide; the page
"How a claim is judged" has the factor.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from tasklab.analyses.shares import packed as packed
from tasklab.analyses.shares import unpacked as unpacked
from tasklab.evidence.records.schema import ACCURACIES, COLUMNS
from tasklab.evidence.records.table import tidy

PROPORTIONS = (*ACCURACIES, "accuracy")  # in % of n images
DISAGREEMENTS = ("xi_classifier", "xi_classifier_box", "xi_pair")  # a sum of two such, 0 to 200 %
_OVERLAPPING = "all"  # a label of `sets_of`
_MEANS = "="  # how a text of numbers begins: no text of bits does
_QUARTILES = 1.349  # distance of a normal distribution's quartiles in standard deviations


def averaged(texts: Sequence[str], n: int) -> str:
    """Return each image's mean disagreement over models, packed as text.

    Two tasks' shares of changed predictions are added up, so that each of the 2 n images
    contributes twice its difference from its task's share, beside the common sum.

    Args:
        texts: Of each model which predictions changed, `packed`: on n images of one task, then on n
            of the other.
    """
    changed = np.mean([unpacked(text, 2 * n).reshape(2, n) for text in texts], axis=0)
    shares = changed.mean(1, keepdims=True)
    return _written(shares.sum() + 2 * (changed - shares))


def lost(before: str, after: str, n: int) -> str:
    """Return each image's part in the fall of a share (1, 0 or -1) as a text, of n images.

    Args:
        before: Which of n images the first model answers, `packed`.
        after: The same of the second model.
        n: Number of images.

    >>> given(lost(packed([True, True, False]), packed([False, True, True]), 3), 3).tolist()
    [1.0, 0.0, -1.0]
    """
    return _written(given(before, n) - given(after, n))


def _written(gives: Float[np.ndarray, " images"]) -> str:
    return _MEANS + base64.b64encode(gives.astype(np.float32).tobytes()).decode()


def box_means(
    df: pd.DataFrame, low: float = 0.0, high: float = 1.0, *, name: str = "box"
) -> pd.DataFrame:
    """Return the mean disentanglement error of each map over the cells in a square, as records.

    Args:
        df: Records of the experiment `disentanglement`, one a cell.
        low: Lowest coefficient of the square; the default is the search box of addition.
        high: Largest coefficient of the square.
        name: Ending of the names of the metrics.

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
    means = groups.agg(value=("value", "mean"), n=("n", "first"))
    if "hits" in cells:
        means["hits"] = [
            averaged(list(one["hits"]), int(one["n"].iloc[0]))
            if one["hits"].notna().all()
            else None
            for _, one in groups
        ]
    means = means.reset_index()
    return tidy(means.assign(metric=means["metric"] + f"_{name}"))


def given(text: str, n: int) -> Float[np.ndarray, " images"]:
    """Return each image's part in a share: 1 if it was answered, or as `averaged` has it.

    >>> given(averaged([packed([True, False, True, True]), packed([False] * 4)], 2), 2).tolist()
    [1.25, 0.25, 0.75, 0.75]
    """
    if not text.startswith(_MEANS):
        return unpacked(text, n).astype(float)
    return np.frombuffer(base64.b64decode(text.removeprefix(_MEANS)), np.float32).astype(float)


def sets_of(rows: pd.DataFrame, metric: str) -> np.ndarray:
    """Return a label for each row: rows with the same one were measured on the same images.

    Those of the control task are the same for every target. Pairs of tasks that overlap share the
    images of a task: `crossed` leaves them to `bounded`, which counts them by task.
    """
    tasks = rows["task"].astype(str)
    if metric == "control":
        return np.full(len(rows), "control")
    members = tasks.drop_duplicates().str.split("+")
    if members.explode().duplicated().any():
        return np.full(len(rows), _OVERLAPPING)
    return tasks.to_numpy()


def _proportion(share: pd.Series, n: pd.Series) -> pd.Series:
    """Return the variance of a proportion, with two images more of either sort: never zero."""
    middle = (share * n + 2) / (n + 4)
    return middle * (1 - middle) / n


def standard_errors(rows: pd.DataFrame, metric: str, absolute: pd.DataFrame | None) -> pd.Series:
    """Return the standard error of each record by the sampling of its images.

    Args:
        rows: Records of one metric, with the number of images in `n`.
        metric: Its name: a proportion, a disagreement, or a normalised accuracy.
        absolute: The rows' absolute accuracies in %, of the same index; needed for `normalised`.

    Returns:
        Standard errors in the metric's unit; the recorded ones (`error`) where there are any, NaN
        where n or the metric's distribution is unknown.
    """
    value = rows["value"].astype(float)
    n = rows["n"].astype(float) if "n" in rows else pd.Series(np.nan, rows.index)
    if metric in PROPORTIONS:
        errors = 100 * np.sqrt(_proportion(value.clip(0, 100) / 100, n))
    elif metric in DISAGREEMENTS:  # largest if both halves are equal
        errors = 100 * np.sqrt(2 * _proportion(value.clip(0, 200) / 200, n))
    elif metric == "normalised" and absolute is not None:
        top = absolute["value"].astype(float).clip(0.1, 100) / 100
        base = (100 * top / value.clip(lower=0.1)).clip(0.001, 1)
        relative = _proportion(top, n) / top**2 + _proportion(base, n) / base**2
        errors = value * np.sqrt(relative)  # to first order
    elif {"low", "high"} <= set(rows):
        errors = (rows["high"] - rows["low"]).abs() / _QUARTILES / np.sqrt(n)
    else:
        errors = pd.Series(np.nan, rows.index)
    return rows["error"].fillna(errors) if "error" in rows else errors


def bounded(pairs: pd.DataFrame, sets: np.ndarray, factor: float) -> float:
    """Return the variance of an effect by its images, as if both sides had images of their own.

    Rows of one set count as fully dependent, sets as independent; seeds share their images. Where
    pairs overlap, the images of each task are a set (`_by_task`).

    Args:
        pairs: Rows of `pairing.pairs` with `error` and `error_right`.
        sets: Label of each row's images (`sets_of`).
        factor: Of the right side in the claim.

    Returns:
        The variance in squared units of the metric; NaN if an error is unknown.
    """
    shares = pd.Series(sets).value_counts(normalize=True)
    total = 0.0
    for column, times in (("error", 1.0), ("error_right", factor)):
        if _OVERLAPPING in sets:
            total += _by_task(pairs["task"], times * pairs[column].to_numpy(float))
            continue
        each = times * pairs[column].groupby(sets).mean()
        total += float(((shares * each) ** 2).sum(skipna=False))
    return total


def _by_task(names: pd.Series, errors: np.ndarray) -> float:
    """Return the variance of a mean over overlapping pairs of tasks, `A+B`, by their images.

    How much of a pair's variance comes from either task's images is not recorded: of all
    divisions it is the one with the largest variance of the mean, found by alternation.
    """
    tasks = pd.get_dummies(names.astype(str).str.split("+").explode()).astype(float)
    of_pair = tasks.groupby(np.repeat(np.arange(len(names)), names.str.count(r"\+") + 1)).sum()
    known = pd.Series(errors).fillna(pd.Series(errors).mean()).to_numpy()
    of_pair, each = of_pair.to_numpy(), known / len(known)
    shares = of_pair / np.linalg.norm(of_pair, axis=1, keepdims=True)
    for _ in range(100):
        towards = of_pair * np.maximum(each @ shares, 1e-150)
        shares = towards / np.linalg.norm(towards, axis=1, keepdims=True)
    return float(((each @ shares) ** 2).sum())


def crossed(
    pairs: pd.DataFrame, sets: np.ndarray, contributions: Callable[[Mapping], np.ndarray]
) -> float:
    """Return the variance of an effect by its images, from the contribution of each image.

    Args:
        pairs: Rows of `pairing.pairs`, with their `seed`.
        sets: Label of each row's images (`sets_of`).
        contributions: Row -> N times the share of each of its N images in its difference (N,).

    Returns:
        The variance in squared units of the metric; NaN where seeds have other images, or rows
        share some of theirs.
    """
    if _OVERLAPPING in sets:
        return math.nan
    seeds, total = sorted(pairs["seed"].unique()), 0.0
    sizes, rows = pairs.groupby("seed").size().to_dict(), pairs.to_dict("records")
    for label in pd.unique(sets):
        parts: dict[int, np.ndarray] = {}
        for row in itertools.compress(rows, sets == label):
            part = contributions(row) / sizes[row["seed"]]
            parts[row["seed"]] = parts.get(row["seed"], 0.0) + part
        if len({len(part) for part in parts.values()}) != 1 or len(parts) != len(seeds):
            return math.nan  # not the same images at every seed
        total += shared(np.stack([parts[seed] for seed in seeds]))
    return max(0.0, total)


def shared(contributions: np.ndarray) -> float:
    """Return the variance that drawing images adds to an effect, at all seeds alike.

    The covariance over images between different seeds, over the number of images; the mean of all
    pairs of seeds. It may be negative where the true one is zero.
    """
    seeds, n = contributions.shape
    centred = contributions - contributions.mean(1, keepdims=True)
    every, own = (centred.sum(0) ** 2).sum(), (centred**2).sum()
    return float(every - own) / (n * n * seeds * (seeds - 1))
