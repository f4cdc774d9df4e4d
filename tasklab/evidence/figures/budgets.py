"""Figures over learning rates, numbers of steps and lengths of pre-training."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tasklab.evidence.figures import schemes
from tasklab.evidence.figures.labels import MERGE_LABEL
from tasklab.evidence.figures.marks import GIVEN, ZERO, Panels, curves, level, points
from tasklab.evidence.figures.merging import BASE
from tasklab.evidence.figures.rows import (
    averaged,
    ends,
    methods_in,
    most_tasks,
    require_rows,
    select,
    where,
)
from tasklab.evidence.figures.style import (
    INK,
    METHOD_LABEL,
    NothingToDrawError,
    book_figure,
    method_looks,
    selected,
)
from tasklab.evidence.records import matched
from tasklab.evidence.records.intervals import of_mean
from tasklab.evidence.records.pairing import SHARE
from tasklab.tuning.recipe import MINI_STEPS

BLUE = "#0072B2"
_BUDGET = {
    "absolute": "accuracy of the sum (%)",
    "target": "accuracy after negation (%)",
    "xi_classifier_box": "disentanglement error ξ (%)",
    "norm": "norm |τ| / |θ₀|",
}
_EDITS = {"absolute": "sum", "target": "negation"}
_MERGES = (BASE, "ties", "tsv_m", "regmean", "wudi_exact", "best_span")  # measured over rates
_OVER = {"lr": "learning rate", "steps": "steps"}
_GROWTH = {
    ("single", "single"): "single-task accuracy (%)",
    ("addition", "absolute"): "accuracy of the sum (%)",
    ("negation", "target"): "accuracy after negation (%)",
    ("search_box", "xi_classifier_box"): "disentanglement error ξ (%)",
    ("ctl", "distance"): "distance from linearity",
}


@book_figure
def budget_curves(df: pd.DataFrame, over: str = "lr") -> Figure:
    """Plot sums, negations, ξ and norm against accuracy alone, along each method's grid.

    Markers are rates, or numbers of steps with `over="steps"`; compare methods above one another,
    at equal accuracy alone. Means over tasks and seeds. Records: `budget` of one model.
    """
    rows = select(df, "budget")
    rows = matched.usual(rows) if over == "lr" else _at_usual_rate(rows)
    at = ["method", over]
    alone = averaged(where(rows, metric="single"), *at).set_index(at)["value"].rename("alone")
    means = averaged(where(rows, metric=_BUDGET), *at, "metric").join(alone, on=at)
    means = means.dropna(subset=["alone", "value"]).sort_values(over)
    plot = curves(
        require_rows(means, "nothing was measured over rates"), "alone", col="metric",
        col_order=_BUDGET, estimator=None, errorbar=None, sort=False, share=(True, False),
        columns=2, height=(1.0, 2.3),
    )  # fmt: skip
    return plot.finish(x="single-task accuracy (%)", y=_BUDGET)


def overtraining_changes(df: pd.DataFrame) -> pd.DataFrame:
    """Return changes of merged accuracy over rates and numbers of steps, in points.

    Changes are from a method's own rate (the last of its grid) and from the recipe's steps.

    Args:
        df: Records of one method: `merging_rates` over rates, `budget` over steps at its own rate.

    Returns:
        Columns over (lr or steps), what (a merge, or single), factor (of the usual), value, low and
        high: a 95 % interval over tasks of the mean over seeds.
    """
    test, found = where(df, split="test", metric=["single", "absolute"]), []
    for experiment, over in (("merging_rates", "lr"), ("budget", "steps")):
        rows = where(test, experiment=experiment)
        rows = rows[(rows["metric"] == "single") | (rows["n_tasks"] == rows["n_tasks"].max())]
        if rows.empty:
            continue
        what = rows["metric"].map({"absolute": BASE}).fillna("single")
        if "merge" in rows:
            what = rows["merge"].fillna(what)
        means = rows.groupby([what.rename("what"), "task", over])["value"].mean().unstack()
        usual = means.columns.max() if over == "lr" else MINI_STEPS
        for other in means.columns.drop(usual):
            for name, change in (means[other] - means[usual]).groupby(level="what"):
                known = change.dropna().to_numpy()
                if len(known):
                    ends_of = of_mean(known)
                    row = {"over": over, "what": name, "factor": other / usual}
                    found.append(row | dict(zip(("value", "low", "high"), ends_of, strict=True)))
    return pd.DataFrame(found, columns=["over", "what", "factor", "value", "low", "high"])


@book_figure
def overtraining(df: pd.DataFrame) -> Figure:
    """Plot changes of merged accuracy over rates and steps, with 95 % intervals over tasks.

    Records: `merging_rates` and `budget` of one method of fine-tuning.
    """
    table = require_rows(overtraining_changes(df), "one rate and one number of steps were recorded")
    named = {"single": "one model a task"} | {name: MERGE_LABEL[name] for name in _MERGES}
    factors = [1 / 8, 1 / 4, 1 / 2, 2]
    table = table[table["what"].isin(named) & table["factor"].isin(factors)]
    seen = {*table["factor"]}
    looks = {
        one: look for one, look in zip(factors, (
            ("an eighth", "#9CCBEA", "v"), ("a quarter", "#0072B2", "s"), ("half", "#E69F00", "D"),
            ("twice as many", "#D55E00", "^"),
        ), strict=True) if one in seen
    }  # fmt: skip
    present = [name for name in named if name in {*table["what"]}]
    plot = points(
        ends(table, "over", "what", "factor"), "what", height=1.4 + 0.34 * len(present),
        hue="factor", looks=looks, order={name: named[name] for name in present},
        facets={"col": "over", "col_order": [one for one in _OVER if one in {*table["over"]}]},
        **GIVEN,
    )  # fmt: skip
    for axes, _, _ in plot:
        level(axes, 0, along="y", **ZERO)
    return plot.finish(title=_OVER, x="change in points")


@book_figure
def rate_effects(table: pd.DataFrame) -> Figure:
    """Draw headlines against the learning rate, where both sides have the same one.

    Bars are 95 % intervals for these tasks, thin ones for tasks in general. The dotted line is the
    effect at the rates that were chosen for each side.

    Args:
        table: Result of `records.over_rates`.
    """
    same = where(table, rule=matched.ONE_RATE).assign(group="", value=lambda x: x["effect"])
    require_rows(same, "nothing was recorded over rates")
    bars: dict[str, Any] = {"err_style": "bars", "err_kws": {"elinewidth": 0.7}} | GIVEN
    plot = curves(
        ends(same, "claim", "group", "lr"), "lr", hue="group", looks={"": ("", BLUE, "o")},
        col="claim", share=(True, False), height=(0.4, 2.6), **bars,
    )  # fmt: skip
    dotted: dict[str, Any] = {"color": "#D55E00", "ls": ":", "lw": 1.4}
    for axes, _, claim in plot:
        rows = where(same, claim=claim)
        axes.vlines(rows["lr"], rows["here_low"], rows["here_high"], color=BLUE, lw=2.4)
        level(axes, 0, **ZERO)
        for value in where(table, claim=claim, rule="chosen")["effect"]:
            level(axes, value, **dotted)
        first, second = map(METHOD_LABEL.get, rows["sides"].iloc[0].split(" − "))
        what = _EDITS.get(rows["metric"].iloc[0], "disentanglement")
        axes.set_title(f"{what}\n{first} −\n{second}", fontsize=8.5)
    plot.grid.set(xscale="log")
    plot.figure.supxlabel("learning rate of both sides", fontsize=9)
    plot.figure.supylabel("effect in points (above 0: for the claim)", fontsize=9)
    blue = {"these tasks": 2.4, "tasks in general": 0.7}
    handles = [Line2D([], [], color=BLUE, lw=lw, label=label) for label, lw in blue.items()]
    return plot.finish([*handles, Line2D([], [], label="each at its own rate", **dotted)], looks={})


def _at_usual_rate(rows: pd.DataFrame) -> pd.DataFrame:
    lengths = rows.groupby(["method", "lr"])["steps"].nunique()
    rates = {method: part.droplevel(0).idxmax() for method, part in lengths.groupby(level=0)}
    return rows[rows["lr"] == rows["method"].map(rates)]


@book_figure
def rate_search(df: pd.DataFrame) -> Figure:
    """Plot validation accuracy alone by learning rate; the best rate of a method is larger.

    Rates at which a run diverged are left out. Records: `rate_search` of one or several models.
    """
    rows, by = select(df, "rate_search", split="validation"), ["model", "method", "lr"]
    lost = where(rows, metric="diverged_at").set_index(by).index
    means = averaged(where(rows[~rows.set_index(by).index.isin(lost)], metric="single"), *by)
    plot = _over_rates(
        means, "method", "model", columns=2, errorbar=None, share=(False, False), height=(0, 3.4)
    )
    words: Any = {"x": "learning rate", "y": "validation accuracy (%)"}
    return plot.finish(title=schemes.scheme if means["model"].nunique() > 1 else {}, **words)


def _over_rates(single: pd.DataFrame, group: str, panel: str, **more: Any) -> Panels:
    plot = curves(single, "lr", hue=group, col=panel, **more)
    means = averaged(single, group, panel, "lr")
    plot.mark(means.loc[means.groupby([group, panel])["value"].idxmax()], "lr")
    plot.grid.set(xscale="log")
    return plot


@book_figure
def learning_rate(df: pd.DataFrame) -> Figure:
    """Plot validation accuracy by learning rate (appendix C); the best rate is larger.

    Crosses are runs that diverged. Dotted is the minimum of the probe's convex problem, which has
    no rate. Records: `learning_rate`.
    """
    rows = require_rows(where(df, experiment="learning_rate"))
    methods = dict.fromkeys(["probe", "nonlinear", "full", *rows["method"]])
    titles = {"probe": "linear probe (AdamW)", "nonlinear": "encoder, after probing"}
    single, named = where(rows, metric="single"), schemes.looks(rows)
    plot = _over_rates(
        averaged(single, "method", "model", "lr", "seed"), "model", "method", looks=named,
        height=3.4, col_order=methods, share=(False, True),
    )  # fmt: skip
    exact = averaged(where(rows, metric="exact"), "method", "model")
    for axes, _, method in plot:
        for row in where(exact, method=method).itertuples():
            level(axes, row.value, ls=":", lw=1.4, color=named[row.model][1])
    gone = where(rows, metric="diverged_at").assign(value=0)
    plot.mark(gone, "lr", marker="x", ms=7, mew=1.8, clip_on=False)
    plot.grid.set(ylim=(0, None))
    extra = [Line2D([], [], color=INK, ls=":", label="the probe's minimum")] if len(exact) else []
    if len(gone):
        extra.append(Line2D([], [], color=INK, ls="", marker="x", label="diverged"))
    words: Any = {"x": "learning rate", "y": "validation accuracy (%)"}
    return plot.finish(extra, title=METHOD_LABEL | titles, **words)


@book_figure
def growth(df: pd.DataFrame) -> Figure:
    """Plot the headline quantities against the length of pre-training.

    Records: `single`, `addition`, `negation`, `search_box` and `ctl` of `mini` and of the models
    that saw a share of its samples.
    """
    names = df["model"].unique()
    found = {name: SHARE.search(name) for name in names if name.startswith("mini_")}
    shares = {name: float(share[1]) for name, share in found.items() if share} | {"mini": 100.0}
    rows = where(df, model=shares, split="test")
    if "block" in rows:
        rows = rows[rows["block"].isna()]
    parts = []
    for (experiment, metric), words in _GROWTH.items():
        part = where(rows, experiment=experiment, metric=metric)
        if experiment != "single":  # where the model itself is one of the curves
            part = part[part["method"] != "pretrained"]
        part = most_tasks(part) if experiment == "addition" else part
        selected(part)
        parts.append(averaged(part, "model", "method", "seed").assign(quantity=words))
    means = pd.concat(parts)
    if means["model"].nunique() < 2:
        raise NothingToDrawError("nothing to draw: there is one length of pre-training.")
    means["samples"] = means["model"].map(shares)
    looks = method_looks(methods_in(means, baseline=True))
    if "pretrained" in looks:
        looks["pretrained"] = (*looks["pretrained"][:2], "v")  # a filled marker, as the others'
    plot = curves(
        means, "samples", looks=looks, col="quantity", col_order=list(_GROWTH.values()),
        share=(True, False), height=4.8,
    )  # fmt: skip
    seen = sorted(shares.values())
    plot.grid.set(xscale="log", xticks=seen, xticklabels=[f"{share:g}" for share in seen])
    return plot.finish(x="samples seen (%)", y=str)
