"""Tables for readers."""

from __future__ import annotations

import functools
import itertools
import numbers
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from tasklab.figures.rows import methods_in, where
from tasklab.figures.style import METHOD_LABEL
from tasklab.records.claims import SETTINGS
from tasklab.records.judgement import Verdict
from tasklab.records.statements import effect_of, verdict_rows
from tasklab.records.table import summarise

AIRY = [{"selector": "th, td", "props": [("padding", "0.2em 0.7em")]}]


def table(df: pd.DataFrame, digits: int = 1) -> Any:
    """Return a table of numbers for readers: rounded, a dash where there is none.

    Args:
        df: E.g. what `records.beside` or `editing_table` returned.
        digits: After the decimal point.

    Returns:
        A pandas Styler; rows are numbered only where their numbers mean something. Of no rows it
        says that they are not recorded yet.
    """
    if df.empty:
        styler = df.iloc[:, :0].style.set_caption("Not recorded yet.").hide(axis="index")
        return styler.set_table_styles([{"selector": "caption", "props": "white-space: nowrap"}])
    styler = df.style.format(functools.partial(_number, digits=digits), na_rep="–")
    styler = styler.set_table_styles(AIRY)
    return styler.hide(axis="index") if isinstance(df.index, pd.RangeIndex) else styler


def _number(value: Any, digits: int) -> Any:
    """Return a cell's text: of a number rounded, with a minus sign and no hyphen."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return value
    whole = isinstance(value, numbers.Integral)
    return (f"{value:d}" if whole else f"{value:z.{digits}f}").replace("-", "−")


def pretraining_table(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Return what other seeds of pre-training say of claims, beside the main model's effects.

    Args:
        verdicts: On claims; those with one pre-training are left out.

    Returns:
        A row a claim: effect and 95 % interval of the main model, and those over the pre-trainings.
    """
    ends, rows = ("effect", "low", "high"), []
    for one in verdicts:
        if one.n_pretrainings > 1:
            row = {"claim": f"{one.claim.short}: {one.claim.cell}".removesuffix(": ")}
            row |= dict(zip(ends, one.interval, strict=True))
            row |= zip([f"others: {end}" for end in ends], one.pretrainings, strict=True)
            rows.append(row | {"pre-trainings": one.n_pretrainings})
    return pd.DataFrame(rows)


def matched_table(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Return what is said of two methods at the rates chosen, and where they are made equal.

    Args:
        verdicts: On claims; those that are judged at the rates chosen alone are left out.

    Returns:
        A row a statement; for each setting the outcome, and the effect with its 95 % interval.
    """
    rows = verdict_rows(verdicts, cells=False)
    rows = rows[rows["id"].isin(rows.loc[rows["setting"] != SETTINGS[0], "id"])]
    told = [f"{row['outcome']}: {effect_of(row)}" for row in rows.to_dict("records")]
    rows = rows.assign(told=[text.removesuffix(": –") for text in told])
    wide = rows.pivot(index="short", columns="setting", values="told")
    wide = wide.reindex(index=dict.fromkeys(rows["short"]), columns=list(SETTINGS))
    return wide.rename_axis(index="statement", columns=None).reset_index()


def origin_table(provenance: Mapping[str, Any]) -> pd.DataFrame:
    """Return where recorded results come from: versions, machine, configuration, time."""
    facts: dict[str, str] = {}
    for name, value in provenance.items():
        nested = value if isinstance(value, Mapping) else {"": value}
        facts |= {
            f"{name}: {k}".removesuffix(": ").replace("_", " "): _fact(v)
            for k, v in nested.items()
            if v is not None
        }
    return pd.DataFrame({"": facts.values()}, index=list(facts))


def _fact(value: Any) -> str:
    """Return what a cell of a provenance says: choices by name, values one after another."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_fact(one)}" for name, one in value.items())
    if isinstance(value, list):
        between = "; " if any(isinstance(one, Mapping) for one in value) else " "
        return between.join(map(_fact, value))
    text = str(value)
    return text[:12] if re.fullmatch("[0-9a-f]{40,}", text) else text  # a checksum's beginning


def editing_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return accuracy alone and in the sum of all tasks, of every model and method.

    Args:
        df: Records of the experiments `single` and `addition`, of one or several models.

    Returns:
        One row a model and method, in %: alone, sum (absolute), normalised, each with its standard
        deviation over seeds where there are several; and the number of seeds.
    """
    from tasklab.figures.schemes import scheme  # whose tables are made of those here

    tested, by, columns = where(df, split="test"), ["model", "method"], {}
    sums = where(tested, experiment="addition")
    sums = sums[sums["n_tasks"] == sums.groupby("model")["n_tasks"].transform("max")]
    parts = {"alone": where(tested, experiment="single"), "sum": where(sums, metric="absolute"),
             "normalised": where(sums, metric="normalised")}  # fmt: skip
    for name, rows in parts.items():
        summary = summarise(rows, by).set_index(by)
        columns |= {name: summary["mean"], f"± {name}": summary["std"]}
        columns.setdefault("seeds", summary["n_seeds"])
    table = pd.DataFrame(columns)
    table["seeds"] = table.pop("seeds")  # last
    models, methods = dict.fromkeys(df["model"]), methods_in(df, baseline=True)
    order = [way for way in itertools.product(models, methods) if way in table.index]
    table = table.loc[order].rename(index=METHOD_LABEL, level="method")
    table = table.rename(index=scheme, level="model")
    return table.rename_axis(["model", "method"])
