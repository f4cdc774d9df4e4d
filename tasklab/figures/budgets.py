"""Figures of the same methods at other rates and lengths, and after more or less pre-training."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from tasklab.figures.marks import curves, finish, panels
from tasklab.figures.schemes import scheme
from tasklab.figures.style import (
    INK,
    NothingToDrawError,
    book_figure,
    method_looks,
    methods_in,
    select,
)
from tasklab.records import matched
from tasklab.records.pairing import SHARE

_BUDGET = {
    "absolute": "in the sum of all (%)",
    "target": "on its task, negated (%)",
    "xi_classifier_box": "changed predictions ξ (%)",
    "norm": "length |τ| / |θ₀|",
}
_GROWTH = {
    ("single", "single"): "alone (%)",
    ("addition", "absolute"): "in the sum of all (%)",
    ("negation", "target"): "on its task, negated (%)",
    ("search_box", "xi_classifier_box"): "changed predictions ξ (%)",
    ("ctl", "distance"): "distance from linear",
}


@book_figure
def budget_curves(df: pd.DataFrame, over: str = "lr") -> Figure:
    """Draw what vectors do against their accuracy alone, along each method's grid.

    A marker is a rate, or a number of steps, as means over tasks and seeds. Methods are compared
    above one another: at equal accuracy alone.

    Args:
        df: Records of the experiment `budget` of one model.
        over: `"lr"`: rates at the usual length; or `"steps"`: lengths at each method's rate.
    """
    rows = select(df, "budget")
    rows = rows[rows["split"] == "test"]
    rows = matched.usual(rows) if over == "lr" else _at_usual_rate(rows)
    means = rows.groupby(["method", over, "metric"])["value"].mean().unstack("metric")
    measured = [metric for metric in _BUDGET if metric in means]
    means = means.reset_index().melt(["method", over, "single"], measured, var_name="metric")
    means = means.dropna(subset=["single", "value"])
    if means.empty:
        raise NothingToDrawError("nothing to draw: no method was measured over rates.")
    looks = method_looks(methods_in(means))
    grid = curves(
        means.sort_values(over), "single", hue="method", looks=looks, col="metric",
        col_order=measured, errorbar=None, sort=False, share=(True, False),
    )  # fmt: skip
    return finish(grid, looks, x="accuracy alone (%)", y=_BUDGET)


def _at_usual_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each method's records at the rate that most lengths were tried with."""
    lengths = rows.groupby(["method", "lr"])["steps"].nunique()
    rates = {method: part.droplevel(0).idxmax() for method, part in lengths.groupby(level=0)}
    return rows[rows["lr"] == rows["method"].map(rates)]


@book_figure
def rate_search(df: pd.DataFrame) -> Figure:
    """Draw accuracy alone on validation images by learning rate, the best rate of a method larger.

    A rate at which a run diverged is left out, as it is not chosen.

    Args:
        df: Records of the experiment `rate_search` of one model, or of several.
    """
    rows, by = select(df, "rate_search", split="validation"), ["model", "method", "lr"]
    lost = rows.loc[rows["metric"] == "diverged_at", by].drop_duplicates()
    rows = rows[rows["metric"] == "single"]
    rows = rows[~rows.set_index(by).index.isin(lost.set_index(by).index)]
    means = rows.groupby(["model", "method", "lr"], as_index=False)["value"].mean()
    looks, models = method_looks(methods_in(means)), list(dict.fromkeys(rows["model"]))
    grid = curves(
        means, "lr", hue="method", looks=looks, col="model", col_order=models, columns=2,
        errorbar=None, share=(False, False), height=3.4 * math.ceil(len(models) / 2),
    )  # fmt: skip
    for axes, _, model in panels(grid):
        for method, of_method in means[means["model"] == model].groupby("method"):
            _, colour, marker = looks[method]
            best = of_method.loc[of_method["value"].idxmax()]
            axes.plot(best["lr"], best["value"], marker, ms=10, color=colour, mec=INK, zorder=5)
        axes.set(xscale="log")
    titles = {name: scheme(name) for name in models} if len(models) > 1 else ""
    words = {"x": "learning rate", "y": "alone, on validation images (%)"}
    return finish(grid, looks, title=titles, **words)


@book_figure
def growth(df: pd.DataFrame, model: str = "mini") -> Figure:
    """Draw the headline quantities against how much of its pre-training a model has seen.

    Bands are the standard deviation over seeds of fine-tuning.

    Args:
        df: Records of the experiments `single`, `addition`, `negation`, `search_box` and `ctl` of
            the model and of those that have seen a share of its samples.
        model: The model that has seen all of them.
    """
    names = df["model"].unique() if "model" in df else ()
    shares = {name: float(SHARE.search(name)[1]) for name in names if name.startswith(f"{model}_")
              and SHARE.search(name)} | {model: 100.0}  # fmt: skip
    rows = df[df["model"].isin(shares) & (df["split"] == "test")]
    if "block" in rows:
        rows = rows[rows["block"].isna()]
    parts = []
    for (experiment, metric), words in _GROWTH.items():
        part = rows[(rows["experiment"] == experiment) & (rows["metric"] == metric)]
        if experiment != "single":  # where the model itself is one of the curves
            part = part[part["method"] != "pretrained"]
        if experiment == "addition":
            part = part[part["n_tasks"] == part["n_tasks"].max()]
        keys = ["model", "method", "seed"]
        parts.append(part.groupby(keys, as_index=False)["value"].mean().assign(quantity=words))
    means = pd.concat(parts)
    if means["model"].nunique() < 2:
        raise NothingToDrawError("nothing to draw: there is one length of pre-training.")
    means = means.assign(samples=means["model"].map(shares))
    looks = method_looks(methods_in(means, baseline=True))
    if "pretrained" in looks:
        looks["pretrained"] = (*looks["pretrained"][:2], "v")  # a filled marker, as the others'
    order = [words for words in _GROWTH.values() if words in set(means["quantity"])]
    grid = curves(
        means, "samples", hue="method", looks=looks, col="quantity", col_order=order,
        share=(True, False), height=5.2,
    )  # fmt: skip
    grid.set(xscale="log", xticks=sorted(shares.values()), xticklabels=[
        f"{share:g}" for share in sorted(shares.values())
    ])  # fmt: skip
    return finish(grid, looks, x="samples seen (%)", y={words: words for words in order})
