"""Findings: sentences written by hand, with numbers and verdicts from the recorded results.

The sentences and most of their numbers are in `findings.toml`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from tasklab.analyses.merging.registry import METHODS, SOLVED
from tasklab.chapters import CHAPTERS
from tasklab.errors import choose
from tasklab.figures.merging import MERGE_LABEL
from tasklab.records import rates
from tasklab.records.judgement import Verdict
from tasklab.records.statements import (
    effect_of,
    entries,
    evidence_link,
    how_many,
    on_how_many,
    on_these_tasks,
    over_pretrainings,
    plain,
    verdict_rows,
)
from tasklab.records.table import most_tasks, where
from tasklab.storage import shipped
from tasklab.study.answers import selected
from tasklab.study.results import recorded

_SENTENCES = tomllib.loads(shipped.content(Path(__file__).with_suffix(".toml")).decode())
_WITH_IMAGES = [name for name, rule in METHODS.items() if rule.needs]  # of training
_NO_MERGES = ["arithmetic", "best_span", "best", "best_loss", "joint", *SOLVED]
_EIGHT = {"experiment": "addition", "metric": "absolute", "n_tasks": 8}


class Finding(NamedTuple):
    """A finding for a page that is read in ten seconds.

    Attributes:
        number: The one number, in large type.
        title: What was found.
        text: Two sentences with at most three numbers.
        mark: The verdict of the statement behind it, with a link to its evidence.
        figure: Where the site shows it.
    """

    number: str
    title: str
    text: str
    mark: str
    figure: str


def findings(verdicts: Iterable[Verdict], model: str = "mini") -> tuple[Finding, ...]:
    """Return the landing page's three findings, less those that are not recorded."""
    said, numbers = _Said(verdicts), _numbers(model)
    three = [
        Finding(**{name: text.format(**numbers, mark=_By(said.mark)) for name, text in one.items()})
        for one in _SENTENCES["landing"]
    ]
    return tuple(one for one in three if "nan" not in one.number + one.text)


def found(chapter: str, verdicts: Iterable[Verdict], model: str = "mini") -> str:
    """Return a chapter's findings and how many of its statements are decided, as Markdown."""
    choose("chapter", chapter, CHAPTERS)
    verdicts = list(verdicts)
    judged = [entry for entry in entries(verdicts) if entry.outcome != "not tested"]
    said = _Said(verdicts, chapter)
    filled = _numbers(model) | {"mark": _By(said.mark), "verdict": _By(said.verdict)}
    sentences = (sentence.format(**filled) for sentence in _SENTENCES["chapters"][chapter])
    listed = [f"- {sentence}" for sentence in sentences if "nan" not in sentence]
    if not listed or not judged:
        return ""
    counts = how_many(entry.outcome for entry in judged)
    alone = how_many((entry.here or entry).outcome for entry in judged)
    total = f"The chapter has {on_how_many(judged)}: {counts}"
    total += "." if alone == counts else f". With these tasks held fixed: {alone}."
    return "\n".join(["**Found** in recorded runs, with 95 % intervals:\n", *listed, "", total])


class _By:
    """A function as a sentence calls it: `{verdict[ctl-linear]}`, with words as arguments."""

    def __init__(self, function: Callable[..., str]) -> None:
        self.function = function

    def __getitem__(self, words: str) -> str:
        return self.function(*words.split())


class _Said:
    """Verdicts on statements, as a chapter (`here`) or a page beside the chapters says them."""

    def __init__(self, verdicts: Iterable[Verdict], here: str = "") -> None:
        verdicts = list(verdicts)
        rows = verdict_rows(verdicts, cells=False)
        self.rows = rows[rows["setting"] == "chosen"].set_index("id") if len(rows) else rows
        self.rates, self.here = rates.over_rates(verdicts), here

    def mark(self, name: str) -> str:
        """Return a statement and its linked outcome; with a check if it survives correction."""
        if name not in self.rows.index:
            return ""
        row = self.rows.loc[name]
        kept = " ✓ survives the correction" if row["survives"] else ""
        return f"{row['short']}: {self._linked(row, plain(row['outcome']))}{kept}"

    def verdict(self, name: str, claim: str = "") -> str:
        """Return a statement's outcome as a link, its effect, and what other scopes say.

        `claim` is its claim in the table of learning rates, if it has one.
        """
        if name not in self.rows.index:
            return "not tested"
        row = self.rows.loc[name]
        link = self._linked(row, f"<strong>{plain(row['outcome'])}</strong>")
        if pd.isna(row["effect"]):
            return link
        depends = rates.told(self.rates, claim) if claim else ""
        more = filter(None, (on_these_tasks(row), over_pretrainings(row), depends))
        sentences = (one[0].upper() + one[1:] for one in more)
        return ". ".join([f"{link} ({effect_of(row)})", *sentences])

    def _linked(self, row: pd.Series, shown: str) -> str:
        return f'<a href="{evidence_link(row["evidence"], self.here)}">{shown}</a>'


def _numbers(model: str) -> dict[str, Any]:
    """Return numbers of recorded test images; NaN is not recorded."""
    ctl = {"model": model, "experiment": "ctl", "method": "nonlinear", "metric": "coef"}
    ratios = _of(recorded("ctl", "methods")[0], **ctl).dropna(subset="block")
    blocks = ratios.groupby("block")["value"].mean()
    means = {name: _mean(text, model) for name, text in _SENTENCES["numbers"].items()}
    ends = {"ratio_least": blocks.min(), "ratio_most": blocks.max()}
    return means | ends | _closed() | _merges(model) | _solved(model)


def _mean(text: str, model: str) -> float:
    """Return the mean of records as `answers.selected` names them."""
    usual = {"model": model, "init": "pretrained"}
    more = (f"{name}={value}" for name, value in usual.items() if f" {name}=" not in text)
    try:
        rows = selected(" ".join([text.format(model=model), *more]))
    except LookupError:
        return math.nan
    return round(float(rows["value"].mean()), 9)  # as tables do


def _closed() -> dict[str, Any]:
    rows = _of(recorded("closed_vocab")[0], init="pretrained")
    joint = recorded("closed_vocab", "together")[0]
    means = _of(rows, **_EIGHT).groupby(["method", "model"])["value"].mean()
    of_method = {name: means[means.index.get_level_values(0) == name].droplevel(0)
                 for name in ("nonlinear", "probe")}  # fmt: skip
    gain = (of_method["nonlinear"] - of_method["probe"]).dropna()
    chosen = _of(rows, experiment="addition", metric="lambda", method="nonlinear")
    together = _of(joint, method="full", **_EIGHT).groupby("model")["value"].mean()
    return {
        "closed_encoders": len(gain),
        "closed_least": gain.min(),
        "closed_most": gain.max(),
        "closed_share": 100 * (1 - gain / of_method["nonlinear"]).min() // 1,
        "closed_still": int((chosen.groupby("model")["value"].max() == 0).sum()),
        "joint_least": together.min(),
        "joint_most": together.max(),
    }


def _merges(model: str) -> dict[str, Any]:
    """Return the most accurate merges of all vectors, without and with training images."""
    means = _of_merges("editing", model)
    summed, means = means.get("arithmetic", math.nan), means.drop(_NO_MERGES, errors="ignore")
    without = means.drop(_WITH_IMAGES, errors="ignore")
    read = means[means.index.isin(_WITH_IMAGES)]
    if without.empty or read.empty:
        numbers = dict.fromkeys(("summed", "merged", "read"), math.nan)
        return numbers | {"merge": "", "with_images": ""}
    return {
        "summed": summed,
        "merge": MERGE_LABEL[without.idxmax()],
        "merged": without.max(),
        "with_images": MERGE_LABEL[read.idxmax()],
        "read": read.max(),
    }


def _solved(model: str) -> dict[str, Any]:
    """Return the accuracies of merges that are solved for, and the best published one beside."""
    means = _of_merges("minimum", model)
    published = means[means.index.isin([*METHODS])]
    return {
        "few": means.get("least_few", math.nan),
        "solved": means.get("least_features", math.nan),
        "published": MERGE_LABEL[published.idxmax()] if len(published) else "",
        "most": published.max(),
        "compared": len(published),
    }


def _of_merges(part: str, model: str) -> pd.Series:
    of_all = {"experiment": "merging", "metric": "absolute", "method": "nonlinear", "model": model}
    return most_tasks(_of(recorded("merging", part)[0], **of_all)).groupby("merge")["value"].mean()


def _of(records: pd.DataFrame, **chosen: object) -> pd.DataFrame:
    return where(records, split="test", **chosen)
