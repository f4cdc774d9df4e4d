"""Both sides of a claim, row by row: at the same seed, on the same task and images."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tasklab.errors import choose
from tasklab.evidence.records import images, matched
from tasklab.evidence.records.claims import Claim, Sides
from tasklab.evidence.records.schema import COMPARISONS, NETWORKS
from tasklab.evidence.records.table import one_model, select
from tasklab.models.zoo import family

SHARE = re.compile(r"_(\d+)$")  # names of models that have seen so many per cent of the samples


class Side(NamedTuple):
    """One side of a claim."""

    method: str  #: The method, or the side's name in the claim's comparison
    rows: pd.DataFrame
    records: pd.DataFrame  #: All records of its model


class Split:
    """Records with a cache of the selections that claims share."""

    def __init__(self, df: pd.DataFrame) -> None:
        self.all = df
        self._kept: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, records: pd.DataFrame | Split) -> Split:
        """Return the records, split."""
        return records if isinstance(records, Split) else cls(records)

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the first result of `make` under this key."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def models(self) -> list[str]:
        """Return the models in the order of the records."""
        return self.once("models", lambda: list(self.all["model"].unique()))

    def by_role(self, role: str, model: str | None) -> pd.DataFrame:
        """Return the records of the model that has a role beside `model`."""
        df, own = self.all, role in ("", "random")
        if role in NETWORKS:
            name: Any = role
        elif model is not None:  # of a model of timm's nothing is related
            name = model if own else family(model).get(role)
        else:
            return df[~df["model"].isin(NETWORKS)] if own else df.iloc[:0]
        return self.once(("model", name), lambda: df[df["model"] == name])


def sides_of(claim: Claim, df: pd.DataFrame | Split, model: str | None, n_tasks: int) -> list[Side]:
    """Return both sides of a claim, left and right.

    Args:
        claim: Its sides may name a method, `method@model`, or a comparison.
        df: Tidy records.
        model: The model that is judged; `None` for any.
        n_tasks: Number of tasks in a sum.
    """
    compared: dict[str, Sides] = {}  # by role: both sides at once
    return [
        _found(claim, side, Split.of(df), model, n_tasks, compared)
        for side in (claim.left, claim.right)
    ]


def _found(
    claim: Claim,
    side: str,
    split: Split,
    model: str | None,
    n_tasks: int,
    compared: dict[str, Sides],
) -> Side:
    method, _, role = side.partition("@")
    init = "random" if role == "random" else "pretrained"
    records, key = split.by_role(role, model), (role, model)
    mine = split.once(("mine", *key), lambda: one_model(records, init))
    if claim.setting != "chosen":
        grid = split.once(("grid", *key), lambda: mine[mine["experiment"] == "budget"])
        both = (claim.left, claim.right)
        rows = matched.at_setting(grid, claim.setting, claim.metric, both, method, claim.rate)
        return Side(method, rows, mine)
    if not claim.comparison:
        wanted = claim.experiment, claim.metric, method, n_tasks
        rows = split.once(("rows", *key, *wanted), lambda: select(mine, *wanted))
        return Side(method, rows, mine)
    rows = split.once(
        ("experiment", *key, claim.experiment),
        lambda: records[records["experiment"] == claim.experiment],
    )
    if rows.empty:
        return Side(method, rows, mine)
    choose("comparison", claim.comparison, COMPARISONS)
    if role not in compared:
        compared[role] = COMPARISONS[claim.comparison](claim, rows, split.all)
    return Side(method, compared[role].get(method, rows.iloc[:0]), mine)


def pairs(claim: Claim, df: pd.DataFrame | Split, model: str | None, n_tasks: int) -> pd.DataFrame:
    """Return one row per seed, task and subset that both sides have, with their difference.

    Args:
        claim: A row of `claims.csv`.
        df: Tidy records.
        model: The model that is judged; `None` for any.
        n_tasks: Number of tasks in a sum.

    Returns:
        Columns seed, task, subset and difference, positive in the claim's direction; of each side
        value, error (by the sampling of its images), n and which images were answered: hits, or of
        ratios top and base. Empty if a side has no records.
    """
    split = Split.of(df)
    both = sides_of(claim, split, model, n_tasks)
    if any(side.rows.empty for side in both):
        return pd.DataFrame()
    left, right = (_kept_contributions(claim, side, split) for side in both)
    keys = ["seed", "task", "subset"]
    if claim.right.partition("@")[0] != "pretrained":
        table = left.merge(right, on=keys, suffixes=("", "_right"))
    else:  # one model for all seeds, however often it was recorded ...
        same = right.drop(columns="seed").groupby(["task", "subset"], as_index=False).first()
        same["value"] = right.groupby(["task", "subset"])["value"].mean().to_numpy()
        table = left.merge(same, on=["task", "subset"], suffixes=("", "_right"))
        if table.empty and len(right):  # ... or once for all targets
            alone = right.iloc[0].drop(keys).add_suffix("_right").to_dict()
            table = left.assign(**alone | {"value_right": right["value"].mean()})
    sign = -1 if claim.relation == "<" else 1
    return table.assign(difference=sign * (table["value"] - claim.factor * table["value_right"]))


def _kept_contributions(claim: Claim, side: Side, split: Split) -> pd.DataFrame:
    if claim.comparison or claim.setting != "chosen":
        return _contributions(claim, side)
    key = "contributions", id(side.rows), claim.metric  # rows are kept, so no other has this id
    return split.once(key, lambda: (side.rows, _contributions(claim, side)))[1]


def _contributions(claim: Claim, side: Side) -> pd.DataFrame:
    rows = side.rows.fillna({"seed": 0, "subset": ""})
    absolute = None
    if claim.metric == "normalised" and "error" not in rows and len(rows):
        absolute = side.records[side.records["metric"] == "absolute"]
        absolute = _partners(rows, absolute, _OF_A_RATIO)
    error = images.standard_errors(rows, claim.metric, absolute)
    table = rows[["seed", "task", "subset", "value"]].assign(error=error)
    for name in ("n", "hits"):
        table[name] = rows[name] if name in rows else None
    if claim.metric == "normalised":  # a ratio: whose images' contributions need both parts
        table["hits"] = None
        alone = side.records[side.records["metric"] == "single"]
        base = _partners(rows, alone, ["method", "task", "seed", "split"])
        parts = {"top": absolute, "base": base}
        for name, part in parts.items():
            hits = None if part is None or "hits" not in part else part["hits"].to_numpy()
            table[name] = hits
    return table


_OF_A_RATIO = ["experiment", "method", "task", "subset", "split", "n_tasks", "seed"]


def _partners(rows: pd.DataFrame, others: pd.DataFrame, keys: list[str]) -> pd.DataFrame | None:
    if rows.empty or not set(keys) <= set(rows):
        return None
    others = others.drop_duplicates(keys).drop(columns=[k for k in rows if k in ("lr", "steps")],
                                               errors="ignore")  # fmt: skip
    matched = rows[keys].merge(others, on=keys, how="left")
    return matched.set_index(rows.index) if matched["value"].notna().all() else None


def growth(claim: Claim, df: pd.DataFrame | Split, model: str | None, n_tasks: int) -> pd.DataFrame:
    """Return the growth of a difference for every tenfold of the samples of pre-training.

    It is the slope of a least-squares line over log10 of the samples, for each seed and task.

    Args:
        claim: A row of `claims.csv`.
        df: Tidy records of the model and of its pre-trainings on fewer samples (`mini_3`, ...).
        model: The model on all samples; by default `mini`.
        n_tasks: Number of tasks in a sum.

    Returns:
        Columns seed, task, subset, difference (the slope, positive in the claim's direction) and
        the errors of both sides; empty with fewer than three pre-trainings.
    """
    name, split = model or "mini", Split.of(df)
    shares = {name: 100.0}
    for other in split.models():
        if (match := SHARE.search(other)) and other == f"{name}_{match[1]}":
            shares[other] = float(match[1])
    tables = {m: pairs(claim, split, m, n_tasks) for m in shares if m in split.models()}
    keys = ["seed", "task", "subset"]
    parts = [t.assign(x=math.log10(shares[m])) for m, t in tables.items() if len(t)]
    if len(parts) < 3:
        return pd.DataFrame(columns=[*keys, "difference"])
    points = pd.concat(parts)
    points = points[points.groupby(keys)["x"].transform("size") == len(parts)]
    centred = points["x"] - points.groupby(keys)["x"].transform("mean")
    weight = centred / (centred**2).groupby([points[k] for k in keys]).transform("sum")
    scaled = {"difference": weight * points["difference"]}
    squares = {c: (weight * points[c].astype(float)) ** 2 for c in ("error", "error_right")}
    rows = points[keys].assign(**scaled, **squares).groupby(keys, as_index=False).sum(min_count=1)
    return rows.assign(**{c: np.sqrt(rows[c]) for c in squares})
