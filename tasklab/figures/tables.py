"""Tables for readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from tasklab.figures.style import METHOD_LABEL, methods_in
from tasklab.records.claims import ABOUT_VERDICTS, Verdict
from tasklab.records.schema import UNITS
from tasklab.records.table import summarise

_AIRY = [{"selector": "th, td", "props": [("padding", "0.2em 0.7em")]}]


def verdict_table(verdicts: Iterable[Verdict]) -> Any:
    """Return the verdicts as a table whose colours only repeat what the words say.

    Returns:
        A pandas Styler (its `.data` is the DataFrame): paper, table, claim, test, verdict, and the
        effect with its spread over seeds, positive in the claimed direction.
    """
    rows = [
        {
            "paper": v.claim.paper.replace("_", " "),
            "table": v.claim.table,
            "claim": v.claim.statement,
            "test": v.claim.test,
            "here": v.holds,
            "effect ± spread (seeds)": _effect(v),
        }
        for v in verdicts
    ]
    tints = {"holds": "#CDE7DD", "holds weakly": "#FBEBC8", "does not hold here": "#F6D5C0"}
    tints["holds (one seed)"] = tints["holds"]
    styler = pd.DataFrame(rows).style.hide(axis="index").set_caption(ABOUT_VERDICTS)
    styler = styler.set_properties(**{"text-align": "left", "vertical-align": "top"})
    styler = styler.set_table_styles(_AIRY)
    if not rows:
        return styler
    return styler.map(
        lambda word: f"background-color: {tints.get(word, 'white')}; color: black", subset=["here"]
    )


def table(df: pd.DataFrame, digits: int = 1) -> Any:
    """Return a table of numbers for readers: rounded, a dash where there is none.

    Args:
        df: E.g. what `results.beside` or `editing_table` returned.
        digits: After the decimal point.

    Returns:
        A pandas Styler; rows are numbered only where their numbers mean something.
    """
    whole = [name for name in df if pd.api.types.is_integer_dtype(df[name])]
    styler = df.style.format(precision=digits, na_rep="–").format("{:d}", subset=whole)
    styler = styler.set_table_styles(_AIRY)
    return styler.hide(axis="index") if isinstance(df.index, pd.RangeIndex) else styler


def verdict_counts(verdicts: Iterable[Verdict]) -> Any:
    """Return how many claims of each paper hold, hold weakly and do not hold, as a table."""
    told = {
        "holds": "hold",
        "holds (one seed)": "hold (one seed)",
        "holds weakly": "hold weakly",
        "does not hold here": "do not hold here",
        "not tested": "not tested",
    }
    rows = [(v.claim.paper.replace("_", " "), told[v.holds]) for v in verdicts]
    df = pd.DataFrame(rows, columns=["paper", "here"])
    counts = pd.crosstab(df["paper"], df["here"]).reindex(index=df["paper"].unique())
    counts = counts[[name for name in told.values() if name in counts]]
    counts["claims"] = counts.sum(axis=1)
    return counts.rename_axis(index=None, columns=None).style.set_table_styles(_AIRY)


def _effect(v: Verdict) -> str:
    if not v.n_seeds:
        return "–"
    unit = UNITS.get(v.claim.metric, "").replace("%", "points")
    spread = f" ± {v.spread:.2g}" if v.n_seeds > 1 else ""
    return f"{v.effect:+.3g}{spread} {unit} ({v.n_seeds})"


def origin_table(provenance: Mapping[str, Any]) -> pd.DataFrame:
    """Return where recorded results come from: versions, machine, configuration, time."""
    flat: dict[str, Any] = {}
    for name, value in provenance.items():
        nested = value if isinstance(value, Mapping) else {"": value}
        flat |= {f"{name} {inner}".strip(): v for inner, v in nested.items()}
    told = {name: str(value) for name, value in flat.items() if value is not None}
    return pd.DataFrame({"": told.values()}, index=list(told))


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
        found = summarise(rows, ["model", "method"]).set_index(["model", "method"])
        columns |= {name: found["mean"], f"± {name}": found["std"]}
        columns.setdefault("seeds", found["n_seeds"])
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
