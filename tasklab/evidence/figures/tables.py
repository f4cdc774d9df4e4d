"""Tables for readers: of tidy records, of verdicts, of provenance."""

from __future__ import annotations

import functools
import html
import itertools
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from tasklab.evidence.figures.labels import LABELS
from tasklab.evidence.figures.schemes import ways
from tasklab.evidence.figures.style import METHOD_LABEL
from tasklab.evidence.records.claims import SETTINGS
from tasklab.evidence.records.intervals import in_words
from tasklab.evidence.records.judgement import Verdict
from tasklab.evidence.records.schema import unit
from tasklab.evidence.records.statements import effect_of, plain, verdict_rows
from tasklab.evidence.records.table import summarise

_EQUAL = SETTINGS[:3]  # as chosen, at equal accuracy, at equal norm; rates have rows of their own
_TOLD = {"absolute": "sum", "normalised": "normalised sum", "target": "negated task",
         "xi_classifier_box": "disentanglement error"}  # fmt: skip
AIRY = [{"selector": "th, td", "props": [("padding", "0.2em 0.7em")]}]


def table(df: pd.DataFrame, digits: int = 1) -> Any:
    """Return a pandas Styler of rounded numbers, with dashes for missing ones.

    Text is escaped. An empty table reads "Not recorded yet.". `digits` are after the decimal point.
    """
    if df.empty:
        styler = df.iloc[:, :0].style.set_caption("Not recorded yet.").hide(axis="index")
        return styler.set_table_styles([{"selector": "caption", "props": "white-space: nowrap"}])
    styler = styled(df, functools.partial(_number, digits=digits)).set_table_styles(AIRY)
    return styler.hide(axis="index") if isinstance(df.index, pd.RangeIndex) else styler


def tabulate(
    df: pd.DataFrame, index: str | Sequence[str], columns: str, *, named: bool = True
) -> pd.DataFrame:
    """Return tidy records as a table, in the book's order and with its labels (`labels.LABELS`).

    Cells are means of `value` over tasks and then seeds; where rows have `low` and `high`, effects
    with their intervals, and a dash for those that were not measured.

    Args:
        df: Tidy records, or other rows with `value` and the columns that are named here.
        index: Column whose values are the table's rows, or several such columns.
        columns: Column whose values are the table's columns. `way` is the label of a model's
            method, here or in `index`.
        named: Whether labels stand for names; without them `index` stays the index.
    """
    rows, labels = [index] if isinstance(index, str) else [*index], {**LABELS}
    if df.empty:
        return pd.DataFrame(columns=rows).set_index([] if named else rows)
    if "way" in (index, columns):
        known = ways(df)
        way = [known.get(one) for one in zip(df["model"], df["method"], strict=True)]
        df, labels["way"] = df.assign(way=way), {name: name for name in known.values()}
    by = [*rows, columns]
    df = df.dropna(subset=by)
    keys = {name: _ordered(df[name].unique(), labels.get(name, ())) for name in by}
    means = summarise(df.assign(seed=df["seed"] if "seed" in df else 0), by).set_index(by)["mean"]
    if ranged := {"low", "high"} <= {*df}:
        ends = df.groupby(by, sort=False)[["low", "high"]].mean()
        effects = [in_words(*one, named=False) for one in means.to_frame().join(ends).to_numpy()]
        means = pd.Series(effects, index=means.index)
    table = means.unstack(columns)[keys[columns]]
    lines = [
        key if len(rows) > 1 else key[0]
        for key in itertools.product(*(keys[name] for name in rows))
    ]
    table = table.loc[[key for key in lines if key in table.index]]
    table = table.fillna("–") if ranged else table
    if columns == "metric":
        table = table.astype({name: int for name in table if unit(name) == "images"})
    if not named:
        return table
    table = table.rename(columns=labels.get(columns, {})).rename_axis(columns=None).reset_index()
    return table.assign(**{name: table[name].replace(labels.get(name, {})) for name in rows})


def _ordered(values: Iterable[Any], order: Iterable[Any]) -> list[Any]:
    """Return values in the order of a registry; those that it does not name come before them."""
    order, values = list(order), list(values)
    return [one for one in values if one not in order] + [one for one in order if one in values]


def side_by_side(verdicts: Mapping[str, Sequence[Verdict]]) -> pd.DataFrame:
    """Return a row per claim, with its outcome and effect in each scope.

    Args:
        verdicts: Name of a scope -> verdicts on the same claims, in one order.
    """
    claims = [one.claim for one in next(iter(verdicts.values()))]
    named = [f"{c.short} ({c.cell})" if c.cell else c.short for c in claims]
    alone = {name: [verdict_rows([x], cells=False).iloc[0] for x in own]
             for name, own in verdicts.items()}  # fmt: skip
    told = {name: [*map(outcome_of, rows)] for name, rows in alone.items()}
    return pd.DataFrame({"statement": named} | told)


def outcome_of(row: Mapping[str, Any]) -> str:
    """Return outcome and effect of a row of `verdict_rows` in words."""
    return f"{plain(row['outcome'])}: {effect_of(row)}"


def styled(df: pd.DataFrame, cell: Callable[[Any], str]) -> Any:
    """Return a Styler with escaped text; `cell` formats values that are no text."""

    def safe(value: Any) -> str:
        return html.escape(value if isinstance(value, str) else str(cell(value)))

    df = df.rename_axis(
        index=[name if name is None else safe(str(name)) for name in df.index.names],
        columns=[name if name is None else safe(str(name)) for name in df.columns.names],
    )
    styler = df.style.format(safe, na_rep="–")
    return styler.format_index(escape="html", axis=0).format_index(escape="html", axis=1)


def _number(value: Any, digits: int) -> Any:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return value
    whole = isinstance(value, numbers.Integral)
    return (f"{value:d}" if whole else f"{round(value, 9):z.{digits}f}").replace("-", "−")


def pretraining_table(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Return effects and intervals over other pre-trainings beside the main model's.

    One row per claim; claims with one pre-training are left out.
    """
    rows = []
    for one in verdicts:
        if one.n_pretrainings > 1:
            name = f"{one.claim.short}: {one.claim.cell}".removesuffix(": ")
            others = {f"others: {end}": x for end, x in one.pretrainings._asdict().items()}
            row = {"claim": name, **one.interval._asdict(), **others}
            rows.append({**row, "pre-trainings": one.n_pretrainings})
    return pd.DataFrame(rows)


def matched_table(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Return outcomes and effects of comparisons at the chosen rates and at equal accuracy, norm.

    One row per comparison, one column per setting. Claims judged only at the chosen rates are left
    out.
    """
    tested = [v for v in verdicts if v.outcome != "not tested" and v.claim.setting in _EQUAL]
    matched = {v.claim.id.partition("@")[0] for v in tested if v.claim.setting != _EQUAL[0]}
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for one in tested:
        claim, (row,) = one.claim, verdict_rows([one], cells=False).to_dict("records")
        if (name := claim.id.partition("@")[0]) in matched:
            sides = [METHOD_LABEL[side] for side in (claim.left, claim.right)]
            what = _TOLD.get(claim.metric, claim.metric)
            compared = f"{what}: {sides[0]} {claim.relation} {sides[1]}"
            here, outcome = plain(row["here"]), plain(row["outcome"])
            said = f"{outcome}: {effect_of(row)}"
            said += f"; {here} on these tasks" if here not in ("", outcome) else ""
            about = {"statement": claim.short, "compared": compared} | dict.fromkeys(_EQUAL, "–")
            rows.setdefault((name, compared), about)[claim.setting] = said
    table = pd.DataFrame(list(rows.values()), columns=["statement", "compared", *_EQUAL])
    return table.rename(columns={"chosen": "chosen rates", "equal length": "equal norm"})
