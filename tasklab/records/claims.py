"""A verdict on every claim of the papers, by one rule.

**Verdicts on the embedded default (`mini`) are about orderings and effects, not about absolute
values**: its world, model and pre-training are far smaller than the papers'.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from tasklab.errors import TasklabError, unknown
from tasklab.models.zoo import family
from tasklab.records.comparisons import COMPARISONS, NETWORKS
from tasklab.records.schema import ACCURACIES, UNITS
from tasklab.records.table import one_model, select, wilson

ABOUT_VERDICTS = (
    "Verdicts on the embedded benchmark are about orderings and effects, with their spread over "
    "fine-tuning seeds, not about absolute values: its world is not the papers'."
)
OUTCOMES = ("holds", "holds (one seed)", "holds weakly", "does not hold here", "not tested")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of a paper as a comparison: `left` `relation` `factor` × `right`.

    `left` and `right` are methods, both measured by `metric` in `experiment`, or, where the claim
    names a `comparison`, sides that this function of `records.comparisons` makes. They are of the
    model that is judged, or of one that it is compared with (a role of `zoo.family`, or one of
    `NETWORKS`), or of the same one with random weights, as in `nonlinear@convnext` and
    `nonlinear@random`.
    """

    id: str
    paper: str
    table: str
    statement: str
    experiment: str
    metric: str
    left: str
    relation: str
    right: str
    factor: float = 1.0
    comparison: str = ""

    def __post_init__(self) -> None:
        """Check the relation."""
        if self.relation not in (">", "<"):
            raise unknown("relation", self.relation, (">", "<"))

    @property
    def test(self) -> str:
        """The comparison in words, e.g. `absolute: linearized > nonlinear`."""
        factor = "" if self.factor == 1 else f"{self.factor:g} × "
        return f"{self.metric}: {self.left} {self.relation} {factor}{self.right}"


@dataclass(frozen=True)
class Verdict:
    """What our records say about a claim.

    Attributes:
        claim: The claim.
        holds: One of `OUTCOMES`.
        effect: Mean over seeds of the difference, positive in the claimed direction.
        spread: Standard deviation over seeds (NaN for one seed).
        n_seeds: Number of seeds.
        differences: The difference of each seed, positive in the claimed direction.
        text: The verdict with its numbers.
    """

    claim: Claim
    holds: str
    effect: float = math.nan
    spread: float = math.nan
    n_seeds: int = 0
    differences: dict[int, float] = field(default_factory=dict)
    text: str = "not tested: no records of both sides."


def verdict(
    claim: Claim, df: pd.DataFrame, *, n_tasks: int = 8, model: str | None = None
) -> Verdict:
    """Judge a claim by paired differences: the same seed and the same tasks on both sides.

    The rule, in this order:

    - *does not hold here*: the mean difference is zero or against the claim;
    - with two seeds or more, *holds* if every seed has the claimed sign and the mean exceeds twice
      its standard error, else *holds weakly*;
    - with one seed, *holds (one seed)* if the difference exceeds the half-width of its binomial
      95 % interval (as if the two sides saw different images, which is cautious), else
      *holds weakly*.

    Seeds are those of fine-tuning, so "holds" speaks of this pre-trained model. On the embedded
    default it speaks of an ordering, not of absolute values.

    Args:
        claim: What to judge.
        df: Tidy records.
        n_tasks: Number of added tasks for claims on addition.
        model: Which model the claim is about, if there are records of several.

    Raises:
        TasklabError: The records mix several models and none is named, or the claim's comparison is
            registered by a module that was not imported.
    """
    sides = tuple(_side(claim, side, df, model, n_tasks) for side in (claim.left, claim.right))
    pairs = _pairs(claim, *(side.rows for side in sides))
    if pairs.empty:
        return Verdict(claim, "not tested")
    sign = 1 if claim.relation == ">" else -1
    pairs["difference"] = sign * (pairs["value"] - claim.factor * pairs["value_right"])
    seeds = pairs.groupby("seed")["difference"].mean()
    effect, n = float(seeds.mean()), len(seeds)
    spread = float(seeds.std()) if n > 1 else math.nan
    half = _half_width(claim, sides, n_tasks) if n == 1 else math.nan
    unit = UNITS.get(claim.metric, "").replace("%", "points")
    if n > 1:
        clear = bool((seeds > 0).all()) and effect > 2 * spread / math.sqrt(n)
        agree = int((seeds > 0).sum())
        text = f"{effect:+.3g} {unit}".rstrip()
        text += f", std {spread:.2g} over {n} seeds, {agree} of {n} as claimed"
    else:
        clear = effect > half  # False where there is no interval
        text = f"{effect:+.3g} {unit}".rstrip() + ", one seed"
        text += f", 95 % half-width {half:.2g}" if half == half else ", no interval"
    outcome = "does not hold here"
    if effect > 0:
        outcome = ("holds" if n > 1 else "holds (one seed)") if clear else "holds weakly"
    differences = {int(seed): float(value) for seed, value in seeds.items()}
    return Verdict(claim, outcome, effect, spread, n, differences, f"{outcome}: {text}.")


def verdicts(
    df: pd.DataFrame,
    paper: str | None = None,
    table: str | None = None,
    *,
    n_tasks: int = 8,
    model: str | None = None,
) -> list[Verdict]:
    """Judge all claims, or those of one paper or table, in the papers' order.

    Args:
        df: Tidy records.
        paper: Only its claims.
        table: Only those of this table, as printed.
        n_tasks: Number of added tasks for claims on addition.
        model: Which model the claims are about, if there are records of several.
    """
    chosen = [c for c in CLAIMS if paper in (None, c.paper) and table in (None, c.table)]
    return [verdict(claim, df, n_tasks=n_tasks, model=model) for claim in chosen]


class Side(NamedTuple):
    """One side of a claim.

    Attributes:
        method: The method, or the side's name in the claim's comparison.
        rows: Its records.
        records: All records of its model.
    """

    method: str
    rows: pd.DataFrame
    records: pd.DataFrame


def _side(claim: Claim, side: str, df: pd.DataFrame, model: str | None, n_tasks: int) -> Side:
    method, _, role = side.partition("@")
    init = "random" if role == "random" else "pretrained"
    if role in NETWORKS:
        records = df[df["model"] == role]
    elif model is not None:
        records = df[df["model"] == (model if role in ("", "random") else family(model)[role])]
    else:
        records = df.iloc[:0] if role not in ("", "random") else df[~df["model"].isin(NETWORKS)]
    mine = one_model(records, init)
    if not claim.comparison:
        return Side(method, select(mine, claim.experiment, claim.metric, method, n_tasks), mine)
    rows = records[records["experiment"] == claim.experiment]
    if rows.empty:
        return Side(method, rows, mine)
    if claim.comparison not in COMPARISONS:
        raise TasklabError(
            f"comparison {claim.comparison!r} is not registered: import tasklab.study."
        )
    sides = COMPARISONS[claim.comparison](claim, rows, df)
    return Side(method, sides.get(method, rows.iloc[:0]), mine)


def _pairs(claim: Claim, left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """Return the left rows with the value of their partner, one row a seed, task and subset."""
    keys, columns = ["seed", "task", "subset"], ["seed", "task", "subset", "value"]
    left, right = (df[columns].fillna({"seed": 0, "subset": ""}) for df in (left, right))
    if claim.right.partition("@")[0] != "pretrained":
        return left.merge(right, on=keys, suffixes=("", "_right"))
    # One model for all seeds, however often it was recorded ...
    same = right.groupby(["task", "subset"], as_index=False)["value"].mean()
    paired = left.merge(same, on=["task", "subset"], suffixes=("", "_right"))
    if paired.empty and len(right):  # ... or once for all targets
        paired = left.assign(value_right=right["value"].mean())
    return paired


def _half_width(claim: Claim, sides: Iterable[Side], n_tasks: int) -> float:
    """Return the 95 % half-width of a one-seed difference (NaN where nothing was counted)."""
    if claim.comparison or claim.metric not in (*ACCURACIES, "normalised"):
        return math.nan
    total = 0.0
    for side, factor in zip(sides, (1.0, claim.factor), strict=True):
        rows = side.rows
        if claim.metric == "normalised":
            half = _half_of_ratio(rows, side.records, side.method, n_tasks)
        else:
            half = _half(rows)
        # The same images answer for every subset, and the control's for every target: such rows
        # are not independent and are averaged; tasks have images of their own.
        group = "metric" if claim.metric == "control" else "task"
        per_task = half.groupby(rows[group].to_numpy()).mean()
        total += factor**2 * float((per_task**2).sum(skipna=False)) / len(per_task) ** 2
    return math.sqrt(total)


def _half(rows: pd.DataFrame) -> pd.Series:
    n = rows["n"].astype(float)
    low, high = wilson(rows["value"] / 100 * n, n)
    return pd.Series((high - low) / 2)


def _half_of_ratio(rows: pd.DataFrame, df: pd.DataFrame, method: str, n_tasks: int) -> pd.Series:
    """Carry the half-widths of a ratio's two accuracies through to the ratio (first order)."""
    parts = rows[["task", "subset", "value"]]
    for name, experiment, metric in (("top", "addition", "absolute"), ("base", "single", "single")):
        counted = select(df, experiment, metric, method, n_tasks)
        relative = _half(counted).to_numpy() / counted["value"].clip(lower=0.1).to_numpy()
        keys = ["task", "subset"] if name == "top" else ["task"]
        counted = counted[keys].assign(**{name: relative}).drop_duplicates(keys)
        parts = parts.merge(counted, on=keys, how="left")
    return parts["value"] * np.hypot(parts["top"], parts["base"])


def _claims() -> tuple[Claim, ...]:
    table = pd.read_csv(
        Path(__file__).with_name("claims.csv"), dtype={"table": str, "factor": float}
    )
    table = table.fillna({"comparison": ""})
    return tuple(Claim(**row) for row in table.to_dict("records"))


CLAIMS = _claims()
