"""The papers' numbers, ours beside them, and a verdict on every claim.

Tables of records are described in `tasklab.records.table`, whose functions are also here under the
same names. **Verdicts on the embedded default (`mini`) are about orderings and effects, not about
absolute values**: its world, model and pre-training are far smaller than the papers'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from tasklab.errors import TasklabError, unknown
from tasklab.models.zoo import family
from tasklab.records.table import (
    ACCURACIES,
    COLUMNS,
    UNITS,
    combine,
    provenance,
    read,
    summarise,
    tidy,
    wilson,
    write,
)

__all__ = [
    "ABOUT_VERDICTS", "ACCURACIES", "CLAIMS", "COLUMNS", "UNITS", "Claim", "Verdict", "beside",
    "box_means", "combine", "papers", "provenance", "read", "summarise", "tidy", "verdict",
    "verdicts", "wilson", "write",
]  # fmt: skip

ABOUT_VERDICTS = (
    "Verdicts on the embedded benchmark are about orderings and effects, with their spread over "
    "fine-tuning seeds, not about absolute values: its world is not the papers'."
)
OUTCOMES = ("holds", "holds (one seed)", "holds weakly", "does not hold here", "not tested")
_DATA = Path(__file__).parent


def papers(paper: str | None = None, table: str | None = None) -> pd.DataFrame:
    """Return the numbers printed in the papers' tables, optionally of one paper or one table.

    Args:
        paper: `tangent`, `linear_layers`, `closed_vocab` or `ctl`.
        table: The table's number as printed, e.g. `"1"`.

    Returns:
        Columns paper, table, page_or_section, row and column (as printed), method and model (our
        names), experiment, metric, value, unit, source_file, note. `value` is NaN where the cell
        is missing in the text at hand.

    Raises:
        TasklabError: There is no such paper or table.
    """
    df = pd.read_csv(_DATA / "papers.csv", dtype={"table": str})
    df = df.fillna({name: "" for name in df if name != "value"})
    if paper is not None:
        if paper not in set(df["paper"]):
            raise unknown("paper", paper, dict.fromkeys(df["paper"]))
        df = df[df["paper"] == paper]
    if table is not None:
        if str(table) not in set(df["table"]):
            raise unknown("table", table, dict.fromkeys(df["table"]))
        df = df[df["table"] == str(table)]
    return df.reset_index(drop=True)


def beside(
    ours: pd.DataFrame, paper: str, table: str, model: str, *, n_tasks: int = 8
) -> pd.DataFrame:
    """Put our averages beside a paper's table.

    With the embedded default as `ours` the difference is between two worlds: read the order of
    the rows, not its size.

    Args:
        ours: Tidy records of one model; random initialisation is used for tables about it only.
        paper: The paper's name.
        table: The table's number.
        model: The column of the paper's table, as our model name, e.g. `"vitb32"`.
        n_tasks: Number of added tasks; the papers' tables add eight.

    Returns:
        One row for each printed number: row, metric, paper, ours mean, ours std, n seeds,
        difference (ours − paper). NaN where we have no measurement.

    Raises:
        TasklabError: Unknown paper, table or model, or `ours` mixes several models.
    """
    printed = papers(paper, table)
    if model not in set(printed["model"]):
        raise unknown("model", model, dict.fromkeys(printed["model"]))
    rows = []
    for cell in printed[printed["model"] == model].to_dict("records"):
        init = "random" if cell["experiment"] == "random_init" else "pretrained"
        found = summarise(_cell(_one_model(ours, init), cell, n_tasks), ["model"])
        mean, std, seeds = (
            found.loc[0, ["mean", "std", "n_seeds"]] if len(found) else (math.nan, math.nan, 0)
        )
        rows.append(
            {
                "row": cell["row"],
                "metric": cell["metric"],
                "paper": cell["value"],
                "ours mean": mean,
                "ours std": std,
                "n seeds": int(seeds),
                "difference": mean - cell["value"],
            }
        )
    return pd.DataFrame(rows)


def _cell(df: pd.DataFrame, cell: dict, n_tasks: int) -> pd.DataFrame:
    experiment, metric = cell["experiment"], cell["metric"]
    if experiment == "random_init":  # the tables on random networks name these two differently
        experiment, metric = {"single": ("single", "single")}.get(metric, ("addition", "absolute"))
    found = _select(df, experiment, metric, cell["method"], n_tasks)
    if found.empty and cell["method"] == "pretrained" and metric in ("absolute", "target"):
        # Without a task vector these are the zero-shot accuracy, which we record as `single`.
        found = _select(df, "single", "single", "pretrained", n_tasks)
    return found


def _one_model(df: pd.DataFrame, init: str) -> pd.DataFrame:
    df = df[df["init"] == init]
    several = df[["model", "suite"]].drop_duplicates()
    if len(several) > 1:
        raise TasklabError(f"records of {len(several)} models or suites: select one first.")
    return df


def _select(
    df: pd.DataFrame, experiment: str, metric: str, method: str, n_tasks: int
) -> pd.DataFrame:
    chosen = (df["experiment"] == experiment) & (df["metric"] == metric)
    chosen &= (df["method"] == method) & (df["split"] == "test")
    if experiment == "addition":
        chosen &= (df["n_tasks"] == n_tasks).fillna(False).astype(bool)
    return df[chosen]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of a paper as a comparison: `left` `relation` `factor` × `right`.

    `left` and `right` are methods, both measured by `metric` in `experiment`: of the model that is
    judged, or of one that it is compared with (a role of `choices.family`), or of the same one with
    random weights, as in `nonlinear@convnext` and `nonlinear@random`.
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
        TasklabError: The records mix several models and none is named.
    """
    sides = _sides(claim, df, model)
    pairs = _pairs(claim, sides, n_tasks)
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
        told = f"{effect:+.3g} {unit}".rstrip()
        told += f", std {spread:.2g} over {n} seeds, {agree} of {n} as claimed"
    else:
        clear = effect > half  # False where there is no interval
        told = f"{effect:+.3g} {unit}".rstrip() + ", one seed"
        told += f", 95 % half-width {half:.2g}" if half == half else ", no interval"
    outcome = "does not hold here"
    if effect > 0:
        outcome = ("holds" if n > 1 else "holds (one seed)") if clear else "holds weakly"
    differences = {int(seed): float(value) for seed, value in seeds.items()}
    return Verdict(claim, outcome, effect, spread, n, differences, f"{outcome}: {told}.")


def verdicts(
    df: pd.DataFrame,
    paper: str | None = None,
    table: str | None = None,
    *,
    n_tasks: int = 8,
    model: str | None = None,
) -> list[Verdict]:
    """Judge all claims, or those of one paper or table, in the papers' order."""
    chosen = [c for c in CLAIMS if paper in (None, c.paper) and table in (None, c.table)]
    return [verdict(claim, df, n_tasks=n_tasks, model=model) for claim in chosen]


def box_means(df: pd.DataFrame, low: float = 0.0, high: float = 1.0) -> pd.DataFrame:
    """Return the mean disentanglement error of each map over the cells in a square, as records.

    Args:
        df: Records of the experiment `disentanglement`, one a cell.
        low: Lowest coefficient of the square; the default is the search box of addition.
        high: Highest coefficient.

    Returns:
        Records of the same experiment with the metrics `xi_classifier_box` (%) and
        `xi_representation_box` (nats), one a map.
    """
    cells = df[df["experiment"] == "disentanglement"]
    near = 1e-9  # the end of a grid may miss the edge of the box by a rounding error
    for name in ("alpha1", "alpha2"):
        cells = cells[cells[name].between(low - near, high + near)]
    keys = [name for name in COLUMNS if name not in ("alpha", "value", "n")]
    means = cells.groupby(keys, dropna=False, sort=False, as_index=False).agg(
        value=("value", "mean"), n=("n", "first")
    )
    return tidy(means.assign(metric=means["metric"] + "_box"))


Sides = tuple[tuple[pd.DataFrame, str], tuple[pd.DataFrame, str]]


def _sides(claim: Claim, df: pd.DataFrame, model: str | None) -> Sides:
    """Return the records and the method of both sides."""
    found = []
    for side in (claim.left, claim.right):
        method, _, role = side.partition("@")
        init = "random" if role == "random" else "pretrained"
        rows = df
        if model is not None:
            named = model if role in ("", "random") else family(model)[role]
            rows = df[df["model"] == named]
        elif role not in ("", "random"):
            rows = df.iloc[:0]
        found.append((_one_model(rows, init), method))
    return tuple(found)


def _pairs(claim: Claim, sides: Sides, n_tasks: int) -> pd.DataFrame:
    """Return the left rows with the value of their partner, one row a seed, task and subset."""
    keys, columns = ["seed", "task", "subset"], ["seed", "task", "subset", "value"]
    left, right = (
        _select(df, claim.experiment, claim.metric, method, n_tasks)[columns].fillna({"seed": 0})
        for df, method in sides
    )
    if claim.right.partition("@")[0] != "pretrained":
        return left.merge(right, on=keys, suffixes=("", "_right"))
    # One model for all seeds, however often it was recorded ...
    same = right.groupby(["task", "subset"], as_index=False)["value"].mean()
    paired = left.merge(same, on=["task", "subset"], suffixes=("", "_right"))
    if paired.empty and len(right):  # ... or once for all targets
        paired = left.assign(value_right=right["value"].mean())
    return paired


def _half_width(claim: Claim, sides: Sides, n_tasks: int) -> float:
    """Return the 95 % half-width of a one-seed difference (NaN where nothing was counted)."""
    total = 0.0
    for (df, method), factor in zip(sides, (1.0, claim.factor), strict=True):
        rows = _select(df, claim.experiment, claim.metric, method, n_tasks)
        if claim.metric == "normalised":
            half = _half_of_ratio(rows, df, method, n_tasks)
        elif claim.metric in ACCURACIES:
            half = _half(rows)
        else:
            return math.nan
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
        found = _select(df, experiment, metric, method, n_tasks)
        relative = _half(found).to_numpy() / found["value"].clip(lower=0.1).to_numpy()
        keys = ["task", "subset"] if name == "top" else ["task"]
        found = found[keys].assign(**{name: relative}).drop_duplicates(keys)
        parts = parts.merge(found, on=keys, how="left")
    return parts["value"] * np.hypot(parts["top"], parts["base"])


def _claims() -> tuple[Claim, ...]:
    table = pd.read_csv(_DATA / "claims.csv", dtype={"table": str, "factor": float})
    return tuple(Claim(**row) for row in table.to_dict("records"))


CLAIMS = _claims()
