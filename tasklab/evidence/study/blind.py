"""The blind test: effects that were predicted for a model before anybody recorded it, and grades.

`benchmarks/blind.py` made the predictions and describes their model; the file is never replaced.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from tasklab.evidence.records.claims import BY_ID
from tasklab.evidence.records.pairing import Split, pairs
from tasklab.models.zoo import replicas
from tasklab.storage import shipped

CLAIMS = {  # whose effect is predicted, positive as claimed; what is compared, in words
    "tangent-1-absolute": "sum: linearized − non-linear",
    "tangent-1-normalised": "sum, normalised: linearized − non-linear",
    "tangent-2-target": "target after negation: non-linear − linearized",
    "tangent-fig10-linearized": "disentanglement error: non-linear − linearized",
    "tangent-1-posthoc-normalised": "sum, normalised: post-hoc − non-linear",
    "tangent-1-posthoc-below": "sum, normalised: linearized − post-hoc",
    "linear-1-absolute-nonlinear": "sum: attention only − non-linear",
    "linear-1-absolute-linearized": "sum: attention only − linearized",
    "linear-fig3-equal": "single tasks: attention only − non-linear",
    "ctl-4.1-vit": "distance of features, hundredths: endpoint − merged",
}
MERGES = {  # merge − sum at their chosen coefficients, in words
    "tsv_m": "TSV-M − sum", "ties": "TIES − sum", "regmean": "RegMean − sum",
    "wudi": "WUDI − sum", "consensus": "Consensus − sum",
}  # fmt: skip
ERRORS = {  # method, in words: its disentanglement error over the search box, in percent
    "nonlinear": "disentanglement error, non-linear",
    "linearized": "disentanglement error, linearized",
    "attention": "disentanglement error, attention only",
}
QUANTITIES = {
    **CLAIMS,
    **{f"merge-{name}": words for name, words in MERGES.items()},
    **{f"error-{name}": words for name, words in ERRORS.items()},
}
SOURCES = {  # parts of chapters with the models that predictions were made from
    "tangent": ("editing", "pretraining", "replicas", "icons", "icons_replicas"),
    "linear_layers": ("editing", "icons"),
    "ctl": ("methods", "icons"),
    "merging": ("editing", "ways", "icons", "icons_replicas"),
}
LARGER = "icons"  # as large as `mini`, and of the world of `icons_s`
CELLS = {  # models of one world and size, which differ in their seed of pre-training
    "drawn images, small": replicas("mini"),
    "drawn images, large": ("mini",),
    "drawings, small": replicas("icons_s"),
    "drawings, large": (LARGER,),
}
_SEALED = "blind.csv"


def sealed() -> pd.DataFrame:
    """Return the predictions of all models.

    Returns:
        Columns model, quantity (a key of `QUANTITIES`), effect, low and high (95 % prediction
        interval; points, hundredths or percent), printed (by a paper for ViT-B/32; NaN for none)
        and day.
    """
    return pd.read_csv(io.BytesIO(shipped.content(Path(__file__).with_name(_SEALED))))


def effects(records: pd.DataFrame, models: Iterable[str], n_tasks: int = 8) -> pd.DataFrame:
    """Return the mean effect of each quantity in each model, over tasks and seeds.

    Args:
        records: Of chapters 1, 2, 3 and 5, with the search box.
        models: Names of models; missing records are left out.
        n_tasks: Number of tasks in a sum.

    Returns:
        Columns quantity, model, effect (as in `sealed`), variance (of the mean over seeds; NaN for
        one seed) and seeds (their number).
    """
    rows, split = [], Split(records)
    over_sum = BY_ID["merging-tsv-arithmetic"]
    claims = {name: BY_ID[name] for name in CLAIMS}
    claims |= {f"merge-{name}": dataclasses.replace(over_sum, left=name) for name in MERGES}
    for model in models:
        for name, claim in claims.items():
            table = pairs(claim, split, model, n_tasks)
            if len(table):
                scale = 100 if claim.experiment == "ctl" else 1
                rows.append((name, model, *_mean(table, "difference", scale)))
        box = records[(records["model"] == model) & (records["metric"] == "xi_classifier_box")]
        box = box[(box["experiment"] == "search_box") & (box["init"] == "pretrained")]
        for method in ERRORS:
            if len(table := box[box["method"] == method]):
                rows.append((f"error-{method}", model, *_mean(table, "value")))
    return pd.DataFrame(rows, columns=["quantity", "model", "effect", "variance", "seeds"])


def crossed(found: pd.DataFrame) -> pd.DataFrame:
    """Return effects by world and size of model.

    Args:
        found: `effects` of the models of `CELLS`; cells may lack some.

    Returns:
        A row for each quantity that all four have, in the order of `QUANTITIES`: a column for each
        of `CELLS`, the mean over its models; `size` and `world`, the absolute differences of
        `LARGER`'s effect to the smaller models of its world and to the other world's of its size.
    """
    by_model = found.pivot_table(index="quantity", columns="model", values="effect")
    cells = {
        name: by_model.reindex(columns=[*models]).mean(axis=1) for name, models in CELLS.items()
    }
    table = pd.DataFrame(cells).reindex([*QUANTITIES]).dropna()
    *_, other, smaller, own = CELLS
    return table.assign(
        size=(table[own] - table[smaller]).abs(), world=(table[own] - table[other]).abs()
    )


def _mean(table: pd.DataFrame, column: str, scale: float = 1) -> tuple[float, float, int]:
    by_seed = table.groupby("seed")[column].mean() * scale
    n = len(by_seed)
    return by_seed.mean(), by_seed.var(ddof=1) / n if n > 1 else math.nan, n


def graded(found: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions beside the measured quantities.

    Args:
        found: `effects` of models that were predicted.

    Returns:
        The columns of `sealed`; found, seeds, inside (the prediction interval), sign and off (the
        absolute error); `printed_sign` and `printed_off` grade the papers' number as a prediction.
    """
    own = found.rename(columns={"effect": "found"})[["model", "quantity", "found", "seeds"]]
    table = sealed().merge(own, on=["model", "quantity"])
    value = table["found"]
    return table.assign(
        inside=value.between(table["low"], table["high"]),
        sign=np.sign(value) == np.sign(table["effect"]),
        off=(value - table["effect"]).abs(),
        printed_sign=np.sign(value) == np.sign(table["printed"]),
        printed_off=(value - table["printed"]).abs(),
    )


def sentence(grades: pd.DataFrame, model: str) -> str:
    """Return a model's predictions counted by their grades, in words.

    Args:
        grades: What `graded` returns.
        model: One of those that were predicted.
    """
    rows = grades[grades["model"] == model]
    if rows.empty:
        return f"`{model}` is not recorded yet."
    both = rows.dropna(subset=["printed"])
    off, signs = both[["off", "printed_off"]].mean(), both[["sign", "printed_sign"]].sum()
    return (
        f"**`{model}`: {rows['inside'].sum()} of {len(rows)} effects are inside their prediction "
        f"interval, {rows['sign'].sum()} have the predicted sign.** Where a paper prints the "
        f"effect for ViT-B/32, our predictions miss by {off['off']:.1f} points on average with "
        f"{signs['sign']} of {len(both)} signs right; the paper's own number, taken as the "
        f"prediction, misses by {off['printed_off']:.1f} with {signs['printed_sign']}."
    )
