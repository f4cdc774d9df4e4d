"""What claims compare that are not two methods by one metric: functions of records to sides.

Most claims compare two methods in one experiment. Some speak of merged features against those of
single models, of the middle of a segment against its ends, of one number of epochs against another.
Such a claim names a function that is registered here, which makes of records the claim's sides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy  # its parts load where they are used, for that takes a second

from tasklab.errors import unknown
from tasklab.tuning.methods import JOINT, TABLE

NETWORKS = ("mlp", "resnet18")  # trained from scratch, and studied beside any model
CONDITIONS = ("pretraining", "finetuning", "pretraining samples", "other samples")
EPOCHS, RATIOS = (0, 1, 2, 5, 10, 20), (0.0, 0.25, 0.5, 0.75, 1.0)  # that they take
Sides = Mapping[str, pd.DataFrame]  # by name, each with columns seed, task, subset and value
# (the claim, its experiment's records of the side's model, all records) -> its sides
Comparison = Callable[[Any, pd.DataFrame, pd.DataFrame], Sides]
COMPARISONS: dict[str, Comparison] = {}


def comparison(function: Comparison) -> Comparison:
    """Register a function under its own name, by which claims call it."""
    COMPARISONS[function.__name__] = function
    return function


def _alike(rows: pd.DataFrame, **numbers: float | None) -> dict[str, pd.DataFrame]:
    """Return sides that are one number each, on behalf of a seed's rows."""
    first = rows.iloc[:1].assign(subset="")
    return {name: first.assign(value=value) for name, value in numbers.items()}


def _stacked(parts: list[dict[str, pd.DataFrame]]) -> Sides:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: pd.concat([part[name] for part in parts if name in part]) for name in names}


@comparison
def features(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Merged weights' features against an `endpoint`'s, or the coefficient's error against `one`.

    Distances are from the merged features: how much nearer than a single model's features are those
    of the merged weights. (The models' distance from each other would be a weaker test, which a
    single model passes too.) They are of the encoder's projected output; of an MLP, whose output is
    that of its classifier, of the last hidden layer. The coefficient's error is the largest over
    the blocks (`merged`), as the paper's figures show blocks, or that of the output (`output`).
    Segments are judged in their middle.
    """
    rows = rows[rows["method"] == "nonlinear"]
    if rows.empty:
        return {}
    network = rows["model"].iloc[0]
    if network in NETWORKS:
        rows = _usual(rows)
    if claim.experiment == "ctl":
        rows = rows[np.isclose(rows["alpha"], 0.5)]
    output = rows["block"].isna()
    if claim.metric == "distance":
        deep = rows["block"] == rows["block"].max() - 1 if network == "mlp" else output
        rows = rows[deep.fillna(False)]
        sides = {"merged": "distance", "endpoint": "endpoint"}
        return {side: rows[rows["metric"] == metric] for side, metric in sides.items()}
    error = rows.assign(value=(rows["value"] - 1).abs())
    error, output = error[rows["metric"] == "coef"], output[rows["metric"] == "coef"]
    blocks = (
        error[~output & (error["block"] < error["block"].max())]
        if network == "mlp"
        else (error[~output])
    )
    keys = ["seed", "task", "subset"]
    merged = blocks.sort_values("value").drop_duplicates(keys, keep="last").sort_index()
    return {"merged": merged, "output": error[output], "one": merged.assign(value=1.0, error=0.0)}


def _usual(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a network that was trained as its setting says: as most were."""
    chosen = (rows["ratio"] == 0) & (rows["replaced"] == "other")
    for name in ("pretraining", "finetuning"):
        chosen &= rows[name] == rows[name].mode().iloc[0]
    if "wider" in rows:
        chosen &= rows["wider"].fillna(1) == 1
    return rows[chosen]


def _sums(claim: Any, rows: pd.DataFrame, _: pd.DataFrame, *, every: bool) -> Sides:
    """The (k + 1) form (`merged`) and the pre-trained model (`start`) against a sum of k vectors.

    k is 2, or the largest for which the theorem's condition on alpha is met: models at
    (k + 1) alpha are no further away than fine-tuned ones, which are cross-task linear.
    """
    rows = rows[rows["block"].isna() & (rows["method"] == "nonlinear")]
    rows = rows[(rows["n_tasks"] + 1) * rows["alpha"] <= 1 + 1e-9]
    rows = rows[rows["n_tasks"] == (rows["n_tasks"].max() if every else 2)]
    rows = rows[np.isclose(rows["alpha"], rows["alpha"].max())]
    sides = {"merged": "distance", "start": "first"}
    return {side: rows[rows["metric"] == metric] for side, metric in sides.items()}


COMPARISONS["sum_of_two"] = functools.partial(_sums, every=False)
COMPARISONS["sum_of_most"] = functools.partial(_sums, every=True)


@comparison
def steps(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """What a training step takes, by variant: `standard`, the papers' `listing`, `ours`, ...

    The standard error of a median over rounds is that of a normal distribution's, from the
    quartiles; memory is counted, and has none. `memory_ratio` is the peak over a standard step's.
    """
    if "variant" not in rows:
        return {}
    rows = rows[rows["metric"] == claim.metric.replace("memory_ratio", "peak_memory")]
    if claim.metric == "memory_ratio":
        standard = rows.loc[rows["variant"] == "standard", "value"].mean()
        rows = rows.assign(**{name: rows[name] / standard for name in ("value", "low", "high")})
    spread = (rows["high"] - rows["low"]) / 1.349
    rows = rows.assign(error=1.253 * spread / np.sqrt(rows["n"].astype(float)))
    return dict(iter(rows.groupby("variant")))


@comparison
def gaps(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """By how many points each method is below non-linear fine-tuning, on each task."""
    rows = rows[(rows["metric"] == claim.metric) & (rows["split"] == "test")]
    rows = rows[rows["init"] == "pretrained"]
    if claim.experiment == "addition":
        rows = rows[rows["n_tasks"] == rows["n_tasks"].max()]
    keys = ["seed", "task", "subset"]
    usual = rows[rows["method"] == "nonlinear"].set_index(keys)["value"].rename("usual")
    sides = {}
    for method, part in rows.groupby("method"):
        both = part.join(usual, on=keys, how="inner")
        shares = [both[name] / 100 for name in ("value", "usual")]
        variance = sum(p * (1 - p) for p in shares) / both["n"].astype(float)
        gap = both["usual"] - both["value"]
        sides[method] = both.drop(columns="hits", errors="ignore").assign(
            value=gap, error=100 * np.sqrt(variance)
        )
    return sides


@comparison
def beyond(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """How many times larger attention's error is beyond coefficients of 1 than up to there.

    Of the `representation`, in nats, and of the `classifier`, in per cent: ratios have no unit.
    """
    rows, keys = rows[rows["method"] == "attention"], ["seed", "task", "subset"]
    sides = {}
    for side in ("representation", "classifier"):
        box, far = (rows[rows["metric"] == f"xi_{side}_{end}"] for end in ("box", "beyond"))
        inner = box.set_index(keys)["value"].rename("inner")
        both = far.join(inner, on=keys, how="inner").drop(columns="hits", errors="ignore")
        sides[side] = both.assign(value=both["value"] / both["inner"])
    return sides


@comparison
def monotone(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """The largest climb of the mean accuracy beyond the best coefficient (`climb`), and `one`.

    In points, on validation images: how far it rises above its least value so far.
    """
    rows = rows[(rows["metric"] == claim.metric) & (rows["method"] == "nonlinear")]
    parts = []
    for _seed, part in rows.groupby("seed"):
        curve = part.groupby("alpha")["value"].mean()
        curve = curve[curve.index >= curve.idxmax()]
        climb = float((curve - curve.cummin()).max())
        parts.append(_alike(part.assign(task="all", hits=None), climb=climb, one=1.0))
    return _stacked(parts)


@comparison
def over_start(claim: Any, rows: pd.DataFrame, records: pd.DataFrame) -> Sides:
    """The sum of all vectors by method, and the pre-trained model (`start`), on each task."""
    rows = rows[(rows["metric"] == claim.metric) & (rows["split"] == "test")]
    rows = rows[rows["n_tasks"] == rows["n_tasks"].max()]
    sides = dict(iter(rows.groupby("method")))
    before = records[(records["method"] == "pretrained") & (records["metric"] == "single")]
    before = before[before["model"] == rows["model"].iloc[0]].groupby("task")["value"].mean()
    first = next(iter(sides.values()))
    return {**sides, "start": first.assign(value=first["task"].map(before), hits=None)}


@comparison
def merges(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Accuracies of the vectors of all tasks, merged in each way; fine-tuned non-linearly."""
    if "merge" not in rows:
        return {}
    rows = rows[(rows["metric"] == claim.metric) & (rows["method"] == "nonlinear")]
    rows = rows[(rows["split"] == "test") & (rows["n_tasks"] == rows["n_tasks"].max())]
    return dict(iter(rows.groupby("merge")))


@comparison
def strengths(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Sums of vectors with a penalty: `chosen`, at the method's `own` strength, and with `none`.

    A method's strength is chosen by what the sum of all reaches on validation images, as the mean
    over tasks and seeds, among those that are above 0 and at which no run diverged.
    """
    if "penalty" not in rows:
        return {}
    gone = rows[rows["metric"] == "diverged_at"].set_index(["method", "penalty"]).index
    rows = rows[(rows["metric"] == claim.metric) & rows["penalty"].notna()]
    rows = rows[~rows.set_index(["method", "penalty"]).index.isin(gone)]
    sides = {}
    for method, part in rows.groupby("method"):
        told, tested = (part[part["split"] == split] for split in ("validation", "test"))
        means = told[told["penalty"] > 0].groupby("penalty")["value"].mean()
        if len(means):
            at = {"chosen": means.idxmax(), "own": TABLE[method].weight, "none": 0.0}
            for name, strength in at.items():
                sides[f"{method} {name}"] = tested[np.isclose(tested["penalty"], strength)]
    return sides


@comparison
def at_equal_length(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """How far two methods are from linear where their vectors are equally long.

    The longer one is taken back along itself to where the other ends, for each task and seed.
    """
    way = rows[(rows["metric"] == "gap_along") & rows["block"].isna()]
    ends = way[np.isclose(way["alpha"], 1)].set_index(["method", "seed", "task"])["size"]
    sides: dict[str, list] = {claim.left: [], claim.right: []}
    for (seed, task), part in way.groupby(["seed", "task"], sort=False):
        if not {claim.left, claim.right} <= set(part["method"]):
            continue
        length = min(ends[side, seed, task] for side in sides)
        for side, points in sides.items():
            mine = part[part["method"] == side].sort_values("size")
            gap = np.interp(length, [0, *mine["size"]], [0, *mine["value"]])
            points.append({**mine.iloc[-1], "value": gap, "alpha": np.nan})
    return {side: pd.DataFrame(points, columns=rows.columns) for side, points in sides.items()}


@comparison
def segments(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Accuracy in the `middle` of a segment against that of the model whose task it is (`end`)."""
    rows = rows[rows["metric"] == "accuracy"]
    ends = rows["subset"].str.split("+", expand=True)
    own = np.where(rows["task"] == ends[0], 1.0, np.where(rows["task"] == ends[1], 0.0, np.nan))
    rows, own = rows[np.isfinite(own)], own[np.isfinite(own)]
    at = {"middle": 0.5, "end": own}
    return {side: rows[np.isclose(rows["alpha"], alpha)] for side, alpha in at.items()}


@comparison
def averages(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Accuracies of averaged weights against those of each model averaged (`alone`).

    Or, over the groups, their correlation with ensembles (`correlation`) against `one`.
    """
    rows = rows.fillna({"subset": ""})
    if claim.metric == "accuracy":
        averaged = rows[rows["metric"] == "averaged"]
        averaged = averaged.assign(member=averaged["subset"].str.split(" | ", regex=False))
        averaged = averaged.explode("member", ignore_index=True)
        averaged = averaged.assign(subset=averaged["subset"] + ": " + averaged["member"])
        alone = rows[rows["metric"] == "alone"].rename(columns={"subset": "member"})
        alone = averaged[["seed", "member", "subset"]].merge(alone, on=["seed", "member"])
        return {"averaged": averaged, "alone": alone}
    parts = []
    for _seed, part in rows.groupby("seed"):
        table = part[part["metric"] != "alone"]
        table = table.pivot(index="subset", columns="metric", values="value")
        correlation = table["averaged"].corr(table["ensemble"])
        parts.append(_alike(part, correlation=correlation, one=1.0))
    return _stacked(parts)


@comparison
def stitched_sums(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Each front on both of its pair's tasks, over all coefficients: `both`, `one`, `edited`.

    A pair's images are those of its tasks, the same at every coefficient.
    """
    rows = rows[rows["subset"].str.contains("+", regex=False)]
    fronts = {"both": ("both",), "one": ("own", "other"), "edited": ("edited",)}
    sides = {}
    for side, names in fronts.items():
        part = rows[rows["front"].isin(names)]
        pairs = part.groupby(["seed", "subset"], dropna=False)
        tasks = part.drop_duplicates(["seed", "subset", "task"]).groupby(["seed", "subset"])
        means = pairs["value"].mean().to_frame().assign(n=tasks["n"].sum()).reset_index()
        sides[side] = means.assign(task=means["subset"])
    return sides


@comparison
def stitched_negations(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Accuracy at the largest coefficient of either front, and at 0 (`start`)."""
    own = rows["task"] == rows["subset"]
    rows = rows.assign(task=rows["subset"])
    chosen = own if claim.metric == "target" else ~own
    by_features, low = rows["front"] == "features", np.isclose(rows["alpha"], 0)
    high = np.isclose(rows["alpha"], rows["alpha"].max())
    return {
        "start": rows[chosen & by_features & low],
        "features": rows[chosen & by_features & high],
        "weights": rows[chosen & ~by_features & high],
    }


def conditions(preset: str = "full") -> dict[str, tuple[float, ...]]:
    """Return the values of each condition that `emergence` varies: figures 11 and 12.

    Args:
        preset: In `"quick"` only the ends of each range.
    """
    few = preset == "quick"
    ratios = (RATIOS[0], RATIOS[-1]) if few else RATIOS
    return {
        "pretraining": (0, 10) if few else EPOCHS,
        "finetuning": (2, 10) if few else EPOCHS[1:],
        "pretraining samples": ratios,
        "other samples": ratios,
    }


def varied(records: pd.DataFrame, what: str, network: str = "resnet18") -> pd.DataFrame:
    """Return the rows of `emergence` with one condition from a table with several.

    The others are as most rows have them.

    Args:
        records: Of `experiments.emergence`, and of `experiments.scratch_linearity`.
        what: One of `CONDITIONS`.
        network: Which was trained.

    Raises:
        TasklabError: If there is no such condition.
    """
    if what not in CONDITIONS:
        raise unknown("condition", what, CONDITIONS)
    rows = records[(records["experiment"] == "ctl") & (records["model"] == network)]
    rows = rows[(rows["alpha"] - 0.5).abs() < 1e-9]
    if rows.empty:
        return rows
    if "wider" in rows:
        rows = rows[rows["wider"].fillna(1) == 1]
    column = "ratio" if what.endswith("samples") else what
    replaced = what.removesuffix(" samples") if column == "ratio" else "other"
    chosen = rows["replaced"] == replaced
    for name in {"task", "pretraining", "finetuning"} - {column}:
        chosen &= rows[name] == rows[name].mode().iloc[0]
    return rows[chosen if column == "ratio" else chosen & (rows["ratio"] == 0)]


def _ends(rows: pd.DataFrame, what: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the deepest block's rows at the least and at the most of a condition."""
    rows = varied(rows, what)
    rows = rows[rows["block"] == rows["block"].max()]
    by = rows["ratio" if what.endswith("samples") else what]
    return rows[by == by.min()], rows[by == by.max()]


def _emergence(claim: Any, rows: pd.DataFrame, _: pd.DataFrame, *, what: str) -> Sides:
    """Linearity at the deepest block with the `least` and with the `most` of a condition."""
    sides = {}
    for side, end in zip(("least", "most"), _ends(rows, what), strict=True):
        distance, coef = (end[end["metric"] == metric] for metric in ("distance", "coef"))
        error = coef.assign(value=(coef["value"] - 1).abs())
        sides[side] = distance if claim.metric == "distance" else error
    return sides


for _what in CONDITIONS:
    COMPARISONS[f"emergence: {_what}"] = functools.partial(_emergence, what=_what)


@comparison
def changes(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """How much each condition changes the distance, from its least to its most."""
    sides = {}
    for what in CONDITIONS:
        least, most = (end[end["metric"] == "distance"] for end in _ends(rows, what))
        change = (most.set_index("seed")["value"] - least.set_index("seed")["value"]).abs()
        sides[what] = most.assign(value=most["seed"].map(change).astype(float))
    return sides


@comparison
def theorem(claim: Any, rows: pd.DataFrame, _: pd.DataFrame) -> Sides:
    """Medians of theorem 5.1's `gap` and `bound`, or how well (R^2) predictors explain the gap."""
    parts = []
    for _seed, pairs in rows.groupby("seed"):
        if claim.metric == "delta":
            numbers = {"gap": pairs["value"].median(), "bound": pairs["bound"].median()}
        else:
            names = ("bound", "curvature", "distance", "second_order")
            numbers = {name: _r_squared(pairs[name], pairs["value"]) for name in names}
        parts.append(_alike(pairs, **numbers))
    return _stacked(parts)


def _r_squared(x: pd.Series, y: pd.Series) -> float:
    """Return the R^2 of a linear regression; 0 where a side is constant."""
    if any(np.ptp(v) <= 1e-9 * np.abs(v).max() for v in (x, y)):
        return 0.0
    return float(scipy.stats.linregress(x.to_numpy(float), y.to_numpy(float)).rvalue ** 2)


@comparison
def pretraining(claim: Any, rows: pd.DataFrame, records: pd.DataFrame) -> Sides:
    """The disentanglement error of a model (`pretrained`), and of the untrained one (`random`).

    Args:
        claim: A row of `claims.csv`.
        rows: Records that the claim is about.
        records: All records of the chapter.
    """
    sides = {"pretrained": rows[rows["init"] == "pretrained"]}
    sides["random"] = records[records["init"] == "random"]
    chosen = {"experiment": "disentanglement", "metric": claim.metric, "method": "nonlinear"}
    for name, value in chosen.items():
        sides = {side: part[part[name] == value] for side, part in sides.items()}
    return sides


@comparison
def decay(claim: Any, rows: pd.DataFrame, records: pd.DataFrame) -> Sides:
    """Mean normalised accuracy of sums of `two` and of `all` tasks (method `full`), and 100.

    Args:
        claim: A row of `claims.csv`.
        rows: Records that the claim is about.
        records: All records of the chapter.
    """
    sums = records[(records["experiment"] == "subsets") & (records["metric"] == "normalised")]
    keys = ["model", "suite", "seed", "n_tasks"]
    means = sums[sums["method"] == JOINT].groupby(keys, as_index=False)["value"].mean()
    means = means[means["model"] == rows["model"].iloc[0]]
    means = means.assign(task="all", subset="")
    count = pd.to_numeric(sums["n"]).max()  # images of all tasks together
    absolute = rows[(rows["metric"] == "absolute") & (rows["method"] == JOINT)]
    top = absolute.groupby(keys, as_index=False)["value"].mean().rename(columns={"value": "top"})
    means = means.merge(top, on=keys, how="left")
    base = (100 * means["top"] / means["value"]).clip(0.1, 100)
    odds = sum(100 / share - 1 for share in (means["top"].clip(0.1, 100), base))
    means = means.assign(error=means["value"] * np.sqrt(odds / count))  # to first order
    sides = {"two": means[means["n_tasks"] == 2]}
    sides["all"] = means[means["n_tasks"] == means["n_tasks"].max()]
    return {**sides, "one": sides["all"].assign(value=100.0, error=0.0)}
