"""Pre-training schemes: a colour, marker and label of each; tables beside the paper's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tasklab.errors import TasklabError
from tasklab.figures import tables
from tasklab.figures.style import METHOD_LABEL
from tasklab.models.zoo import FAMILIES, family
from tasklab.records.papers import papers
from tasklab.records.table import is_awaited, summarise
from tasklab.tasks.suites import OWN

# A hue for each sort of pre-training, darker with more data or a larger model; markers repeat it.
SCHEMES = {  # role -> label, colour, marker
    "sup_few": ("supervised, fewer classes", "#E69F00", "o"),
    "sup_many": ("supervised, more classes", "#D55E00", "s"),
    "mae": ("masked autoencoder", "#009E73", "^"),
    "dino": ("DINO", "#CC79A7", "v"),
    "clip_less": ("CLIP, fewer pairs", "#56B4E9", "<"),
    "clip_more": ("CLIP, more pairs", "#0072B2", ">"),
    "sup_large": ("supervised, larger model", "#7A4B00", "D"),
    "clip_large": ("CLIP, larger model", "#000000", "P"),
}
_OTHERS = ("#595959", "#999999", "#7FC9AF", "#B2DF8A")
_OTHER_MARKERS = "*Xhd"


def role(model: str) -> str:
    """Return the role of a model among the schemes that are compared, or its own name."""
    roles = family(model)
    return next((name for name in SCHEMES if roles.get(name) == model), model)


def looks(df: pd.DataFrame) -> dict[str, tuple[str, str, str]]:
    """Return label, colour and marker of each model in a table, in the paper's order."""
    models = list(dict.fromkeys(df["model"]))
    order = list(SCHEMES)
    models.sort(key=lambda m: order.index(role(m)) if role(m) in order else len(order))
    others = [m for m in models if role(m) not in SCHEMES]
    spare = {
        m: (m, _OTHERS[i % len(_OTHERS)], _OTHER_MARKERS[i % len(_OTHER_MARKERS)])
        for i, m in enumerate(others)
    }
    return {m: SCHEMES.get(role(m)) or spare[m] for m in models}


def scheme(model: str) -> str:
    """Return the label of a model's pre-training, or its name if it is none that is compared."""
    return SCHEMES[role(model)][0] if role(model) in SCHEMES else model


def of_vocabulary(df: pd.DataFrame, vocabulary: str | None) -> pd.DataFrame:
    """Return the records of one vocabulary, or all where that is not told."""
    if vocabulary is None or "vocabulary" not in df:
        return df
    return df[df["vocabulary"] == vocabulary]


def closed_table(df: pd.DataFrame, table: str = "1", *, method: str = "nonlinear") -> Any:
    """Return single-task and addition accuracies of each scheme beside the paper's (tables 1, 3).

    Args:
        df: Records of `experiments.probing` and `experiments.closed_addition`.
        table: Of the paper, whose numbers stand beside ours.
        method: Whose vectors are added; `full` in table 3.

    Returns:
        A pandas Styler: a row for each scheme, in %, with the standard deviation over seeds where
        there are several. The worlds differ: read the order of the rows.
    """
    if is_awaited(df):
        return tables.table(df)
    df, printed = of_vocabulary(df, "closed"), papers("closed_vocab", table)
    if set(df["suite"]) == {OWN}:  # there is nothing to compare them with
        printed = printed.iloc[:0]
    of_paper = next((dict(r) for r in FAMILIES if "mini" not in r.values()), {})
    rows = []
    for model, (label, _, _) in looks(df[df["method"] == method]).items():
        mine = df[df["model"] == model]
        theirs = printed[printed["model"] == of_paper.get(role(model))]
        rows.append(_line(label, mine, theirs, method, "probe", "probing"))
    return _styled(rows, "pre-training")


def open_table(df: pd.DataFrame) -> Any:
    """Return accuracies in the open vocabulary beside the paper's (table 4).

    Args:
        df: Records of `experiments.probing` and `experiments.closed_addition` of a lab with a
            zero-shot head, of the methods `nonlinear` (the encoder alone) and `full`.
    """
    if is_awaited(df):
        return tables.table(df)
    df, printed = of_vocabulary(df, "open"), papers("closed_vocab", "4")
    names = {"nonlinear": "encoder", "full": METHOD_LABEL["full"]}
    rows = [
        _line(label, df, printed, method, "pretrained", "zero-shot")
        for method, label in names.items()
        if (df["method"] == method).any()
    ]
    return _styled(rows, "fine-tuned")


def price(costs: pd.DataFrame, sums: pd.DataFrame, *, method: str = "nonlinear") -> pd.DataFrame:
    """Return what probing and addition cost, and what addition gains for it, a row a scheme.

    Args:
        costs: Records of `experiments.closed_cost`.
        sums: Records of `experiments.probing` and `experiments.closed_addition`.
        method: Whose vectors are added.

    Returns:
        Columns pre-training, probing (s), addition (s) with probing in it, times, and gain
        (points): mean test accuracy of the sum less that of the probes.
    """
    sums = sums[(sums["split"] == "test") & sums["metric"].isin(["single", "absolute"])]
    rows = []
    for model in looks(costs):
        mine = costs[(costs["model"] == model) & (costs["metric"] != "seconds_subsets")]
        probing = mine[mine["method"] == "probe"]["value"].sum()
        total = probing + mine[mine["method"] == method]["value"].sum()
        ours = sums[sums["model"] == model]
        ends = [
            ours[(ours["experiment"] == experiment) & (ours["method"] == of)]["value"].mean()
            for experiment, of in (("addition", method), ("single", "probe"))
        ]
        rows.append(
            {
                "pre-training": scheme(model),
                "probing (s)": probing,
                "addition (s)": total,
                "times": total / probing,
                "gain (points)": ends[0] - ends[1],
            }
        )
    return pd.DataFrame(rows)


def subset_cost(df: pd.DataFrame) -> pd.DataFrame:
    """Return what all subsets took: seconds and coefficients tried, a row a scheme and method.

    Args:
        df: Records of `experiments.subsets`.
    """
    rows, costs = [], df[df["experiment"] == "closed_cost"]
    for method in dict.fromkeys(costs["method"]):
        for model in looks(costs[costs["method"] == method]):
            mine = df[(df["model"] == model) & (df["method"] == method)]
            value = mine.groupby("metric")["value"].mean()
            rows.append(
                {
                    "fine-tuned": METHOD_LABEL[method],
                    "pre-training": scheme(model),
                    "groups": mine["subset"].replace("", np.nan).nunique(),
                    "coefficients tried": value["tried"],
                    "seconds": value["seconds_subsets"],
                }
            )
    return pd.DataFrame(rows)


def _line(
    label: str, ours: pd.DataFrame, theirs: pd.DataFrame, method: str, start: str, named: str
) -> dict[tuple[str, str], Any]:
    """Return a row of a table; numbers are (mean, spread, digits)."""
    row: dict[tuple[str, str], Any] = {("", ""): label}
    ours = ours[ours["split"] == "test"]
    sums = ours[ours["experiment"] == "addition"]
    ours = ours[(ours["experiment"] == "single") | (ours["n_tasks"] == sums["n_tasks"].max())]
    columns = {
        named: ("single", "single", start),
        "single": ("single", "single", method),
        "sum": ("addition", "absolute", method),
        "normalised": ("addition", "normalised", method),
        "λ": ("addition", "lambda", method),
    }
    seeds = 1
    for name, (experiment, metric, of) in columns.items():
        digits = 2 if name == "λ" else 1
        for frame, where in ((ours, "here"), (theirs, "paper")):
            chosen = (frame["experiment"] == experiment) & (frame["metric"] == metric)
            runs = frame[chosen & (frame["method"] == of)]
            runs = runs.assign(seed=runs.get("seed", 0)).dropna(subset=["value"])
            mean = summarise(runs, ["method"])
            row[name, where] = None
            if len(mean):
                plain = (
                    of == start or name == "λ"
                )  # one probe for all seeds; a coefficient of a grid
                spread = np.nan if plain else float(mean.loc[0, "std"])
                row[name, where] = (float(mean.loc[0, "mean"]), spread, digits)
                if of != start and where == "here":  # probes are the same for all seeds
                    seeds = max(seeds, int(mean.loc[0, "n_seeds"]))
    return {**row, ("seeds", ""): seeds}


def _styled(rows: list[dict], title: str) -> Any:
    if not rows:
        raise TasklabError("nothing to show: there are no records of this kind.")
    table = pd.DataFrame(rows).dropna(axis=1, how="all")
    table.columns = pd.MultiIndex.from_tuples([(c[0] or title, c[1]) for c in table.columns])
    narrow = [("font-size", "0.82em"), ("padding", "0.2em 0.35em"), ("white-space", "nowrap")]
    look = [
        *tables.AIRY,
        {"selector": "th", "props": [*narrow, ("text-align", "center")]},
        {"selector": "td", "props": narrow},
    ]
    return table.style.format(_cell, na_rep="–").hide(axis="index").set_table_styles(look)


def _cell(value: Any) -> str:
    if not isinstance(value, tuple):
        return str(value)
    mean, std, digits = value
    return f"{mean:.{digits}f}" + ("" if std != std else f" ± {std:.{digits}f}")
