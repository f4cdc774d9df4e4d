"""Findings of the landing page: sentences written by hand, with numbers of the recorded results.

The sentences and most of their numbers are in `findings.toml`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from tasklab.analyses.merging.registry import METHODS
from tasklab.evidence.figures.labels import MERGE_LABEL
from tasklab.evidence.records.judgement import Verdict
from tasklab.evidence.records.statements import verdict_rows
from tasklab.evidence.records.table import where
from tasklab.evidence.study import chips, sections
from tasklab.evidence.study.answers import selected
from tasklab.evidence.study.numbers import accuracies_of_merges, numbers_of_merges, word_of
from tasklab.evidence.study.results import recorded
from tasklab.storage import shipped

_SENTENCES = tomllib.loads(shipped.content(Path(__file__).with_suffix(".toml")).decode())


class Finding(NamedTuple):
    """A finding of the landing page.

    Attributes:
        number: The one number, in large type.
        title: The finding in a few words.
        text: Two sentences with at most three numbers.
        mark: The verdict of the statement behind it, with a link to its row.
        elsewhere: The same number and verdict in the other recorded worlds.
        figure: Where the site shows it.
    """

    number: str
    title: str
    text: str
    mark: str
    elsewhere: str
    figure: str


def findings(verdicts: Iterable[Verdict], model: str = "mini") -> tuple[Finding, ...]:
    """Return the recorded ones of the landing page's three findings."""
    rows = verdict_rows(verdicts, cells=False)
    rows = rows[rows["setting"] == "chosen"].set_index("id", drop=False) if len(rows) else rows
    numbers, found = _numbers(model), []
    for one in _SENTENCES["landing"]:
        told = {name: one[name].format(**numbers) for name in ("number", "title", "text")}
        if "nan" in told["number"] + told["text"]:
            continue
        statement = one["statement"]
        known = statement in rows.index
        mark = _mark(rows.loc[statement]) if known else ""
        elsewhere = _elsewhere(one, model) if known else ""
        found.append(Finding(**told, mark=mark, elsewhere=elsewhere, figure=one["figure"]))
    return tuple(found)


def _mark(row: Mapping[str, Any]) -> str:
    kept = " ✓ survives the correction" if row["survives"] else ""
    return f"{row['short']}: {chips.chip(row, row['id'], beside=False)}{kept}"


def _elsewhere(one: Mapping[str, str], model: str) -> str:
    """Return the number and verdict of a finding in each other recorded world."""
    chapter, section = one["section"].split("/")
    told = []
    for other, label in sections.recorded_worlds(chapter).items():
        there = sections.of_records(chapter, other)
        numbers = there.numbers.get(section, {})
        if other == model or not numbers or any(x != x for x in numbers.values()):
            continue
        shown = one["there"].format(**numbers)
        if one["statement"] in there.rows.index:
            row = there.rows.loc[one["statement"]]
            if row["outcome"] != "not tested":
                shown += f" ({chips.verdict_word(row)})"
        told.append(f"{label} (<code>{other}</code>): {shown}")
    return "; ".join(told)


def _numbers(model: str) -> dict[str, Any]:
    """Return numbers of recorded test images; NaN is not recorded."""
    means = {name: _mean(text, model) for name, text in _SENTENCES["numbers"].items()}
    return means | numbers_of_merges(_tested("editing"), model) | _solved(model)


def _mean(text: str, model: str) -> float:
    """Return the mean of records as `answers.selected` names them."""
    usual = {"model": model, "init": "pretrained"}
    more = (f"{name}={value}" for name, value in usual.items() if f" {name}=" not in text)
    try:
        rows = selected(" ".join([text.format(model=model), *more]))
    except LookupError:
        return math.nan
    return round(float(rows["value"].mean()), 9)  # as tables do


def _solved(model: str) -> dict[str, Any]:
    """Return the accuracies of merges that are solved for, and of the best published merge."""
    means = accuracies_of_merges(_tested("minimum"), model)
    seeds = recorded("merging", "minimum")[0]["seed"].nunique()
    published = means[means.index.isin([*METHODS])]
    return {
        "seeds": f"{word_of(seeds)} seed{'s' * (seeds != 1)}",
        "few": means.get("least_few", math.nan),
        "solved": means.get("least_features", math.nan),
        "published": MERGE_LABEL[published.idxmax()] if len(published) else "",
        "most": published.max(),
        "compared": len(published),
    }


def _tested(part: str) -> pd.DataFrame:
    return where(recorded("merging", part)[0], split="test")
