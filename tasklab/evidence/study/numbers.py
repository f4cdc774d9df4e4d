"""Numbers that sentences of a chapter's sections name, computed from records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from tasklab.analyses.merging.registry import METHODS, SOLVED
from tasklab.evidence.figures.labels import MERGE_LABEL
from tasklab.evidence.records.table import most_tasks, where
from tasklab.models.zoo import family

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NO_MERGES = ("arithmetic", "best_span", "best", "best_loss", "joint", *SOLVED)


def section_numbers(
    sections: Mapping[str, Mapping[str, Any]], rows: pd.DataFrame, model: str
) -> dict[str, dict[str, Any]]:
    """Return the numbers of a chapter's sentences, by section; NaN where not measured.

    Args:
        sections: Of the chapter in `sections.toml`, by anchor.
        rows: Records of its experiments.
        model: Name of the model that the sentences are about.
    """
    rows = rows[rows["split"].fillna("test") == "test"] if "split" in rows else rows
    tasks = _tasks(rows)
    found = {}
    for name, entry in sections.items():
        numbers = {key: _mean(rows, text, model) for key, text in entry.get("numbers", {}).items()}
        if "compute" in entry:
            numbers |= _COMPUTED[entry["compute"]](rows, model)
        found[name] = {"tasks": tasks, **numbers}
    return found


def _tasks(rows: pd.DataFrame) -> str:
    most = rows["n_tasks"].max() if "n_tasks" in rows else math.nan
    number = 8 if pd.isna(most) else int(most)
    return word_of(number)


def _mean(rows: pd.DataFrame, text: str, model: str) -> float:
    """Return the mean of records with values of columns, of the largest number of tasks."""
    asked = dict(one.split("=", 1) for one in text.split())
    role = asked.pop("role", "")
    asked = {"model": _of_role(model, role), "init": "pretrained", **asked}
    for name, value in asked.items():
        if name not in rows or rows.empty:
            return math.nan
        if value == "":
            rows = rows[rows[name].isna()]
        elif pd.api.types.is_numeric_dtype(rows[name]):
            rows = rows[(rows[name] - float(value)).abs() < 1e-9]
        else:
            rows = where(rows, **{name: value})
    if "n_tasks" in rows and "n_tasks" not in asked and rows["n_tasks"].notna().any():
        rows = most_tasks(rows)
    values = rows["value"].abs() if asked.get("metric") == "cosine" else rows["value"]
    return round(float(values.mean()), 9) if len(rows) else math.nan  # as tables do


def _of_role(model: str, role: str) -> str:
    return family(model).get(role, model) if role else model


def _forgotten(rows: pd.DataFrame, model: str) -> dict[str, Any]:
    """Return accuracies on the task and on the control before and after features are subtracted."""
    asked = {"experiment": "stitched_negation", "model": model, "front": "features"}
    if not {*asked, "subset", "alpha"} <= {*rows}:
        return dict.fromkeys(("target", "target_before", "control", "control_before"), math.nan)
    part = where(rows, **asked)
    own = (part["task"] == part["subset"]).fillna(False).astype(bool)

    def mean(of_task: pd.Series, alpha: float) -> float:
        return float(part[of_task & (part["alpha"] - alpha).abs().lt(1e-9)]["value"].mean())

    return {
        "target": mean(own, 1), "target_before": mean(own, 0),
        "control": mean(~own, 1), "control_before": mean(~own, 0),
    }  # fmt: skip


def _by_encoder(rows: pd.DataFrame, method: str, metric: str, model: str) -> pd.Series:
    """Return means of sums, or of single tasks, by encoder without a text tower."""
    relatives = family(model)
    asked = {"experiment": ["single", "addition"], "method": method, "metric": metric}
    part = where(rows, **asked, init="pretrained") if len(rows) else rows
    if relatives:  # encoders with a text tower of their own are no part of the comparison
        part = part[part["model"] != relatives.get("medium", "")]
        part = part[part["model"].isin([*relatives.values()])]
    if metric != "single" and len(part) and part["n_tasks"].notna().any():
        part = most_tasks(part)
    return part.groupby("model", sort=False)["value"].mean()


def _probes(rows: pd.DataFrame, model: str) -> dict[str, Any]:
    probed = _by_encoder(rows, "probe", "absolute", model)
    if probed.empty:
        probed = _by_encoder(rows, "probe", "single", model)
    gain = (_by_encoder(rows, "nonlinear", "absolute", model) - probed).dropna()
    chosen = _by_encoder(rows, "nonlinear", "lambda", model)
    if gain.empty:
        return {"least": math.nan}
    return {
        "encoders": word_of(len(gain)), "least": gain.min(), "most": gain.max(),
        "still": word_of(int((chosen.reindex(gain.index) == 0).sum())),
    }  # fmt: skip


def _errors(rows: pd.DataFrame, model: str) -> dict[str, Any]:
    asked = {"metric": "xi_classifier_box", "method": "nonlinear"}
    if not {*asked, "experiment"} <= {*rows}:
        return {"least": math.nan}
    boxes, maps = (
        where(rows, experiment=one, **asked) for one in ("search_box", "disentanglement")
    )
    rows = maps if boxes.empty else boxes  # boxes have more pairs of tasks
    count = rows["task"].nunique()
    part = rows.groupby(["init", "model"])["value"].mean()
    known, none = (
        part[part.index.get_level_values("init") == init] for init in ("pretrained", "random")
    )
    return {
        "pairs": f"{word_of(count)} pair{'s'[: count != 1]}",
        "least": known.min(), "most": known.max(), "untrained": none.mean(),
    }  # fmt: skip


def _together(rows: pd.DataFrame, model: str) -> dict[str, Any]:
    joint = _by_encoder(rows, "full", "absolute", model)
    probed = _by_encoder(rows, "nonlinear", "absolute", model)
    probed = probed[probed.index.isin(joint.index)]
    return {
        "least": joint.min(), "most": joint.max(),
        "probed_least": probed.min(), "probed_most": probed.max(),
    }  # fmt: skip


def accuracies_of_merges(rows: pd.DataFrame, model: str) -> pd.Series:
    """Return the accuracies of merges of the most non-linear vectors in test records."""
    asked = {"experiment": "merging", "metric": "absolute", "method": "nonlinear", "model": model}
    if not {*asked, "merge"} <= {*rows}:
        return pd.Series(dtype=float)
    part = where(rows, **asked)
    return (
        most_tasks(part).groupby("merge")["value"].mean() if len(part) else pd.Series(dtype=float)
    )


def numbers_of_merges(rows: pd.DataFrame, model: str) -> dict[str, Any]:
    """Return the accuracies of the sum and of the best merges without and with training images."""
    means = accuracies_of_merges(rows, model)
    reads = [name for name, rule in METHODS.items() if rule.needs]
    without = means.drop([*_NO_MERGES, *reads], errors="ignore")
    read = means[means.index.isin(reads)]
    if without.empty or read.empty:
        return dict.fromkeys(("summed", "merge", "merged", "with_images", "read"), math.nan)
    return {
        "summed": means.get("arithmetic", math.nan),
        "merge": MERGE_LABEL[without.idxmax()], "merged": without.max(),
        "with_images": MERGE_LABEL[read.idxmax()], "read": read.max(),
    }  # fmt: skip


def _trimmed(rows: pd.DataFrame, model: str) -> dict[str, Any]:
    names = {"ties": "ties", "summed": "arithmetic", "tsv": "tsv_m"}
    means = accuracies_of_merges(rows, model)
    return {name: float(means.get(merge, math.nan)) for name, merge in names.items()}


def word_of(number: int) -> str:
    """Return a number in words up to nine."""
    return _WORDS[number] if 0 <= number < len(_WORDS) else f"{number:,}"


_COMPUTED: dict[str, Callable[[pd.DataFrame, str], dict[str, Any]]] = {
    "forgotten": _forgotten, "probes": _probes, "errors": _errors, "together": _together,
    "merges": numbers_of_merges, "trimmed": _trimmed,
}  # fmt: skip
