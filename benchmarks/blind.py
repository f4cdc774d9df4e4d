"""Predict the headline effects in worlds that are not recorded yet, from those that are.

Model of an effect e_qm (quantity q, pre-trained model m of world w):

    e_qm = mu_q + beta_q size_m + gamma_q length_m + u_qw + v_qm + noise_qm,

with size = log10 of the parameters and length = log10 of the pre-training samples, both relative to
`mini`; beta, gamma, u, v normal with variances that all quantities of a group share, estimated by
restricted maximum likelihood; the variance of the noise is that over seeds of fine-tuning. A world
includes its tasks and its images. A prediction is the best linear unbiased one (universal kriging),
its 95 % interval Student's with as many degrees of freedom as recorded models less two, and for the
mean effect over the default tasks of the new world at five seeds. Size and length are not
extrapolated: a model outside of the recorded range gets the nearest recorded values.

    python benchmarks/blind.py            # print them, and the check by leaving models out
    python benchmarks/blind.py --seal     # write tasklab/evidence/study/blind.csv, once
"""

from __future__ import annotations

import argparse
import datetime
import math
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import optimize, stats

from tasklab.evidence import study
from tasklab.evidence.study import blind, results

SEALED = Path(study.__file__).with_name("blind.csv")
SIZES = {"mini": 2_734_848, "small": 836_864}  # parameters of both towers
MODELS = {  # world, parameters, samples of pre-training in millions
    "mini": ("drawn", SIZES["mini"], 6.1),
    "mini_3": ("drawn", SIZES["mini"], 0.184),
    "mini_10": ("drawn", SIZES["mini"], 0.61),
    "mini_30": ("drawn", SIZES["mini"], 1.84),
    **{f"mini_s_seed{k}": ("drawn", SIZES["small"], 2.05) for k in range(3)},
    **{f"icons_s{end}": ("drawings", SIZES["small"], 6.1) for end in ("", "_seed1", "_seed2")},
}
# The text world's model is far larger and saw far more pairs: the nearest recorded values.
TARGETS = {"icons": ("drawings", SIZES["mini"], 6.1), "minilm": ("text", SIZES["mini"], 6.1)}
_T, _L, _M = "tangent", "linear_layers", "merging"
# Of ViT-B/32, in `records.papers`: paper, and method or row of the two sides, and their metric
PRINTED = {
    "tangent-1-absolute": (_T, "linearized", "nonlinear", "absolute"),
    "tangent-1-normalised": (_T, "linearized", "nonlinear", "normalised"),
    "tangent-2-target": (_T, "nonlinear", "linearized", "target"),
    "tangent-1-posthoc-normalised": (_T, "posthoc", "nonlinear", "normalised"),
    "tangent-1-posthoc-below": (_T, "linearized", "posthoc", "normalised"),
    "linear-1-absolute-nonlinear": (_L, "attention", "nonlinear", "absolute"),
    "linear-1-absolute-linearized": (_L, "attention", "linearized", "absolute"),
    "merge-tsv_m": (_M, "tall_masks: TSV-M", "tall_masks: Task arithmetic", "absolute"),
    "merge-consensus": (_M, "tall_masks: Consensus", "tall_masks: Task arithmetic", "absolute"),
    "merge-ties": (_M, "task_vectors: TIES", "task_vectors: Task arithmetic", "absolute"),
    "merge-wudi": (_M, "task_vectors: WUDI", "task_vectors: Task arithmetic", "absolute"),
    "merge-regmean": (_M, "task_vectors: RegMean", "task_vectors: Task arithmetic", "absolute"),
}


def recorded() -> pd.DataFrame:
    """Return the records of all models that predictions are made from."""
    return results.joined(
        *(study.recorded(name, part)[0] for name, of in blind.SOURCES.items() for part in of)
    )


def group(quantity: str) -> str:
    """Return which quantities share their variances: accuracies, or disentanglement errors."""
    return "errors" if quantity.startswith("error") or "fig10" in quantity else "accuracies"


def covariance(left: list[tuple], right: list[tuple], sd: np.ndarray) -> np.ndarray:
    """Return the covariance (M, N) of true effects of models: size, length and world."""

    def of(models: list[tuple], place: int) -> np.ndarray:
        origin = MODELS["mini"][place]
        return np.log10([float(m[place]) / origin for m in models])

    same = np.array([[a[0] == b[0] for b in right] for a in left], float)
    size, length = (np.multiply.outer(of(left, k), of(right, k)) for k in (1, 2))
    return sd[0] ** 2 * size + sd[1] ** 2 * length + sd[2] ** 2 * same


def fit(table: pd.DataFrame) -> np.ndarray:
    """Return standard deviations of size, length, world and model by REML, shared in a group."""
    groups = [
        ([MODELS[m] for m in rows["model"]], rows["effect"].to_numpy(), rows["variance"].to_numpy())
        for _, rows in table.groupby("quantity")
    ]

    def loss(log_sd: np.ndarray) -> float:
        sd, total = np.exp(log_sd), 0.0
        for models, y, noise in groups:
            v = covariance(models, models, sd) + np.diag(noise + sd[3] ** 2)
            factor, one = np.linalg.cholesky(v), np.ones(len(y))
            w1, wy = np.linalg.solve(factor, one), np.linalg.solve(factor, y)
            mean = w1 @ wy / (w1 @ w1)
            total += (
                2 * np.log(np.diag(factor)).sum() + np.log(w1 @ w1) + ((wy - mean * w1) ** 2).sum()
            )
        return total

    starts = [np.log([a, a, b, 1.0]) for a in (0.5, 3.0) for b in (1.0, 5.0)]
    found = [optimize.minimize(loss, s, method="L-BFGS-B", bounds=[(-3, 4)] * 4) for s in starts]
    return np.exp(min(found, key=lambda one: one.fun).x)


def predict(table: pd.DataFrame, target: tuple, sd: np.ndarray) -> tuple[float, float, float]:
    """Return the predicted effect of one quantity with its 95 % interval."""
    models, y = [MODELS[m] for m in table["model"]], table["effect"].to_numpy()
    noise = table["variance"].to_numpy()
    v = covariance(models, models, sd) + np.diag(noise + sd[3] ** 2)
    k, one = covariance(models, [target], sd)[:, 0], np.ones(len(y))
    weights = np.linalg.solve(v, np.stack([one, y, k], 1))
    mean = (one @ weights[:, 1]) / (one @ weights[:, 0])
    guess = mean + k @ (weights[:, 1] - mean * weights[:, 0])
    own = covariance([target], [target], sd)[0, 0] + sd[3] ** 2 + np.median(noise)
    variance = own - k @ weights[:, 2] + (1 - one @ weights[:, 2]) ** 2 / (one @ weights[:, 0])
    half = stats.t.ppf(0.975, len(MODELS) - 2) * math.sqrt(variance)
    return guess, guess - half, guess + half


def predictions(table: pd.DataFrame, targets: dict[str, tuple]) -> pd.DataFrame:
    """Return the predictions of all quantities for each target."""
    rows = []
    for _, of in table.groupby(table["quantity"].map(group)):
        sd = fit(of)
        for target, what in targets.items():
            for quantity, own in of.groupby("quantity", sort=False):
                rows.append((target, quantity, *predict(own, what, sd)))
    return pd.DataFrame(rows, columns=["model", "quantity", "effect", "low", "high"])


def left_out(table: pd.DataFrame) -> pd.DataFrame:
    """Return each model's and each world's effects beside what the others predict of them."""
    found = []
    worlds = {m: [n for n in MODELS if MODELS[n][0] == MODELS[m][0]] for m in MODELS}
    for kind, without in (("model", {m: [m] for m in MODELS}), ("world", worlds)):
        for model, names in without.items():
            own, others = (table[table["model"].isin(names) == x] for x in (True, False))
            own = own[own["model"] == model]
            told = predictions(others, {model: MODELS[model]})
            found.append(
                own.merge(told, on=["model", "quantity"], suffixes=("_found", "")).assign(left=kind)
            )
    return pd.concat(found, ignore_index=True)


def printed(quantity: str) -> float:
    """Return the effect that a paper prints for ViT-B/32; NaN for none."""
    if quantity not in PRINTED:
        return math.nan
    paper, *sides, metric = PRINTED[quantity]
    rows = pd.read_csv(Path(study.__file__).parents[1] / "records" / "papers.csv")
    rows = rows[(rows["paper"] == paper) & (rows["model"] == "vitb32") & (rows["metric"] == metric)]
    names = rows["table"] + ": " + rows["row"] if paper == _M else rows["method"]
    values = [float(rows.loc[names == side, "value"].iloc[0]) for side in sides]
    return values[0] - values[1]


def main() -> None:
    """Print the predictions, and write them where none are sealed yet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seal", action="store_true", help=f"write {SEALED.name}, once")
    sealing = parser.parse_args().seal
    if sealing and SEALED.exists():
        raise SystemExit(f"{SEALED.name} is sealed already: predictions are never replaced.")
    table = blind.effects(recorded(), list(MODELS))
    checked = left_out(table)
    inside = checked["effect_found"].between(checked["low"], checked["high"])
    checked = checked.assign(
        inside=inside,
        sign=np.sign(checked["effect_found"]) == np.sign(checked["effect"]),
        off=(checked["effect_found"] - checked["effect"]).abs(),
    )
    told = predictions(table, TARGETS)
    told = told.assign(printed=told["quantity"].map(printed), day=datetime.date.today().isoformat())
    pd.set_option("display.width", 160, "display.max_rows", 200)
    print(table.pivot(index="quantity", columns="model", values="effect").round(1).to_string())
    for _, of in table.groupby(table["quantity"].map(group)):
        print(group(of["quantity"].iloc[0]), "sd of size, length, world, model:", fit(of).round(2))
    print(
        checked.groupby(["left", checked["quantity"].map(group)])[["inside", "sign", "off"]]
        .mean()
        .round(2)
        .to_string()
    )
    print(told.round(2).to_string())
    if sealing:
        told.round(3).to_csv(SEALED, index=False)


if __name__ == "__main__":
    main()
