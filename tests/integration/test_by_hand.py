"""Headlines of all worlds recomputed from the recorded files by plain pandas and numpy.

Nothing of the package but the verdicts, which are compared with it, takes part.
"""

import base64
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tasklab.evidence import study
from tasklab.storage.store import Store

RECORDED = Path(study.results.RECORDED)
FILES = {
    "mini": ("tangent", "linear_layers", "ctl_methods", "merging_matrix"),
    "icons_s": ("tangent_icons", "linear_layers_icons", "ctl_icons", "merging_pairs"),
    "minilm": ("tangent_wordnet_sums", "linear_layers_wordnet_sums", "ctl_wordnet_sums", None),
}
SUMS = {  # claim: left, right, sign, experiment, metric
    "tangent-1-absolute": ("linearized", "nonlinear", 1, "addition", "absolute"),
    "tangent-1-normalised": ("linearized", "nonlinear", 1, "addition", "normalised"),
    "tangent-1-posthoc-normalised": ("posthoc", "nonlinear", 1, "addition", "normalised"),
    "tangent-1-posthoc-below": ("linearized", "posthoc", 1, "addition", "normalised"),
    "tangent-2-target": ("linearized", "nonlinear", -1, "negation", "target"),
    "linear-1-absolute-nonlinear": ("attention", "nonlinear", 1, "addition", "absolute"),
    "linear-1-absolute-linearized": ("attention", "linearized", 1, "addition", "absolute"),
    "linear-fig3-equal": ("attention", "nonlinear", 1, "single", "single"),
}
PAIRS = {
    "tangent-fig10-linearized-pairs": "linearized",
    "linear-fig4-classifier-pairs": "attention",
}


def of_file(name, model):
    df = pd.read_csv(RECORDED / f"{name}.csv.xz", low_memory=False)
    df = df[df["split"].isna() | (df["split"] == "test")]
    init = df["init"] if "init" in df else pd.Series("pretrained", df.index)
    return df[(df["model"] == model) & (init == "pretrained")].set_index(["task", "seed"])


def drawn(values, seeds, variance, freedom):
    """Return mean and half-width where units and seeds are drawn, the noise of both counted once.

    Args:
        values: Units × seeds.
        seeds: The part of the noise in the variance of a seed's mean.
        variance: Of the mean, as far as units differ.
        freedom: Its degrees of freedom.
    """
    n = values.shape[1]
    common = max(0.0, values.mean(0).var(ddof=1) / n - seeds)
    t = [stats.t.ppf(0.975, f) for f in (n - 1, freedom)]
    return values.mean(), np.hypot(t[0] * common**0.5, t[1] * variance**0.5)


def other_tasks(values):
    """Two-way analysis of variance."""
    tasks, seeds = values.shape
    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    noise = (rest**2).sum() / ((tasks - 1) * (seeds - 1)) / values.size
    return drawn(values, noise, values.mean(1).var(ddof=1) / tasks, tasks - 1)


def other_tasks_of_pairs(table):
    """The jackknife over tasks, each left out with its pairs."""
    members = [set(name.split("+")) for name in table.index]
    tasks, values = sorted(set.union(*members)), table.to_numpy()
    n, seeds = len(tasks), values.shape[1]

    def spread(x):
        left = np.array([x[[task not in two for two in members]].mean() for task in tasks])
        return (n - 1) * left.var()

    contrasts = np.linalg.qr(np.column_stack([np.ones(seeds), np.eye(seeds)[:, 1:]]))[0][:, 1:]
    noise = np.mean([spread(values @ c) for c in contrasts.T]) / seeds
    return drawn(values, noise, spread(values.mean(1)), n - 1)


def answered(row):
    bits = np.frombuffer(base64.b64decode(row["hits"]), np.uint8)
    return 100.0 * np.unpackbits(bits)[: int(row["n"])]


def these_tasks(values, of_images):
    """Student's interval over seeds, and the images that all seeds share.

    Args:
        values: Tasks × seeds.
        of_images: Of each task, what each image gives at each seed: seeds × images.
    """
    n, seeds = values.shape[1], values.mean(0)
    shared = 0.0
    for gives in of_images:
        covariance = np.cov(gives) * (1 - 1 / gives.shape[1]) / gives.shape[1]
        shared += (covariance.sum() - np.trace(covariance)) / (n * (n - 1))
    shared = max(0.0, shared / len(values) ** 2)
    squared = stats.t.ppf(0.975, n - 1) ** 2 * seeds.var(ddof=1) / n
    return values.mean(), np.sqrt(squared + stats.norm.ppf(0.975) ** 2 * shared)


@pytest.fixture(scope="module", params=FILES)
def world(request, chapters_store):
    store = Store(chapters_store)
    verdicts = [
        one for chapter in ("tangent", "linear_layers", "ctl")
        for one in study.judged(chapter, model=request.param, store=store, corrected=False)
    ]  # fmt: skip
    return request.param, {one.claim.id: one for one in verdicts}


def near(interval, mean, half):
    assert interval == pytest.approx((mean, mean - half, mean + half), abs=1e-6)


def test_sums_negation_and_single_tasks(world):
    model, found = world
    files = [of_file(name, model) for name in FILES[model][:2]]
    for claim, (left, right, sign, experiment, metric) in SUMS.items():
        sides = []
        for method in (left, right):
            df = files[method == "attention"]
            df = df[df["method"] == method]
            alone = df[df["metric"] == "single"]
            sums = df[(df["experiment"] == "addition") & (df["n_tasks"] == 8)]
            rows = sums if experiment == "addition" else df[df["experiment"] == experiment]
            own = rows[rows["metric"] == metric]
            assert own.index.is_unique
            sides.append((own["value"], sums[sums["metric"] == "absolute"], alone, own))
        table = (sign * (sides[0][0] - sides[1][0])).dropna().unstack()
        near(found[claim].interval, *other_tasks(table.to_numpy()))
        images = []
        for task in table.index:
            parts = []
            for seed in table.columns:
                gives = []
                for value, whole, alone, own in sides:
                    if metric == "normalised":  # to first order
                        a, b = (answered(df.loc[(task, seed)]) for df in (whole, alone))
                        gives.append(value[task, seed] * (a / a.mean() - b / b.mean()))
                    else:
                        gives.append(answered(own.loc[(task, seed)]))
                parts.append(gives[0] - gives[1])
            images.append(np.stack(parts))
        near(found[claim].here, *these_tasks(table.to_numpy(), images))


def test_errors_of_all_pairs(world):
    model, found = world
    if not FILES[model][3]:  # not recorded yet: name the file here once it is
        assert not any(found[claim].n_seeds for claim in PAIRS)
        return
    df = of_file(FILES[model][3], model)
    df = df[(df["experiment"] == "crossing") & (df["metric"] == "xi_classifier")]
    values = {method: rows["value"] for method, rows in df.groupby("method")}
    for claim, method in PAIRS.items():
        table = (values["nonlinear"] - values[method]).dropna().unstack()
        near(found[claim].interval, *other_tasks_of_pairs(table))


def test_cross_task_linearity(world):
    model, found = world
    df = of_file(FILES[model][2], model)
    df = df[(df["experiment"] == "ctl") & (df["method"] == "nonlinear") & df["block"].isna()]
    df = df[np.isclose(df["alpha"], 0.5)]
    ends = [df[df["metric"] == name]["value"] for name in ("endpoint", "distance")]
    seeds = (ends[0] - ends[1]).unstack().mean()
    one = found["ctl-4.1-vit"]
    assert one.interval.effect == pytest.approx(seeds.mean(), abs=1e-9)
    assert one.by_seed == pytest.approx(seeds.to_dict(), abs=1e-9) and len(seeds) >= 3
