"""Claims of the papers: statements, and the comparisons that judge each of them.

A statement is a sentence of a paper. It may speak of several things at once (eight pre-trained
models, two metrics): then it has one comparison, or cell, for each. `statements.csv` holds the
statements, `claims.csv` their cells.

Some claims do not compare two methods by one metric, but merged features against those of single
models, or the middle of a segment against its ends. Such a claim names a function that an
experiment declares among its `sides`, which makes both tables of its records.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tasklab.errors import choose
from tasklab.evidence.records.matched import BEST, ONE_RATE, PLATEAU, RATES
from tasklab.evidence.records.schema import unit as unit_of
from tasklab.storage import shipped

RELATIONS = (">", "<", "=")
# Where methods are compared: `matched`.
SETTINGS = ("chosen", "equal accuracy", "equal length", ONE_RATE, PLATEAU, BEST)
# Of these a record is of one task, or of one pair: a claim about their mean is about all tasks.
PER_TASK = ("single", "absolute", "normalised", "target")
PER_PAIR = ("xi_classifier", "xi_classifier_box", "xi_representation", "xi_representation_box")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One comparison of a statement: `left` `relation` `factor` × `right`.

    `left` and `right` are methods, both measured by `metric` in `experiment`, or, where the claim
    names a `comparison`, sides that this function of an experiment makes. They are of the
    model that is judged, or of one that it is compared with (a role of `zoo.family`, or one of
    `schema.NETWORKS`), or of the same one with random weights, as in `nonlinear@convnext` and
    `nonlinear@random`.
    """

    id: str  #: Its name
    entry: str  #: Name of the statement that it is a cell of
    paper: str  #: The paper's name
    headline: int = 0  #: Number of the headline in the protocol; 0 for none
    #: Notebook and heading under which the numbers are shown, `ctl#Do they add?`.
    evidence: str = ""
    short: str = ""  #: The statement in a few words
    statement: str  #: The statement
    cell: str = ""  #: Which of its cells this is; empty if it has only one
    table: str  #: Where the paper says so
    experiment: str
    comparison: str = ""  #: Makes the sides of records; empty for two methods
    metric: str
    left: str  #: First side
    relation: str  #: `>`, `<`, or `=` for "within the margin"
    factor: float = 1.0  #: Of the second side
    right: str  #: Second side
    margin: float = math.nan  #: Of a claim of equality, in the metric's unit
    #: Name of the claim whose difference is said to grow with the samples of pre-training; empty
    #: for other claims.
    grows: str = ""
    setting: str = "chosen"  #: One of `SETTINGS`
    rate: float = math.nan  #: Of both sides, where the setting is one rate
    #: Whether this book, and not the paper, set how much is near: beyond it a claim is `outside the
    #: band`.
    band: bool = False

    def __post_init__(self) -> None:
        choose("relation", self.relation, RELATIONS)

    @property
    def test(self) -> str:
        """The comparison in words, e.g. `absolute: linearized > nonlinear`."""
        factor = "" if self.factor == 1 else f"{self.factor:g} × "
        within = f" ± {self.margin:g}" if self.relation == "=" else ""
        grown = ", per tenfold of pre-training" if self.grows else ""
        at = "" if self.setting == "chosen" else f", at {self.setting}"
        return f"{self.metric}: {self.left} {self.relation} {factor}{self.right}{within}{grown}{at}"

    @property
    def unit(self) -> str:
        """The unit of its effect; differences of percentages are points."""
        share = self.metric in ("accuracy", "violations")  # of comparisons, not of records
        return "points" if share else unit_of(self.metric).replace("%", "points")

    @property
    def general(self) -> bool:
        """Whether it is about tasks in general, not only about those that were tried."""
        plain = self.comparison in ("", "merges", "strengths", "gaps")
        maps = self.comparison in ("", "pretraining") and self.metric in PER_PAIR
        maps |= self.comparison == "beyond"
        return (plain and self.metric in PER_TASK) or maps


def _matchable(claim: Claim) -> bool:
    """Return whether a claim says that one way of fine-tuning edits or disentangles better."""
    both = {claim.left, claim.right}
    plain = not any("@" in side or side in ("probe", "pretrained") for side in both)
    if claim.metric == "xi_classifier_box":
        mapped = {"nonlinear", "posthoc", "linearized", "attention"}
        return plain and not claim.comparison and both <= mapped
    edits = claim.experiment in ("addition", "negation")
    return plain and edits and (claim.headline > 0 or claim.metric == "normalised")


def _claims() -> tuple[Claim, ...]:
    statements = _read("statements.csv", {"headline": "Int64"})
    statements["headline"] = statements["headline"].fillna(0).astype(int)
    cells = _read("claims.csv", {"table": str, "factor": float, "band": "boolean"})
    cells = cells.fillna({"comparison": "", "cell": "", "grows": "", "band": False})
    joined = cells.merge(statements.rename(columns={"id": "entry"}), on="entry", validate="m:1")
    claims = []
    for row in joined.to_dict("records"):
        claim = Claim(**row)
        claims.append(claim)
        if _matchable(claim) and not claim.grows:
            claims += [
                dataclasses.replace(claim, id=f"{claim.id}@{setting.split()[-1]}", setting=setting)
                for setting in SETTINGS[1:3]
                # post-hoc models are less accurate alone at any rate: none makes them equal
                if setting != "equal accuracy" or "posthoc" not in (claim.left, claim.right)
            ]
            claims += _at_other_rates(claim)
    return tuple(claims)


def _read(name: str, types: Mapping[str, Any]) -> pd.DataFrame:
    text = shipped.content(Path(__file__).with_name(name))
    return pd.read_csv(io.BytesIO(text), dtype=types)


def _at_other_rates(claim: Claim) -> list[Claim]:
    if not claim.headline or claim.metric == "normalised" or "posthoc" in claim.test:
        return []
    rules = [
        dataclasses.replace(claim, id=f"{claim.id}@{rule.split()[0]}", setting=rule)
        for rule in (PLATEAU, BEST)
    ]
    for rate in RATES:
        cell = f"{claim.cell}, at {rate:g}".removeprefix(", ")
        name = f"{claim.id}@{rate:g}"
        rules.append(dataclasses.replace(claim, id=name, setting=ONE_RATE, rate=rate, cell=cell))
    return rules


CLAIMS = _claims()
BY_ID = {claim.id: claim for claim in CLAIMS}


Sides = Mapping[str, pd.DataFrame]  # by name, each with columns seed, task, subset and value


def by_seed(rows: pd.DataFrame, numbers: Callable[[pd.DataFrame], Mapping[str, float]]) -> Sides:
    """Return sides that are one number of each seed."""
    sides: dict[str, list[pd.DataFrame]] = {}
    for _, part in rows.groupby("seed"):
        for name, value in numbers(part).items():
            sides.setdefault(name, []).append(part.iloc[:1].assign(subset="", value=value))
    return {name: pd.concat(parts) for name, parts in sides.items()}
