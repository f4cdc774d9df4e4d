"""Tables of accuracies alone and in the sum beside the papers', and of their cost."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd

from tasklab.errors import TasklabError
from tasklab.evidence.figures import tables
from tasklab.evidence.figures.rows import most_tasks, where
from tasklab.evidence.figures.schemes import looks, of_vocabulary, role, scheme
from tasklab.evidence.figures.style import METHOD_LABEL
from tasklab.evidence.records.papers import papers
from tasklab.evidence.records.table import is_awaited, summarise
from tasklab.models.zoo import FAMILIES
from tasklab.tasks.suites import OWN


def beside_paper(
    df: pd.DataFrame, table: str = "1", *, method: str = "nonlinear", whole: bool = False
) -> Any:
    """Return single-task and addition accuracies beside those of a table of the paper (1, 3, 4).

    One row per scheme (table 4: per way of fine-tuning), in %, with the standard deviation over
    seeds and the paper's number in brackets; compare the order of rows. Records: `single` and
    `addition`; for table 4 of a lab with a zero-shot head.

    Args:
        df: Tidy records.
        table: Number of the paper's table.
        method: Whose vectors are added: `full` in table 3; table 4 has both.
        whole: Whether numbers are whole percent, without spreads and coefficients.
    """
    if is_awaited(df):
        return tables.table(df)
    vocabulary = "open" if table == "4" else "closed"
    df, printed = of_vocabulary(df, vocabulary), papers("closed_vocab", table)
    if table == "4":
        names = {"nonlinear": "encoder", "full": METHOD_LABEL["full"]}
        rows = [_line(names[method], df, printed, method, "pretrained", "zero-shot")
                for method in names if (df["method"] == method).any()]  # fmt: skip
        return _styled(rows, "fine-tuned", whole=whole)
    if set(df["suite"]) == {OWN}:  # there is nothing to compare them with
        printed = printed.iloc[:0]
    of_paper = next((dict(r) for r in FAMILIES if "mini" not in r.values()), {})
    rows = [
        _line(label, where(df, model=model), where(printed, model=of_paper.get(role(model))),
              method, "probe", "probing")
        for model, (label, _, _) in looks(where(df, method=method)).items()
    ]  # fmt: skip
    return _styled(rows, "pre-training", whole=whole)


def texts_beside_paper(
    df: pd.DataFrame, table: str = "1", *, method: str = "nonlinear"
) -> pd.DataFrame:
    """Return the table of `beside_paper` with texts for cells, as a file has it.

    Args:
        df: Tidy records.
        table: Number of the paper's table.
        method: Whose vectors are added.
    """
    shown = beside_paper(df, table, method=method).data
    return shown.map(lambda cell: _cell(cell) if isinstance(cell, tuple) else cell)


def alone_and_summed(df: pd.DataFrame) -> pd.DataFrame:
    """Return records of accuracies alone and in the sum of all tasks, which `tabulate` shows.

    Column `quantity` is alone, sum or normalised. Records: `single` and `addition` of one or
    several models; the method of `joint`, one model trained on all tasks, is `…, jointly`.
    """
    tested = where(df, split="test")
    sums = where(tested, experiment="addition")
    sums = sums[sums["n_tasks"] == sums.groupby("model")["n_tasks"].transform("max")]
    joint = where(tested, experiment="joint", metric="absolute")
    joint = joint.assign(method=[f"{METHOD_LABEL[name]}, jointly" for name in joint["method"]])
    parts = {
        "alone": where(tested, experiment="single"),
        "sum": pd.concat([joint, where(sums, metric="absolute")]),
        "normalised": where(sums, metric="normalised"),
    }
    rows = pd.concat([part.assign(quantity=name) for name, part in parts.items()])
    return rows.assign(model=rows["model"].map(scheme))


def price(costs: pd.DataFrame, sums: pd.DataFrame) -> pd.DataFrame:
    """Return costs of probing and addition in seconds and the gain in points, one row per scheme.

    `costs` are records of `closed_cost`, `sums` of `single` and `addition`.
    """
    costs = costs[costs["metric"] != "seconds_subsets"]
    seconds = costs.pivot_table(index="model", columns="method", values="value", aggfunc="sum")
    probing, total = seconds["probe"], seconds["probe"] + seconds["nonlinear"]
    added = where(sums, experiment="addition", metric="absolute", method="nonlinear", split="test")
    table = pd.DataFrame({"probing (s)": probing, "addition (s)": total, "times": total / probing})
    table["gain (points)"] = added.groupby("model")["value"].mean() - probed(sums)
    table.insert(0, "pre-training", table.index.map(scheme))
    return table.loc[list(looks(costs))].reset_index(drop=True)


def probed(df: pd.DataFrame) -> pd.Series:
    """Return each model's mean test accuracy of the probes."""
    probes = where(df, experiment="single", method="probe", split="test")
    return probes.groupby("model")["value"].mean().rename("probed")


def subset_cost(df: pd.DataFrame) -> pd.DataFrame:
    """Return seconds and coefficients tried for all subsets. Records: `subsets`."""
    rows, costs = [], where(df, experiment="closed_cost")
    for method in dict.fromkeys(costs["method"]):
        for model in looks(where(costs, method=method)):
            mine = where(df, model=model, method=method)
            value = mine.groupby("metric")["value"].mean()
            rows.append({
                "fine-tuned": METHOD_LABEL[method],
                "pre-training": scheme(model),
                "groups": mine["subset"].replace("", np.nan).nunique(),
                "coefficients tried": value["tried"],
                "seconds": value["seconds_subsets"],
            })  # fmt: skip
    return pd.DataFrame(rows)


def _line(
    label: str, ours: pd.DataFrame, theirs: pd.DataFrame, method: str, start: str, named: str
) -> dict[str, Any]:
    """Return a row of a table; numbers are (mean, spread), ours and the paper's."""
    ours = where(ours, split="test")
    sums = most_tasks(where(ours, experiment="addition"))
    ours = pd.concat([where(ours, experiment="single"), sums])
    columns = {named: "single", "single task": "single", "sum, at λ": "absolute",
               "normalised": "normalised", "λ": "lambda"}  # fmt: skip
    row: dict[str, Any] = {"": label}
    for name, metric in columns.items():
        of, sides = start if name == named else method, []
        for frame in (ours, theirs):
            runs = where(frame, experiment=["single", "addition"], metric=metric, method=of)
            runs = runs.assign(seed=runs.get("seed", 0)).dropna(subset=["value"])
            # There is one probe for all seeds.
            told = [(one["mean"], one["std"] if of != start else np.nan)
                    for one in summarise(runs, ["method"]).to_dict("records")]  # fmt: skip
            sides.append(next(iter(told), None))
        row[name] = tuple(sides)
    lambdas = [one and one[0] for one in row.pop("λ")]  # beside the sums that they belong to
    sums = zip(row["sum, at λ"], lambdas, strict=True)
    row["sum, at λ"] = tuple(one and (*one, at) for one, at in sums)
    return row


def _styled(rows: list[dict], title: str, *, whole: bool) -> Any:
    if not rows:
        raise TasklabError("nothing to show: there are no records of this kind.")
    table = pd.DataFrame(rows).rename(columns={"": title})
    table = table.drop(columns=[n for n in table if all(cell == (None, None) for cell in table[n])])
    lines = [{"selector": "td + td", "props": "white-space: pre"}]
    look = [*tables.AIRY, *lines, {"selector": "td", "props": "vertical-align: top"}]
    if whole:
        table = table.rename(columns={"sum, at λ": "sum"})
    cell = functools.partial(_cell, between=" " if whole else "\n", whole=whole)
    return tables.styled(table, cell).hide(axis="index").set_table_styles(look)


def _cell(value: tuple[tuple | None, ...], between: str = " ", *, whole: bool = False) -> str:
    ours, theirs = (_number(one, whole=whole) for one in value)
    return ours if theirs == "–" else f"{ours}{between}({theirs})"


def _number(value: tuple | None, *, whole: bool) -> str:
    if value is None:
        return "–"
    mean, std, *at = value
    if whole:
        return f"{mean:.0f}"
    spread = "" if std != std else f" ± {std:.1f}"
    return f"{mean:.1f}{spread}" + "".join(f" at {one:.2f}" for one in at if one is not None)
