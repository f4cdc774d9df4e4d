"""The numbers printed in the papers, and ours beside them."""

from __future__ import annotations

import functools
import io
import math
from pathlib import Path

import pandas as pd

from tasklab.errors import choose
from tasklab.evidence.records.claims import Claim
from tasklab.evidence.records.table import one_model, select, summarise, where
from tasklab.storage import shipped
from tasklab.tuning.methods import METHODS, TABLE

_SUM = ("addition", "absolute")  # experiment and metric of the accuracy of a sum
INIT_LABEL = {"pretrained": "pre-trained", "random": "random weights"}  # what weights start from


def papers(paper: str | None = None, table: str | None = None) -> pd.DataFrame:
    """Return the numbers printed in the papers' tables, optionally of one paper or one table.

    Args:
        paper: `tangent`, `linear_layers`, `closed_vocab`, `ctl` or `merging`.
        table: The table's number as printed, e.g. `"1"`.

    Returns:
        Columns paper, table, page_or_section, row and column (as printed), method and model (our
        names), experiment, metric, value, unit, source_file, note. `value` is NaN where the cell
        is missing in the text at hand.
    """
    df = _parsed(shipped.content(Path(__file__).with_name("papers.csv")))
    for name, wanted in (("paper", paper), ("table", table and str(table))):
        if wanted is not None:
            choose(name, wanted, dict.fromkeys(df[name]))
            df = where(df, **{name: wanted})
    return df.reset_index(drop=True)


@functools.lru_cache(maxsize=1)
def _parsed(text: bytes) -> pd.DataFrame:
    df = pd.read_csv(io.BytesIO(text), dtype={"table": str})
    return df.fillna({name: "" for name in df if name != "value"})


def printed(claim: Claim) -> dict[str, float]:
    """Return a claim's effect in its paper's tables by model, positive in its direction."""
    table = where(papers(claim.paper), experiment=claim.experiment, metric=claim.metric)
    values = table.groupby(["model", "method"])["value"].first().unstack()
    both = [values.get(side) for side in (claim.left, claim.right)]
    if any(side is None for side in both):
        return {}
    left, right = both
    sign = -1 if claim.relation == "<" else 1
    return (sign * (left - claim.factor * right)).dropna().round(2).to_dict()


def beside(
    ours: pd.DataFrame, paper: str, table: str, model: str, *, n_tasks: int = 8
) -> pd.DataFrame:
    """Put our averages beside a paper's table.

    With the embedded default as `ours` the difference is between two worlds: read the order of
    the rows, not its size. With records of `joint`, a table of sums begins with one model trained
    on all tasks, as `…, jointly`: a row for each printed method, NaN where it is not recorded.

    Args:
        ours: Tidy records of one model; random initialisation is used for tables about it only.
        paper: Name of its chapter.
        table: The paper's table.
        model: The column of the paper's table, as our model name, e.g. `"vitb32"`.
        n_tasks: Number of tasks in a sum.

    Returns:
        One row for each printed number: method, called (the row's name in the paper), metric,
        paper, here, std over seeds, seeds, difference (here − paper). NaN where we have no
        measurement.
    """
    printed = papers(paper, table)
    choose("model", model, dict.fromkeys(printed["model"]))
    cells = where(printed, model=model).to_dict("records")
    rows, joint = [], where(ours, experiment="joint")
    sums = (cell for cell in cells if (cell["experiment"], cell["metric"]) == _SUM)
    trained = [c["method"] for c in sums if c["method"] in METHODS and len(joint)]
    for method in dict.fromkeys(trained):
        value = joint[joint["method"] == method].groupby("seed")["value"].mean()
        rows.append({
            "method": f"{TABLE[method].title}, jointly", "called": "", "metric": _SUM[1],
            "paper": math.nan, "here": value.mean(), "std over seeds": value.std(),
            "seeds": len(value), "difference": math.nan,
        })  # fmt: skip
    for cell in cells:
        init = "random" if cell["experiment"] == "random_init" else "pretrained"
        mine = summarise(_cell(one_model(ours, init), cell, n_tasks), ["model"])
        mean, std, seeds = (
            mine.loc[0, ["mean", "std", "n_seeds"]] if len(mine) else (math.nan, math.nan, 0)
        )
        name = cell["method"]
        rows.append({
            "method": TABLE[name].title if name in TABLE else INIT_LABEL[init],
            "called": cell["row"], "metric": cell["metric"], "paper": cell["value"],
            "here": mean, "std over seeds": std, "seeds": int(seeds),
            "difference": mean - cell["value"],
        })  # fmt: skip
    return pd.DataFrame(rows)


def _cell(df: pd.DataFrame, cell: dict, n_tasks: int) -> pd.DataFrame:
    experiment, metric = cell["experiment"], cell["metric"]
    if experiment == "random_init":  # the tables on random networks name these two differently
        experiment, metric = {"single": ("single", "single")}.get(metric, ("addition", "absolute"))
    records = select(df, experiment, metric, cell["method"], n_tasks)
    if records.empty and cell["method"] == "pretrained" and metric in ("absolute", "target"):
        # Without a task vector these are the zero-shot accuracy, which we record as `single`.
        records = select(df, "single", "single", "pretrained", n_tasks)
    return records
