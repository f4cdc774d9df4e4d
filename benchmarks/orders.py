"""Fit the order in which `compare --fast` tries merges to recorded gains (`merging.order`).

A setting is a model, a kind of fine-tuning, a learning rate and a set of tasks; its gains are those
of each merge over the plain sum on test images, in points, means over tasks and seeds. The constant
order sorts merges by their mean gain over all settings, where a model, a kind and a number of
vectors together weigh as much as another.

The predicted orders add to each mean what vectors alone tell: ln of their number, ln of their
relative length, whether they were fine-tuned linearized or in attention only, and the mean cosine
of pairs, with ridge terms. Spectra are not recorded for these settings. Both are fitted without a
model, or without a model's kind and number of vectors, and tested on what was left out. The
predicted order is taken only if it orders more pairs rightly and its first three lose less.

    python benchmarks/orders.py            # write tasklab/analyses/merging/order.json
    python benchmarks/orders.py --check    # print what is right how often
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coefficients
import numpy as np
import pandas as pd

from tasklab.analyses import merging
from tasklab.analyses.merging import defaults, order
from tasklab.evidence.study import results

FILE = Path(merging.__file__).with_name(order.FILE)
KEYS = ["model", "method", "lr", "n_tasks", "subset"]
PARTS = (*coefficients.PARTS, "icons_replicas")
MANY = 10  # merges from which on a setting tells whether the best is among the first three
APART = 1.0  # points between two merges, from which on their order counts
RIDGE = 1.0
KNOWN_TERMS = ("number", "length", "linearized", "attention")
TERMS = {"constant": (), "predicted": KNOWN_TERMS, "with cosines": (*KNOWN_TERMS, "cosine")}


def gains() -> pd.DataFrame:
    """Return each setting's gain of each merge over the sum, with what its vectors tell."""
    tables = [results.recorded("merging", part)[0] for part in PARTS]
    rows = pd.concat(tables).query("metric == 'absolute' and split == 'test'")
    rows = rows[rows["merge"].isin(list(merging.METHODS)) & rows["method"].isin(coefficients.WAYS)]
    usual = rows["method"].map(coefficients.USUAL_RATES)
    rows = rows.assign(subset=rows["subset"].fillna(""), lr=rows["lr"].fillna(usual))
    rows = rows.drop_duplicates([*KEYS, "seed", "merge", "task"])
    found = rows.groupby([*KEYS, "merge"])["value"].mean().unstack("merge")
    found = found.sub(found["arithmetic"], axis=0).reset_index()
    of_tasks = rows.groupby(KEYS)["task"].agg(lambda of: tuple(sorted(set(of))))
    known, angles = coefficients.lengths(), cosines()
    small = known["icons_s", "nonlinear", 8e-4]

    def length(model: str, method: str, lr: float) -> float:
        nearest = small if model.startswith(("mini_s", "icons_s")) else defaults.USUAL
        return known.get((model, method, lr), nearest)

    def cosine(at: tuple[Any, ...]) -> float:
        pairs = itertools.combinations(of_tasks[at], 2)
        usual = coefficients.USUAL_RATES[at[1]] == at[2]
        of = [angles.get((*at[:2], *pair), np.nan) for pair in pairs] if usual else [np.nan]
        return float(np.mean(of))

    settings = [tuple(row) for row in found[KEYS].to_numpy()]
    found["length"] = [np.log(max(length(*at[:3]), defaults.LENGTHS[0])) for at in settings]
    found["cosine"] = [cosine(at) for at in settings]
    found["number"] = np.log(found["n_tasks"].astype(float) / defaults.EIGHT)
    found["length"] -= np.log(defaults.USUAL)
    for method in ("linearized", "attention"):
        found[method] = (found["method"] == method).astype(float)
    alike = found.groupby(["model", "method", "n_tasks"])["model"].transform("size")
    return found.assign(weight=1 / alike, setting=found["model"] + found["method"]
                        + found["n_tasks"].astype(int).astype(str))  # fmt: skip


def cosines() -> pd.Series:
    """Return recorded cosines by model, method and the two tasks, means over seeds."""
    tables = [results.recorded("merging", part)[0] for part in ("matrix", "pairs")]
    rows = pd.concat(tables).query("metric == 'cosine' and n_tasks == 2")
    pairs = rows["task"].fillna(rows["subset"]).str.split("+", expand=True)
    names = np.sort(pairs.to_numpy(str), axis=1)
    rows = rows.assign(one=names[:, 0], two=names[:, 1])
    return rows.groupby(["model", "method", "one", "two"])["value"].mean()


def means(table: pd.DataFrame) -> pd.Series:
    """Return each merge's mean gain over the sum, in points, where it is recorded."""
    known = {name: table.dropna(subset=[name]) for name in merging.METHODS if name in table}
    of = {name: rows for name, rows in known.items() if len(rows)}
    return pd.Series(
        {name: np.average(rows[name], weights=rows["weight"]) for name, rows in of.items()}
    )


def guesses(train: pd.DataFrame, test: pd.DataFrame, terms: tuple[str, ...]) -> pd.DataFrame:
    """Return what a fit to some settings expects of others: a row each, a column a merge."""
    asked, found = test[list(terms)].to_numpy(), {}
    for name, mean in means(train).items():
        of = train.dropna(subset=[name])
        X, weight = of[list(terms)].to_numpy(), of["weight"].to_numpy()
        middle = np.average(X, axis=0, weights=weight)
        drawn = RIDGE * np.eye(len(terms))
        apart = X - middle
        slopes = np.linalg.solve(
            apart.T @ (weight[:, None] * apart) + drawn, apart.T @ (weight * (of[name] - mean))
        )
        found[name] = mean + (asked - middle) @ slopes
    return pd.DataFrame(found, index=test.index)


def left_out(table: pd.DataFrame, by: str, terms: tuple[str, ...]) -> pd.DataFrame:
    """Return how a fit without each setting's `by` orders its merges."""
    found: list[list[Any]] = []
    for name in table[by].unique():
        test = table[table[by] == name]
        guess = guesses(table[table[by] != name], test, terms)
        found.extend(_judged(test, guess))
    head = ["setting", "merges", "rightly", "best", "lost"]
    return pd.DataFrame(found, columns=head)


def _judged(test: pd.DataFrame, guess: pd.DataFrame) -> Iterator[list[Any]]:
    for at, expected in guess.iterrows():
        true = test.loc[at, list(guess)].astype(float).dropna()
        pairs = [
            (expected[one] > expected[two]) == (true[one] > true[two])
            for one, two in itertools.combinations(true.index, 2)
            if abs(true[one] - true[two]) > APART and expected[one] != expected[two]
        ]
        first = expected[true.index].sort_values(ascending=False, kind="stable")
        lost = true.max() - true[first.index[: order.FIRST]].max()
        rightly = float(np.mean(pairs)) if pairs else np.nan
        yield [test.loc[at, "setting"], len(true), rightly, lost < 1e-9, lost]


def odds(table: pd.DataFrame, by: str, kind: str) -> dict[str, float]:
    """Return how good an order is: kinds and numbers of vectors of a model count as one setting.

    `rightly` is the share of pairs of merges, more than a point apart, in the right order, of all
    settings; the rest is of those with at least `MANY` merges.
    """
    found = left_out(table, by, TERMS[kind])
    many = found[found["merges"] >= MANY].groupby("setting")[["best", "lost"]].mean()
    return {
        "rightly": round(float(found.groupby("setting")["rightly"].mean().mean()), 3),
        "settings": len(many),
        "best": int((many["best"] > 0.5).sum()),
        "near": int((many["lost"] <= order.NEAR).sum()),
        "lost": round(float(many["lost"].mean()), 2),
        "most": round(float(many["lost"].max()), 2),
    }


@functools.cache
def compared() -> dict[str, dict[str, Any]]:
    """Return the odds of each kind of order, by what was left out; cosines where recorded."""
    every = gains()
    angled = every.dropna(subset=["cosine"])
    found = {}
    for by in ("model", "setting"):
        found[by] = {kind: odds(every, by, kind) for kind in ("constant", "predicted")}
    found["setting, with recorded cosines"] = {
        kind: odds(angled, "setting", kind) for kind in TERMS
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="print how often it is right")
    asked = parser.parse_args()
    for by, of in compared().items():
        print(f"left out: {by}", pd.DataFrame(of).T.to_string(), sep="\n")
    if asked.check:
        return
    best = compared()["model"]
    better = best["predicted"], best["constant"]
    if better[0]["rightly"] > better[1]["rightly"] and better[0]["lost"] < better[1]["lost"]:
        raise SystemExit("The predicted order is better now: let merging.order take it.")
    found = means(gains()).sort_values(ascending=False, kind="stable").round(2)
    told = {"order": found.to_dict(), "odds": best["constant"], "compared": compared()}
    FILE.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
