"""Fit the coefficients that merges begin with to all that validation images chose (`defaults`).

Settings are a model, a kind of fine-tuning, a learning rate and a number of vectors. Within a world
and a number of vectors all settings together weigh as much as those of another; `mini` and its
smaller replicas count as two worlds. Slopes of methods that were recorded with few numbers or in
few settings are drawn to the mean slopes of the others by ridge terms.

    python benchmarks/coefficients.py            # write tasklab/analyses/merging/defaults.csv
    python benchmarks/coefficients.py --check    # how near they come, settings left out in turn
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from tasklab.analyses import merging
from tasklab.analyses.merging import defaults
from tasklab.evidence.study import results

FILE = Path(merging.__file__).with_name(defaults.FILE)
PARTS = (
    "editing", "fewer", "ways", "rates", "fewer_rates", "icons", "sets", "sets_large", "sets_ways",
    "encoders",
)  # fmt: skip
OF_SETTING = ["world", "model", "method", "lr", "n_tasks"]
WAYS = ("nonlinear", "linearized", "attention")  # others are penalised on other tasks' data
TERMS = ("level", "number", "beyond", "length", "size", "way")
KNOWN = ("arithmetic", "ties", "tsv_m", "regmean")  # in both worlds, with 2 to 20 vectors
RIDGE, LIGHT = 0.3, 0.1  # of slopes, in settings: to the mean ones, and of `KNOWN` to 0
ENCODERS = "encoders"  # of other pre-training: recorded, and not fitted
SMALL = 836_864  # numbers of icons_s and of the replicas of mini
USUAL_RATES = {"nonlinear": 8e-4, "linearized": 1.6e-3, "attention": 3.2e-3}


def world(model: str) -> str:
    """Return the world that a model's rows count for."""
    if model.startswith("icons"):
        return "icons"
    if model == "mini":
        return "mini"
    return "mini_s" if model.startswith("mini_s_") else ENCODERS


def lengths() -> pd.Series:
    """Return the recorded mean |tau| / |theta_0| by model, method and rate."""
    tables = []
    for chapter, part in (("tangent", "budgets"), ("tangent", "icons_budgets"),
                          ("merging", "matrix"), ("merging", "pairs")):  # fmt: skip
        rows = results.recorded(chapter, part)[0].query("metric == 'norm'").copy()
        if "lr" not in rows:
            rows["lr"] = rows["method"].map(USUAL_RATES)
        if part.endswith("budgets"):
            rows = rows[rows["steps"] == 240]
        tables.append(rows[["model", "method", "lr", "value"]])
    known = pd.concat(tables).groupby(["model", "method", "lr"])["value"].mean()
    # attention of mini is recorded at its usual rate: other rates as in the second world
    scale = known["mini", "attention", 3.2e-3] / known["icons_s", "attention", 3.2e-3]
    for lr, value in known["icons_s", "attention"].items():
        known.loc["mini", "attention", lr] = scale * value
    return known


def chosen() -> pd.DataFrame:
    """Return what validation images chose: a row for each merge, setting, group and seed."""
    tables = [results.recorded("merging", part)[0].assign(part=part) for part in PARTS]
    rows = pd.concat(tables)
    rows = rows[(rows["metric"] == "absolute") & (rows["split"] == "test")]
    rows = rows[rows["merge"].isin(list(merging.METHODS)) & rows["method"].isin(WAYS)].copy()
    rows["subset"] = rows["subset"].fillna("")
    rows["lr"] = rows["lr"].fillna(rows["method"].map(USUAL_RATES))
    keys = ["merge", "model", "method", "lr", "n_tasks", "subset", "seed"]
    found = rows.groupby(keys)[["alpha", "option"]].first().reset_index()
    found["n_tasks"] = found["n_tasks"].astype(int)
    found["world"] = found["model"].map(world)
    known = lengths()
    small = known["icons_s", "nonlinear", 8e-4]  # the replicas of mini have its size and recipe
    found["relative"] = [
        known.get((model, method, lr), small if at == "mini_s" else np.nan)
        for at, model, method, lr in found[OF_SETTING[:4]].to_numpy()
    ]
    return found.dropna(subset=["relative"])


def settings_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ln alpha of each merge and setting, its relative length and its weight.

    Of methods with an option, only runs count that chose the recommended value; all of them where
    there is none in any world.
    """
    rows = rows.assign(y=np.log(rows["alpha"]))
    taken = options(rows).map(_values)
    usual = [
        np.isnan(option) or taken.get(name, {}).get(n, option) == option
        for name, n, option in rows[["merge", "n_tasks", "option"]].to_numpy()
    ]
    rows = rows[usual]
    keys = ["merge", *OF_SETTING]
    found = rows.groupby(keys).agg(y=("y", "mean"), relative=("relative", "first")).reset_index()
    alike = found.groupby(["merge", "world", "n_tasks"])["y"]
    return found.assign(weight=1 / alike.transform("size"))


def design(table: pd.DataFrame) -> np.ndarray:
    """Return the terms of each row."""
    n = np.log(table["n_tasks"].to_numpy(float) / defaults.EIGHT)
    r = np.log(table["relative"].to_numpy(float).clip(defaults.LENGTHS[0]) / defaults.USUAL)
    sizes = np.where(table["world"] == "mini", defaults.SIZES[1], SMALL)
    s = np.log(sizes / defaults.SIZES[1])
    way = (table["method"] != "nonlinear").to_numpy(float)
    return np.stack([np.ones_like(n), n, n.clip(0) ** 2, r, s, way], axis=1)


def fitted(table: pd.DataFrame) -> pd.DataFrame:
    """Return the terms of each merge, with the spread and number of its settings."""
    table = table[table["world"] != ENCODERS]
    free = [_solved(table[table["merge"] == name], np.zeros(len(TERMS)), LIGHT) for name in KNOWN]
    slopes = np.mean(free, axis=0)
    rows = []
    for name in merging.METHODS:
        of = table[table["merge"] == ("arithmetic" if name == "average" else name)]
        if of.empty:
            continue
        terms = _solved(
            of, 0 * slopes if name in KNOWN else slopes, LIGHT if name in KNOWN else RIDGE
        )
        apart = of["y"] - design(of) @ terms
        spread = np.sqrt(np.average(apart**2, weights=of["weight"]))
        if name == "average":  # the sum over n
            terms = terms + np.array([np.log(defaults.EIGHT), 1, 0, 0, 0, 0])
        rows.append([name, *terms.round(3), round(spread, 3), len(of)])
    return pd.DataFrame(rows, columns=["merge", *TERMS, "spread", "settings"]).set_index("merge")


def _solved(table: pd.DataFrame, slopes: np.ndarray, ridge: float) -> np.ndarray:
    X, weight = design(table), table["weight"].to_numpy()[:, None]
    drawn = np.diag([0.0, *[ridge] * (len(TERMS) - 1)])
    aim = np.array([0.0, *slopes[1:]])
    return np.linalg.solve(
        X.T @ (weight * X) + drawn, X.T @ (weight[:, 0] * table["y"]) + drawn @ aim
    )


def options(rows: pd.DataFrame) -> pd.Series:
    """Return the value of each merge's option that was chosen most often, by number of vectors."""
    rows = rows[(rows["world"] != ENCODERS) & rows["option"].notna()]
    share = 1 / rows.groupby(["merge", "n_tasks", "world"])["option"].transform("size")
    keys = ["merge", "n_tasks", "option"]
    votes = rows.assign(share=share).groupby(keys)["share"].sum().reset_index()
    best = votes.sort_values("share", kind="stable").groupby(keys[:2])["option"].last()
    return best.groupby("merge").apply(
        lambda of: " ".join(f"{n}:{value:g}" for (_, n), value in of.items())
    )


def _values(text: str) -> dict[int, float]:
    pairs = (pair.split(":") for pair in text.split())
    return {int(n): float(value) for n, value in pairs}


def table() -> pd.DataFrame:
    """Return what `defaults.csv` has."""
    rows = chosen()
    found = fitted(settings_of(rows))
    found["options"] = options(rows).reindex(found.index).fillna("")
    return found


def left_out(by: str) -> pd.DataFrame:
    """Return each setting with how far off a fit without its world, model, ... is: `apart`."""
    every = settings_of(chosen())
    every = every[every["world"] != ENCODERS]
    parts = []
    for name in every[by].unique():
        terms = fitted(every[every[by] != name])[list(TERMS)]
        out = every[every[by] == name]
        out = out[out["merge"].isin(terms.index)]
        guess = (design(out) * terms.loc[out["merge"]].to_numpy()).sum(1)
        parts.append(out.assign(apart=guess - out["y"]))
    return pd.concat(parts)


def lost() -> pd.DataFrame:
    """Return what recommended coefficients of sums lose and gain on recorded curves, in points.

    A row is a group of tasks and a seed of `mini`; `lost` is against the best of 21 coefficients on
    the same validation images, `gain` against none. The best of 21 is largest also by luck:
    `judged` is the loss on test images against the coefficient that those validation images chose.
    Curves on test images are recorded of linearized vectors alone; elsewhere it is missing.
    """
    parts = [results.recorded(chapter)[0] for chapter in ("tangent", "linear_layers")]
    rows = pd.concat(parts).query("experiment == 'sweep'")
    rows = rows[(rows["metric"] == "absolute") & rows["method"].isin(WAYS)]
    rows = rows.assign(subset=rows["subset"].fillna(""))
    keys = ["method", "n_tasks", "subset", "seed"]
    rows = rows.drop_duplicates([*keys, "split", "task", "alpha"])
    known, found = lengths(), []
    for (method, n, subset, seed), of in rows.groupby(keys):
        curves = of.groupby(["split", "alpha"])["value"].mean()
        curve = curves["validation"]
        r = known["mini", method, USUAL_RATES[method]]
        vectors = defaults.Known(int(n), r, defaults.SIZES[1], method != "nonlinear")
        alpha = merging.METHODS["arithmetic"].recommended(vectors)["alpha"]
        value = np.interp(alpha, curve.index, curve)
        judged = np.nan
        if "test" in curves:
            test = curves["test"]
            judged = test[curve.idxmax()] - np.interp(alpha, test.index, test)
        row = [method, n, subset, seed, alpha, curve.max() - value, value - curve.iloc[0], judged]
        found.append(row)
    return pd.DataFrame(found, columns=[*keys, "alpha", "lost", "gain", "judged"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="print how near they come")
    if not parser.parse_args().check:
        table().to_csv(FILE, lineterminator="\n")
        return
    sums = lost()
    near = sums.assign(near=100 * (sums["lost"] <= 1)).groupby(["method", "n_tasks"])
    print(near[["alpha", "lost", "gain", "near"]].mean().round(2).to_string())
    print(f"sums within one point: {100 * (sums['lost'] <= 1).mean():.0f} % of {len(sums)}")
    both = sums.dropna(subset=["judged"])
    for name in ("lost", "judged"):
        share = 100 * (both[name] <= 1).mean()
        print(f"{name}, where test images are recorded: {share:.0f} % of {len(both)}")
    for by in ("world", "model", "method", "n_tasks", "lr"):
        found = left_out(by)
        near = found["apart"].abs() < np.log(1.5)
        print(by, found.groupby("merge")["apart"].agg(["mean", "std"]).loc[list(KNOWN)].round(2))
        print(f"within a factor of 1.5, {by} left out: {100 * near.mean():.0f} %")


if __name__ == "__main__":
    main()
