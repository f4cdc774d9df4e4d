"""Predictions for CLIP from the recorded worlds, frozen with their day, and their grades.

`predictions.csv` holds what was predicted before anybody ran it. A prediction is the effect that a
headline has in the recorded runs of `mini`: sign, size and 95 % interval over seeds and tasks. The
headlines' sign depends on the learning rate, so they are predicted at five common rates. `RATES`
places the rates of ViT-B/32: the papers' 1e-5 stands for the rate that was chosen for `mini`.
"""

from __future__ import annotations

import datetime
import functools
import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tasklab.analyses.statistics import over_tasks
from tasklab.chapters import CHAPTERS
from tasklab.errors import LeftOutError
from tasklab.experiments import cross_task, search_box
from tasklab.experiments.editing import addition, negation, single
from tasklab.experiments.lab import Lab
from tasklab.experiments.registry import usual_runs
from tasklab.figures.merged_models import merge_table
from tasklab.figures.schemes import role
from tasklab.figures.style import METHOD_LABEL
from tasklab.models.zoo import FAMILIES
from tasklab.records.claims import BY_ID, Claim
from tasklab.records.judgement import verdict
from tasklab.records.matched import ONE_RATE
from tasklab.records.papers import beside, papers
from tasklab.records.table import combine, select, where
from tasklab.storage import shipped
from tasklab.study.judged import judged
from tasklab.study.results import recorded

FROZEN = Path(__file__).with_name("predictions.csv")
RATES = {1e-4: 1.25e-6, 2e-4: 2.5e-6, 4e-4: 5e-6, 8e-4: 1e-5, 1.6e-3: 2e-5}  # mini's: ViT-B/32's
PAPERS = 1e-5  # the rate of the papers and of published vectors
SIZES = {"vitb32": "ViT-B/32", "vitb16": "ViT-B/16", "vitl14": "ViT-L/14"}
_KEY = ["claim", "rate"]
_NAMED = {
    "tangent": "tangent space",
    "linear_layers": "linear layers",
    "closed_vocab": "closed vocabulary",
}
COLUMNS = ["claim", "sides", "metric", "unit", "rate", "effect", "low", "high", "day"]
_MEASURES: Mapping[str, Callable[..., pd.DataFrame]] = {
    "single": single,
    "addition": functools.partial(addition, n_tasks=(8,)),
    "negation": negation,
    "search_box": functools.partial(search_box, n_pairs=1),
    "ctl": functools.partial(cross_task, alphas=(0.5,)),
}
_WORDS = {
    "absolute": "sum of eight",
    "normalised": "sum of eight, normalised",
    "target": "forgotten task, after negation",
    "xi_classifier_box": "disentanglement error",
    "single": "single task",
    "distance": "cosine distance of features",
}


def predicted() -> pd.DataFrame:
    """Return the predictions that follow from the present records: `COLUMNS` without a day.

    The effect is positive where the claim is right, `rate` is that of ViT-B/32. What is recorded at
    one rate for both sides is predicted at `RATES`, other headlines at the rate of the papers.
    """
    predictable = [
        one
        for chapter in CHAPTERS
        for one in judged(chapter)
        if one.claim.headline
        and one.claim.experiment in _MEASURES
        and not one.claim.grows
        and "@" not in one.claim.left
        and one.outcome != "not tested"
    ]
    by_rate = {_plain(one.claim) for one in predictable if one.claim.setting == ONE_RATE}
    rows = []
    for one in predictable:
        claim, name = one.claim, _plain(one.claim)
        if claim.setting != (ONE_RATE if name in by_rate else "chosen"):
            continue
        interval = one.here if math.isnan(one.interval.low) else one.interval
        rows.append({
            "claim": name, "sides": " − ".join(_sides(claim)), "metric": claim.metric,
            "unit": claim.unit, "rate": RATES.get(claim.rate, PAPERS),
            **{end: round(value, 3) for end, value in interval._asdict().items()},
        })  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS[:-1])


def _plain(claim: Claim) -> str:
    return claim.id.partition("@")[0]


def _sides(claim: Claim) -> tuple[str, str]:
    return (claim.right, claim.left) if claim.relation == "<" else (claim.left, claim.right)


def freeze(day: str | None = None) -> None:
    """Add predictions of new claims and rates, with their day; what is written down stays."""
    table = predicted().assign(day=day or datetime.datetime.now(datetime.UTC).date().isoformat())
    if FROZEN.exists():
        table = pd.concat([frozen(), table]).drop_duplicates(_KEY, ignore_index=True)
    table.to_csv(FROZEN, index=False)
    shipped.lock()


def frozen() -> pd.DataFrame:
    """Return the predictions as they were written down: `COLUMNS`."""
    return pd.read_csv(io.BytesIO(shipped.content(FROZEN))).fillna({"unit": ""})


def moved() -> pd.DataFrame:
    """Return the frozen predictions whose records say something else by now.

    Their column `now` is the effect by the present records, NaN where there is none any more.
    """
    both = frozen().merge(predicted()[[*_KEY, "effect"]], "left", _KEY, suffixes=("", "_now"))
    both = both.rename(columns={"effect_now": "now"})
    return both[~((both["now"] - both["effect"]).abs() < 0.0015)]


def graded(measured: pd.DataFrame) -> pd.DataFrame:
    """Return frozen predictions beside measured effects: columns claim, rate, value and any others.

    `sign` is whether the sign is as predicted, `size` whether the value lies in the interval.
    """
    both = frozen().merge(measured, on=_KEY)
    return both.assign(
        sign=both["value"] * both["effect"] > 0,
        size=both["value"].between(both["low"], both["high"]),
    )


def printed() -> pd.DataFrame:
    """Return the effects of the predicted claims in the papers: claim, rate, model and value."""
    rows = []
    for name in dict.fromkeys(frozen()["claim"]):
        claim = BY_ID[name]
        wanted = {"experiment": claim.experiment, "metric": claim.metric}
        for model in SIZES:
            table = where(papers(claim.paper), model=model, **wanted)
            values = table.groupby("method")["value"].first()
            first, second = (values.get(side, math.nan) for side in _sides(claim))
            if not math.isnan(first - second):
                rows.append((name, PAPERS, model, round(first - second, 2)))
    return pd.DataFrame(rows, columns=[*_KEY, "model", "value"])


def orders() -> pd.DataFrame:
    """Return how far the recorded order of accuracies agrees with orders that are published.

    `rank` is Spearman's correlation, `low` and `high` are of a bootstrap over the n ranked values.
    """
    rows, merging, tangent = [], recorded("merging")[0], recorded("tangent")[0]
    for model in ("vitb32", "vitl14"):
        table = merge_table(merging, model)
        table = table[table["merge"] != "one model a task"].set_index("merge")
        for source in table.columns[1:]:
            rows.append(_ranked("merges", source, model, table, source))
    layers = combine(tangent, recorded("linear_layers")[0])
    for what, ours, paper, number, metric in (
        ("sums", tangent, "tangent", "1", "absolute"),
        ("sums", layers, "linear_layers", "1", "absolute"),
        ("negations", tangent, "tangent", "2", "target"),
    ):
        for model in SIZES:
            table = where(beside(ours, paper, number, model), metric=metric).set_index("called")
            rows.append(_ranked(what, f"{_NAMED[paper]}, table {number}", model, table))
    for number in ("1", "3"):
        source = f"{_NAMED['closed_vocab']}, table {number}"
        rows.append(_ranked("encoders", source, "", _encoders(number)))
    return pd.DataFrame([row for row in rows if row])


def _ranked(
    what: str, source: str, model: str, table: pd.DataFrame, column: str = "paper"
) -> dict[str, Any] | None:
    pairs = table[["here", column]].dropna().rename_axis("task").reset_index()
    if len(pairs) < 4:
        return None
    found = over_tasks(pairs, "here", column)
    return {"what": what, "source": source, "model": model, "n": len(pairs),
            "rank": found.value, "low": found.low, "high": found.high}  # fmt: skip


def _encoders(table: str) -> pd.DataFrame:
    part, method = {"1": ("editing", "nonlinear"), "3": ("together", "full")}[table]
    rows, cells = recorded("closed_vocab", part)[0], papers("closed_vocab", table)
    mine = select(rows, "addition", "absolute", method, 8).groupby("model")["value"].mean()
    cells = where(cells, experiment="addition", metric="absolute", method=method)
    cells = cells.set_index("model")["value"]
    theirs = next(dict(family) for family in FAMILIES if "mini" not in family.values())
    paper = {name: cells.get(theirs.get(role(name)), math.nan) for name in mine.index}
    return pd.DataFrame({"here": mine, "paper": pd.Series(paper)})


def shown(rows: pd.DataFrame) -> pd.DataFrame:
    """Return predictions, graded or not, as a table for people."""
    table = pd.DataFrame({
        "comparison": [" − ".join(map(_side, both.split(" − "))) for both in rows["sides"]],
        "of": rows["metric"].map(_WORDS),
        "rate": [np.format_float_scientific(x, trim="-", exp_digits=1) for x in rows["rate"]],
        "predicted": [_signed(one) for one in rows["effect"]],
        "95 % interval": [f"{_signed(a)}\N{NBSP}to\N{NBSP}{_signed(b)}"
                          for a, b in zip(rows["low"], rows["high"], strict=True)],
    })  # fmt: skip
    if "value" in rows:
        table["model"] = rows["model"].replace(SIZES)
        table["found"] = [_signed(one) for one in rows["value"]]
        table["sign"] = rows["sign"].map({True: "right", False: "wrong"})
        table["size"] = rows["size"].map({True: "inside", False: "outside"})
    return table.reset_index(drop=True)


def by_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """Return predictions as a table: one row per comparison, one column per learning rate."""
    return _wide(rows, "rate", lambda row: f"{row['predicted']} ({row['95 % interval']})")


def by_model(rows: pd.DataFrame) -> pd.DataFrame:
    """Return grades as a table: one row per comparison, one column per model.

    A cell has the effect that was found, and a check mark or what is wrong with its prediction.
    """

    def graded(row: Mapping[str, str]) -> str:
        wrong = [name for name in ("sign", "size") if row[name] in ("wrong", "outside")]
        return f"{row['found']} ({', '.join(wrong)} ✗)" if wrong else f"{row['found']} ✓"

    wide = _wide(rows, "model", graded)
    wide.insert(1, "predicted", by_rate(rows.drop_duplicates(["sides", "metric"])).iloc[:, -1])
    return wide


def _wide(rows: pd.DataFrame, columns: str, cell: Callable[[Any], str]) -> pd.DataFrame:
    table = shown(rows)
    keys = [table["of"] + ": " + table["comparison"], table[columns]]
    wide = pd.Series(list(map(cell, table.to_dict("records"))), index=keys).unstack(sort=False)
    return wide.fillna("").rename_axis(index="comparison", columns=None).reset_index()


def ranked(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rank correlations (`orders`) as a table for people."""
    cells = [
        f"{one.rank:.2f} ({one.low:.2f}\N{NBSP}to\N{NBSP}{one.high:.2f})"
        for one in rows.itertuples()
    ]
    table = rows[["what", "source", "model", "n"]].replace({"model": SIZES})
    table["rank"] = [one.replace("-", "−") for one in cells]
    table["source"] = table["source"].replace("task_vectors", "WUDI-Merging")
    return table.set_axis(["ranked", "published by", "model", "how many", "Spearman"], axis=1)


def _side(name: str) -> str:
    named = METHOD_LABEL | {"endpoint": "an endpoint", "merged": "mean of weights"}
    return named.get(name, name)


def _signed(value: float) -> str:
    return f"{value:+.{1 if abs(value) >= 0.15 else 2}f}".replace("-", "−")


def missing(lab: Lab, methods: tuple[str, ...]) -> int:
    """Return how many runs of methods are not in the lab's store."""
    return sum(not run.kept for run in usual_runs(lab, methods))


def check(lab: Lab, *, waiting: Callable[[str], None] = print) -> pd.DataFrame:
    """Measure the predictions whose runs are in the store, and return their grades (`graded`).

    `waiting` gets a line for each claim and rate that lacks runs.
    """
    rows, given = [], lab.parameters.vectors is not None
    for rate, wanted in frozen().groupby("rate"):
        if given and rate != PAPERS:
            continue
        there = lab if given else lab.sibling(tasks=lab.suite.names, lr=rate)
        for name in wanted["claim"]:
            claim = BY_ID[name]
            methods = _methods(claim)
            if lacks := 0 if given else missing(there, methods):
                waiting(f"{name} at {rate:g}: {lacks} runs are missing")
                continue
            try:
                measured = _MEASURES[claim.experiment](there, methods)
                if claim.metric == "normalised":
                    measured = combine(measured, single(there, methods))
            except LeftOutError as error:
                waiting(f"{name}: {error}")
                continue
            found = verdict(
                claim, measured, n_tasks=len(lab.suite.names), model=lab.parameters.model
            )
            if found.outcome != "not tested":
                rows.append({"claim": name, "rate": rate, "model": lab.parameters.model,
                             "seeds": found.n_seeds, "value": found.interval.effect})  # fmt: skip
    names = ["claim", "rate", "model", "seeds", "value"]
    return graded(pd.DataFrame(rows, columns=names))


def _methods(claim: Claim) -> tuple[str, ...]:
    return ("nonlinear",) if claim.experiment == "ctl" else tuple(dict.fromkeys(_sides(claim)))
