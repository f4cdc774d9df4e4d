"""Pre-training schemes: a colour, marker and label of each; tables beside the paper's."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd

from tasklab.errors import TasklabError
from tasklab.evidence.figures import tables
from tasklab.evidence.figures.rows import methods_in, most_tasks, where
from tasklab.evidence.figures.style import METHOD_LABEL, Looks
from tasklab.evidence.records.papers import papers
from tasklab.evidence.records.table import is_awaited, summarise
from tasklab.models.zoo import FAMILIES, REGISTRY, family
from tasklab.tasks.suites import OWN
from tasklab.tuning.methods import METHODS

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
_MODELS = {  # the other embedded ones
    "mini": "CLIP",
    "mini_s": "smaller CLIP",
    "mini_xs": "smallest CLIP",
    "mini_convnext": "ConvNeXt",
    "mini_t5": "T5",
}
_OTHERS = (("#595959", "*"), ("#999999", "X"), ("#7FC9AF", "h"), ("#B2DF8A", "d"))


def role(model: str) -> str:
    """Return a model's role among the compared schemes, or its own name."""
    roles = family(model) if model in REGISTRY else {}
    return next((name for name in SCHEMES if roles.get(name) == model), model)


def looks(df: pd.DataFrame) -> dict[str, tuple[str, str, str]]:
    """Return label, colour and marker of each model in a table, in the paper's order."""
    roles = {model: role(model) for model in dict.fromkeys(df["model"])}
    compared = [model for name in SCHEMES for model in roles if roles[model] == name]
    others = [model for model in roles if roles[model] not in SCHEMES]
    spare = {model: (scheme(model), *look) for model, look in zip(others, itertools.cycle(_OTHERS))}
    return {model: SCHEMES[roles[model]] for model in compared} | spare


def broken(named: Looks) -> dict[str, str]:
    """Return the labels of models, broken at their commas."""
    return {model: label.replace(", ", ",\n") for model, (label, _, _) in named.items()}


def scheme(model: str) -> str:
    """Return a model's label: its pre-training if that is compared, or its kind."""
    return SCHEMES[role(model)][0] if role(model) in SCHEMES else _MODELS.get(model, model)


def ways(df: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return a label for each model and method of a table; models but the first have their own.

    The first model's ways of fine-tuning come first.
    """
    there = set(zip(df["model"], df["method"], strict=True))
    models = list(dict.fromkeys(df["model"]))
    return {
        (model, method): METHOD_LABEL[method] if model == models[0] else scheme(model)
        for model, method in itertools.product(models, methods_in(df))
        if (model, method) in there
    }


def of_vocabulary(df: pd.DataFrame, vocabulary: str) -> pd.DataFrame:
    """Return the records of one vocabulary, or all without such a column."""
    return where(df, vocabulary=vocabulary) if "vocabulary" in df else df


def closed_table(df: pd.DataFrame, table: str = "1", *, method: str = "nonlinear") -> Any:
    """Return single-task and addition accuracies beside the paper's (tables 1, 3).

    One row per scheme, in %, with the standard deviation over seeds and the paper's number in
    brackets; compare the order of rows. Records: `single` and `addition`.

    Args:
        df: Tidy records.
        table: Number of the paper's table.
        method: Whose vectors are added; `full` in table 3.
    """
    if is_awaited(df):
        return tables.table(df)
    df, printed = of_vocabulary(df, "closed"), papers("closed_vocab", table)
    if set(df["suite"]) == {OWN}:  # there is nothing to compare them with
        printed = printed.iloc[:0]
    of_paper = next((dict(r) for r in FAMILIES if "mini" not in r.values()), {})
    rows = [
        _line(label, where(df, model=model), where(printed, model=of_paper.get(role(model))),
              method, "probe", "probing")
        for model, (label, _, _) in looks(where(df, method=method)).items()
    ]  # fmt: skip
    return _styled(rows, "pre-training")


def open_table(df: pd.DataFrame) -> Any:
    """Return accuracies in the open vocabulary beside the paper's (table 4).

    Records: `single` and `addition` of a lab with a zero-shot head, of `nonlinear` and `full`.
    """
    if is_awaited(df):
        return tables.table(df)
    df, printed = of_vocabulary(df, "open"), papers("closed_vocab", "4")
    names = {"nonlinear": "encoder", "full": METHOD_LABEL["full"]}
    rows = [_line(names[method], df, printed, method, "pretrained", "zero-shot")
            for method in names if (df["method"] == method).any()]  # fmt: skip
    return _styled(rows, "fine-tuned")


def editing_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return accuracy alone and in the sum of all tasks, of every model and method.

    In %: alone, sum (absolute) and normalised, with standard deviations over seeds; number of
    seeds. Records: `single` and `addition` of one or several models; with `joint`, one model
    trained on all tasks stands above, as `…, jointly`, of every method that trains.
    """
    tested, by = where(df, split="test"), ["model", "method"]
    columns: dict[str, pd.Series] = {}
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
    joint = summarise(where(tested, experiment="joint", metric="absolute"), by).set_index(by)
    if len(joint):
        trained = [name for name in methods if name in METHODS]
        ways = itertools.product(joint.index.unique("model"), trained)
        joint = joint.astype({"n_seeds": "Int64"}).reindex(list(ways))
        joint = joint.rename(columns={"mean": "sum", "std": "± sum", "n_seeds": "seeds"})
        joint = joint.rename(index=lambda way: f"{METHOD_LABEL[way]}, jointly", level="method")
        table = pd.concat([joint.reindex(columns=table.columns), table])
    table = table.rename(index=scheme, level="model")
    return table.rename_axis(["model", "method"])


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


def _styled(rows: list[dict], title: str) -> Any:
    if not rows:
        raise TasklabError("nothing to show: there are no records of this kind.")
    table = pd.DataFrame(rows).rename(columns={"": title})
    table = table.drop(columns=[n for n in table if all(cell == (None, None) for cell in table[n])])
    lines = [{"selector": "td + td", "props": "white-space: pre"}]
    look = [*tables.AIRY, *lines, {"selector": "td", "props": "vertical-align: top"}]
    return tables.styled(table, _cell).hide(axis="index").set_table_styles(look)


def _cell(value: tuple[tuple | None, ...]) -> str:
    ours, theirs = map(_number, value)
    return ours if theirs == "–" else f"{ours}\n({theirs})"


def _number(value: tuple | None) -> str:
    if value is None:
        return "–"
    mean, std, *at = value
    spread = "" if std != std else f" ± {std:.1f}"
    return f"{mean:.1f}{spread}" + "".join(f" at {one:.2f}" for one in at if one is not None)
