"""Tables for readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from tasklab.figures.style import METHOD_LABEL, methods_in
from tasklab.records.judgement import ABOUT_VERDICTS, OUTCOMES, Verdict
from tasklab.records.statements import verdict_rows
from tasklab.records.table import summarise

AIRY = [{"selector": "th, td", "props": [("padding", "0.2em 0.7em")]}]


_TINTS = {"holds": "#CDE7DD", "does not hold": "#F6D5C0", "undecided": "#FBEBC8"}


def verdict_table(verdicts: Iterable[Verdict]) -> Any:
    """Return the verdicts as a table whose colours only repeat what the words say.

    Returns:
        A pandas Styler (its `.data` is the DataFrame), a row a statement and below it one for each
        of its cells: where it is said, the statement, the outcome, and the effect with its 95 %
        interval, positive in the claimed direction, seeds, and tasks as claimed.
    """
    judged = verdict_rows(verdicts)
    several = judged["paper"].nunique() > 1
    rows = [
        ({"paper": row["paper"].replace("_", " ")} if several else {})
        | {
            "statement": _statement(row),
            "here": row["outcome"] + _share(row),
            "effect": _effect(row),
            "seeds": row["n_seeds"] or "–",
            "tasks as claimed": _tasks(row),
            "corrected": row["corrected"] if row["corrected"] != row["outcome"] else "",
        }
        for row in judged.to_dict("records")
    ]
    styler = pd.DataFrame(rows).style.hide(axis="index").set_caption(ABOUT_VERDICTS)
    styler = styler.set_properties(**{"text-align": "left", "vertical-align": "top"})
    styler = styler.set_table_styles(AIRY)
    if not rows:
        return styler
    tints = [f"background-color: {_TINTS.get(o, 'white')}; color: black" for o in judged["outcome"]]
    return styler.apply(lambda _: tints, subset=["here"])


def _statement(row: Mapping[str, Any]) -> str:
    if row["cell"]:
        return f"– {row['cell']}"
    at = "" if row["setting"] == "chosen" else f" (at {row['setting']})"
    return row["statement"] + at


def _share(row: Mapping[str, Any]) -> str:
    """Return how many cells hold, where that is more than the outcome says."""
    if row["n_cells"] < 2 or row["outcome"] == "holds":
        return ""
    return f" ({row['cells_holding']} of {row['n_cells']} hold)"


def _effect(row: Mapping[str, Any]) -> str:
    if not row["n_seeds"]:
        return "–"
    ends = "" if pd.isna(row["low"]) else f" [{row['low']:.3g}, {row['high']:.3g}]"
    return f"{row['effect']:+.3g}{ends} {row['unit']}".rstrip()


def _tasks(row: Mapping[str, Any]) -> str:
    return f"{row['tasks_as_claimed']} of {row['n_tasks']}" if row["n_tasks"] > 1 else "–"


def table(df: pd.DataFrame, digits: int = 1) -> Any:
    """Return a table of numbers for readers: rounded, a dash where there is none.

    Args:
        df: E.g. what `results.beside` or `editing_table` returned.
        digits: After the decimal point.

    Returns:
        A pandas Styler; rows are numbered only where their numbers mean something. Of no rows it
        says that they are not recorded yet.
    """
    if df.empty:
        styler = df.iloc[:, :0].style.set_caption("Not recorded yet.").hide(axis="index")
        return styler.set_table_styles([{"selector": "caption", "props": "white-space: nowrap"}])
    whole = [name for name in df if pd.api.types.is_integer_dtype(df[name])]
    styler = df.style.format(precision=digits, na_rep="–").format("{:d}", subset=whole)
    styler = styler.set_table_styles(AIRY)
    return styler.hide(axis="index") if isinstance(df.index, pd.RangeIndex) else styler


def verdict_counts(verdicts: Iterable[Verdict]) -> Any:
    """Return how many statements of each paper hold, do not hold or are undecided, as a table."""
    judged = verdict_rows(verdicts, cells=False)
    judged = judged[judged["setting"] == "chosen"]
    verbs = {"holds": "hold", "does not hold": "do not hold"}
    paper, here = judged["paper"].str.replace("_", " "), judged["outcome"].replace(verbs)
    counts = pd.crosstab(paper, here).reindex(index=paper.unique())
    names = [verbs.get(name, name) for name in OUTCOMES]
    counts = counts[[name for name in names if name in counts]]
    counts["statements"] = counts.sum(axis=1)
    return counts.rename_axis(index=None, columns=None).style.set_table_styles(AIRY)


def pretraining_table(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Return what other seeds of pre-training say of claims, beside the main model's effects.

    Args:
        verdicts: On claims; those with one pre-training are left out.

    Returns:
        A row a claim: effect and 95 % interval of the main model, and those over the pre-trainings.
    """
    rows = []
    for verdict in verdicts:
        if verdict.n_pretrainings > 1:
            claim = verdict.claim
            row = {"claim": f"{claim.short}: {claim.cell}" if claim.cell else claim.short}
            for name, interval in (("", verdict.interval), ("others: ", verdict.pretrainings)):
                ends = zip(("effect", "low", "high"), interval, strict=True)
                row |= {f"{name}{part}": value for part, value in ends}
            rows.append(row | {"pre-trainings": verdict.n_pretrainings})
    return pd.DataFrame(rows)


def origin_table(provenance: Mapping[str, Any]) -> pd.DataFrame:
    """Return where recorded results come from: versions, machine, configuration, time."""
    flat: dict[str, Any] = {}
    for name, value in provenance.items():
        nested = value if isinstance(value, Mapping) else {"": value}
        flat |= {f"{name} {inner}".strip(): v for inner, v in nested.items()}
    facts = {name: _fact(value) for name, value in flat.items() if value is not None}
    return pd.DataFrame({"": facts.values()}, index=list(facts))


def _fact(value: Any) -> str:
    """Return what a cell of a provenance says: choices by name, values one after another."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_fact(one)}" for name, one in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def editing_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return accuracy alone and in the sum of all tasks, of every model and method.

    Args:
        df: Records of the experiments `single` and `addition`, of one or several models.

    Returns:
        One row a model and method, in %: alone, sum (absolute), normalised, each with its standard
        deviation over seeds where there are several; and the number of seeds.
    """
    sums = df[(df["experiment"] == "addition") & (df["split"] == "test")]
    largest = sums.groupby("model")["n_tasks"].transform("max")
    parts = {
        "alone": df[(df["experiment"] == "single") & (df["split"] == "test")],
        "sum": sums[(sums["metric"] == "absolute") & (sums["n_tasks"] == largest)],
        "normalised": sums[(sums["metric"] == "normalised") & (sums["n_tasks"] == largest)],
    }
    columns = {}
    for name, rows in parts.items():
        summary = summarise(rows, ["model", "method"]).set_index(["model", "method"])
        columns |= {name: summary["mean"], f"± {name}": summary["std"]}
        columns.setdefault("seeds", summary["n_seeds"])
    table = pd.DataFrame(columns)
    table["seeds"] = table.pop("seeds")  # last
    order = [
        (model, method)
        for model in dict.fromkeys(df["model"])
        for method in methods_in(df, baseline=True)
        if (model, method) in table.index
    ]
    table = table.loc[order].rename(index=METHOD_LABEL, level="method")
    return table.rename_axis(["model", "method"])
