"""Records as the two sides that a paper's claims compare.

A claim compares two methods by one metric (`results.Claim`). What the paper on cross-task linearity
says is of other kinds: merged features against those of single models, the middle of a segment
against its ends, one number of epochs against another. `sides` brings each to that form, one
experiment a comparison, the two sides in the column method. `schemes` does so for what the paper on
closed vocabularies says of pre-training and of the number of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from tasklab.analyses import curvature
from tasklab.analyses.transitivity import pairs_in, transitivity
from tasklab.errors import TasklabError
from tasklab.experiments.scratch import CONDITIONS, varied
from tasklab.records import papers

NETWORKS = ("mlp", "resnet18")
THRESHOLD = 0.1  # cross-task linearity holds for a pair if its distance is this share of the base
_KEYS = ("model", "suite", "init", "seed", "task", "subset", "n_tasks")


def sides(records: pd.DataFrame) -> pd.DataFrame:
    """Return the comparisons behind the claims of the chapter on cross-task linearity.

    Networks trained from scratch count as the model that was studied; comparisons of theirs have
    their name in the experiment, e.g. `"ctl mlp"`.

    Args:
        records: All recorded results of the chapter, without maps.

    Returns:
        Columns as those of records, `method` being a side.

    Raises:
        TasklabError: If the records of averages, which name the model, are missing.
    """
    main = records[records["experiment"] == "averaging"]
    if main.empty:
        raise TasklabError("the records lack the experiment 'averaging'.")
    found = [
        *_linearity(records),
        *_segments(records),
        *_averages(records),
        *_stitched(records),
        *_emergence(records),
        *_theory(records),
    ]
    table = pd.concat(found, ignore_index=True)
    small = table["model"].isin(NETWORKS)
    table.loc[small, ["model", "suite"]] = main[["model", "suite"]].iloc[0].to_list()
    return table.assign(init="pretrained", split="test")


def schemes(records: pd.DataFrame) -> pd.DataFrame:
    """Return comparisons behind those claims on closed vocabularies that are of other kinds.

    Args:
        records: All recorded results of the chapter, maps as their box means.

    Returns:
        Records of two sorts of experiments. `pretraining`: the disentanglement error of each model
        (method `pretrained`) and that of the untrained network (`random`). `decay M`, M a method:
        the mean normalised accuracy of sums of `two` and of `all` tasks, and 100 (`one`).
    """
    errors = records[records["metric"] == "xi_classifier_box"]
    errors = errors[errors["method"] == "nonlinear"]
    untrained = errors[errors["init"] == "random"]
    found = []
    for model, rows in errors[errors["init"] == "pretrained"].groupby("model"):
        for method, side in (("pretrained", rows), ("random", untrained.assign(model=model))):
            found.append(_side(side, "pretraining", "xi_classifier_box", method))
    sums = records[(records["experiment"] == "subsets") & (records["metric"] == "normalised")]
    keys = ["model", "suite", "seed", "n_tasks"]
    for method, rows in sums.groupby("method"):
        means = rows.groupby(keys, as_index=False)["value"].mean()
        means = means.assign(task="all", subset="")
        for side, size in (("two", 2), ("all", means["n_tasks"].max())):
            chosen = means[means["n_tasks"] == size]
            found.append(_side(chosen, f"decay {method}", "normalised", side))
        found.append(found[-1].assign(method="one", value=100.0))
    table = pd.concat(found, ignore_index=True).drop(columns="n_tasks", errors="ignore")
    return table.assign(init="pretrained", split="test")


def r_squared(fits: pd.DataFrame) -> pd.DataFrame:
    """Put what explains theorem 5.1's gap beside the paper's numbers (appendix C.2).

    Args:
        fits: What `curvature.explained_variance` returns.

    Returns:
        A row a predictor: the paper's R^2 and ours with its 95 % interval and n (pairs).
    """
    printed = papers.papers("ctl", "C.2")["value"].tolist()
    order = dict(zip(("bound", "curvature", "distance"), printed, strict=True))
    fits = fits.set_index("predictor").loc[list(order)]
    return pd.DataFrame(
        {
            "predictor": list(order),
            "paper R²": printed,
            "our R²": fits["value"].tolist(),
            "low": fits["low"].tolist(),
            "high": fits["high"].tolist(),
            "n pairs": fits["n_pairs"].tolist(),
        }
    )


def _side(rows: pd.DataFrame, experiment: str, metric: str, method: str) -> pd.DataFrame:
    names = [name for name in _KEYS if name in rows]
    keys = rows[names].fillna({"subset": ""})
    told = {"experiment": experiment, "metric": metric, "method": method}
    return keys.assign(value=rows["value"].astype(float), **told)


def _one(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a side that is the number 1 wherever `rows` has a value."""
    return rows.assign(method="one", value=1.0)


def _usual(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a network that was trained as its setting says."""
    most = {name: rows[name].mode().iloc[0] for name in ("pretraining", "finetuning")}
    chosen = (rows["ratio"] == 0) & (rows["replaced"] == "other")
    for name, value in most.items():
        chosen &= rows[name] == value
    return rows[chosen]


def _linearity(df: pd.DataFrame) -> Iterable[pd.DataFrame]:
    """Merged features against those of single models, and the coefficient against 1."""
    for experiment in ("ctl", "ctl_addition", "ctl_negation", "ctl_average", "ctl_sum"):
        part = df[(df["experiment"] == experiment) & (df["method"] == "nonlinear")]
        for model, rows in part.groupby("model"):
            name = experiment
            if model in NETWORKS:
                rows, name = _usual(rows), f"{experiment} {model}"
            if experiment == "ctl":
                rows = rows[np.isclose(rows["alpha"], 0.5)]
            # An MLP's output is that of its classifier: the last hidden layer stands before it.
            deep = rows["block"] == rows["block"].max() - 1 if model == "mlp" else None
            rows = rows[rows["block"].isna() if deep is None else deep.fillna(False)]
            base = {"ctl_average": "base_merged", "ctl_sum": "first"}.get(experiment, "base")
            for metric, method in (("distance", "merged"), (base, "between")):
                yield _side(rows[rows["metric"] == metric], name, "distance", method)
            error = rows[rows["metric"] == "coef"]
            error = error.assign(value=(error["value"] - 1).abs())
            found = _side(error, name, "coef_error", "merged")
            yield from (found, _one(found))
    # Sums of two and of all vectors are two claims.
    sums = df[(df["experiment"] == "ctl_sum") & df["block"].isna() & (df["method"] == "nonlinear")]
    for k, name in ((2, "ctl_sum of 2"), (sums["n_tasks"].max(), "ctl_sum of all")):
        rows = sums[sums["n_tasks"] == k]
        for metric, method in (("distance", "merged"), ("first", "start")):
            yield _side(rows[rows["metric"] == metric], name, "distance", method)


def _segments(df: pd.DataFrame) -> Iterable[pd.DataFrame]:
    """Accuracy in the middle of a segment against that of the model whose task it is."""
    rows = df[(df["experiment"] == "segment") & (df["metric"] == "accuracy")]
    for model, part in rows.groupby("model"):
        ends = part["subset"].str.split("+", expand=True)
        own = np.where(part["task"] == ends[0], 1.0, np.where(part["task"] == ends[1], 0.0, np.nan))
        tasks = part[np.isfinite(own)]
        for method, at in (("middle", 0.5), ("end", own[np.isfinite(own)])):
            chosen = tasks[np.isclose(tasks["alpha"], at)]
            yield _side(chosen, f"segment {model}", "accuracy", method)


def _averages(df: pd.DataFrame) -> Iterable[pd.DataFrame]:
    """Accuracies of averaged weights against those of single models and of averaged logits."""
    rows = df[df["experiment"] == "averaging"]
    for seed, part in rows.groupby("seed"):
        table = part[part["metric"] != "alone"].pivot(
            index="subset", columns="metric", values="value"
        )
        alone = part[part["metric"] == "alone"]["value"].mean()
        first = part.iloc[:1].assign(seed=seed, subset="")
        numbers = {
            ("accuracy", "averaged"): table["averaged"].mean(),
            ("accuracy", "alone"): alone,
            ("correlation", "found"): table["averaged"].corr(table["ensemble"]),
            ("correlation", "one"): 1.0,
        }
        for (metric, method), value in numbers.items():
            yield _side(first.assign(value=value), "averaging", metric, method)


def _stitched(df: pd.DataFrame) -> Iterable[pd.DataFrame]:
    rows = df[
        (df["experiment"] == "stitched_addition") & df["subset"].str.contains("+", regex=False)
    ]
    keys = [name for name in _KEYS if name in rows and name != "task"]
    # Each front on both of its pair's tasks, over all coefficients.
    for fronts, method in ((("both",), "both"), (("own", "other"), "one"), (("edited",), "edited")):
        part = rows[rows["front"].isin(fronts)]
        means = part.groupby(keys, dropna=False, as_index=False)["value"].mean()
        yield _side(means.assign(task=means["subset"]), "stitched_addition", "accuracy", method)
    rows = df[df["experiment"] == "stitched_negation"]
    low, high = np.isclose(rows["alpha"], 0), np.isclose(rows["alpha"], rows["alpha"].max())
    own = rows["task"] == rows["subset"]
    for which, metric in ((own, "target"), (~own, "control")):
        part = rows.assign(task=rows["subset"])[which]
        features, weights = (part["front"] == front for front in ("features", "weights"))
        yield _side(part[features & low[which]], "stitched_negation", metric, "start")
        yield _side(part[features & high[which]], "stitched_negation", metric, "features")
        yield _side(part[weights & high[which]], "stitched_negation", metric, "weights")


def _emergence(df: pd.DataFrame) -> Iterable[pd.DataFrame]:
    """Linearity at the deepest block of a ResNet at both ends of each condition."""
    for what in CONDITIONS:
        rows = varied(df, what)
        rows = rows[rows["block"] == rows["block"].max()]
        by = rows["ratio" if what.endswith("samples") else what]
        ends = {"least": rows[by == by.min()], "most": rows[by == by.max()]}
        distances = {}
        for method, end in ends.items():
            distance, coef = (end[end["metric"] == metric] for metric in ("distance", "coef"))
            distances[method] = distance.set_index("seed")["value"]
            yield _side(distance, f"emergence: {what}", "distance", method)
            coef = coef.assign(value=(coef["value"] - 1).abs())
            yield _side(coef, f"emergence: {what}", "coef_error", method)
        change = (distances["most"] - distances["least"]).abs()
        like = ends["most"][ends["most"]["metric"] == "distance"]
        of = "samples" if what.endswith("samples") else "epochs"
        value = like["seed"].map(change).astype(float)
        yield _side(like.assign(value=value), f"emergence: {of}", "change", what)


def _theory(df: pd.DataFrame) -> Iterable[pd.DataFrame]:
    rows = df[df["experiment"] == "theorem"]
    for model, part in rows.groupby("model"):
        for seed, pairs in part.groupby("seed"):
            first = pairs.iloc[:1].assign(seed=seed, subset="")
            fits = curvature.explained_variance(pairs, repeats=1).set_index("predictor")["value"]
            for predictor, value in fits.fillna(0.0).items():
                yield _side(first.assign(value=value), f"theorem {model}", "r2", predictor)
            for method in ("value", "bound"):
                sizes = first.assign(value=pairs[method].median())
                yield _side(
                    sizes, f"theorem {model}", "delta", "gap" if method == "value" else method
                )
    rows = df[(df["experiment"] == "ctl") & (df["method"] == "nonlinear")]
    rows = rows[~rows["model"].isin(NETWORKS)]
    for _, part in rows.groupby("model"):
        pairs = pairs_in(part)
        if len(pairs) < 6:
            continue
        summary = transitivity(pairs, THRESHOLD, by=["seed"]).summary
        for told, method in (("violations", "linked"), ("violations_unlinked", "unlinked")):
            like = part.iloc[:1].drop(columns=["seed", "value", "task"])
            table = like.merge(summary[["seed"]], how="cross").assign(task="triples")
            yield _side(table.assign(value=summary[told]), "transitivity", "violations", method)
