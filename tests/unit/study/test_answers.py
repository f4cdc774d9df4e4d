"""Advice is made of recorded numbers, and of no others."""

import functools
import io
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tasklab.evidence import study
from tasklab.evidence.records import intervals, targets
from tasklab.evidence.records.table import nothing, tidy

study.answers  # noqa: B018 - loads the module, whose function has the same name
MODULE = sys.modules["tasklab.evidence.study.answers"]


def test_an_effect_is_paired_and_draws_seeds_and_tasks(monkeypatch):
    rng, gains = np.random.default_rng(0), {"A": 1.0, "B": 4.0, "C": 2.0}
    start = {(t, s): 50 + 9 * rng.standard_normal() for t in gains for s in range(3)}
    rows = [
        {"experiment": "merging", "model": "mini", "method": "nonlinear", "metric": "absolute",
         "task": task, "seed": seed, "n_tasks": 8, "merge": merge,
         "value": start[task, seed] + (gains[task] + 0.1 * seed) * (merge == "tsv_m")}
        for task in gains for seed in range(3) for merge in ("tsv_m", "arithmetic")
    ]  # fmt: skip
    tables = {("merging", "editing"): tidy(rows)}
    monkeypatch.setattr(MODULE, "recorded", lambda *of: (tables.get(of, nothing()), {}))
    (found,) = study.answers()  # all others have parts that are not recorded
    (effect,) = found.effects["synthetic images"].values()
    sources = [
        intervals.of_means("seeds", [7 / 3, 7 / 3 + 0.1, 7 / 3 + 0.2]),
        intervals.of_means("tasks", [1.1, 4.1, 2.1]),
    ]
    assert effect == pytest.approx(intervals.interval(7 / 3 + 0.1, sources))
    line = study.advice_table([found]).splitlines()[2]
    assert line.endswith("eight tasks +2.4 (−1.4 to 6.2)<br>*not recorded:* real drawings, texts |")


def test_over_many_sets_other_tasks_are_the_target(monkeypatch):
    rng, sets = np.random.default_rng(1), ("A+B", "A+C", "B+D", "C+D", "B+C")
    rows = [
        {"experiment": "merging", "model": "icons_s", "method": "nonlinear", "metric": "absolute",
         "task": task, "subset": one, "seed": seed, "n_tasks": 2, "merge": merge,
         "value": 50 + rng.normal()}
        for one in sets for task in one.split("+") for seed in (0, 1)
        for merge in ("tsv_m", "arithmetic")
    ]  # fmt: skip
    table = tidy(rows)
    tables = {("merging", "icons"): table}
    monkeypatch.setattr(MODULE, "recorded", lambda *of: (tables.get(of, nothing()), {}))
    (found,) = study.answers()
    (effect,) = found.effects["real drawings"].values()
    keys = ["seed", "task", "subset"]
    sides = [table[table["merge"] == merge].set_index(keys)["value"] for merge in
             ("tsv_m", "arithmetic")]  # fmt: skip
    differences = (sides[0] - sides[1]).rename("difference").reset_index()
    assert effect == pytest.approx(targets.interval(differences, targets.TASKS))
    assert effect != pytest.approx(targets.interval(differences, targets.SETS))


@functools.cache
def whole(file):
    return pd.read_csv(file, low_memory=False)


def read(side):
    """Return the values of a side by seed, task and set, from the recorded file alone."""
    part, *chosen = side.split()
    chapter, _, name = part.partition("/")
    file = study.results.RECORDED / f"{chapter}{'' if name == 'editing' else f'_{name}'}.csv.xz"
    df = whole(file)
    df = df[df["split"] == "test"]
    for column, _, wanted in (one.partition("=") for one in chosen):
        if wanted == "best":
            wanted = RATES_OF_SUMS[side.partition(" metric=")[0]]
        numbers = pd.api.types.is_numeric_dtype(df[column])
        df = df[np.isclose(df[column], float(wanted))] if numbers else df[df[column] == wanted]
    return df.assign(subset=df["subset"].astype(object).fillna("")).set_index(
        ["seed", "task", "subset"]
    )["value"]


RATES_OF_SUMS = {  # on validation images: of rates as good for the sum the most accurate alone
    "linear_layers/budgets method=attention steps=240 lr=best": 4e-4,
    "tangent/budgets method=nonlinear steps=240 lr=best": 4e-4,
    "tangent/icons_budgets method=attention steps=240 lr=best": 3.2e-3,
    "tangent/icons_budgets method=nonlinear steps=240 lr=best": 1.6e-3,
    "merging/strengths method=tau_jp penalty=best": 1e-4,
}


def by_hand(difference):
    """Return the mean and its interval for other tasks: two-way analysis of variance."""
    table = difference.groupby(["task", "seed"]).mean().unstack()
    y, (tasks, seeds) = table.to_numpy(), table.shape
    rest = y - y.mean(0) - y.mean(1, keepdims=True) + y.mean()
    noise = (rest**2).sum() / ((tasks - 1) * (seeds - 1)) / y.size
    of_tasks = y.mean(1).var(ddof=1) / tasks
    of_seeds = max(0, y.mean(0).var(ddof=1) / seeds - noise)
    t = [stats.t.ppf(0.975, n - 1) for n in (tasks, seeds)]
    half = np.sqrt(t[0] ** 2 * of_tasks + t[1] ** 2 * of_seeds)
    return y.mean(), half


def by_hand_over_sets(difference):
    """Return the mean and its interval for other tasks over sets, with whole covariances.

    The package's variances are taken where they have the largest restricted likelihood; its
    derivatives and the degrees of freedom are computed here.
    """
    table = difference.unstack("seed")
    tasks, sets = (table.index.get_level_values(name) for name in ("task", "subset"))
    y, names = table.to_numpy(), sorted({*tasks})
    own = (tasks.to_numpy()[:, None] == names).astype(float)
    others = np.array([[name in one.split("+") for name in names] for one in sets]) - own
    company = others / np.maximum(others.sum(1, keepdims=True), 1)
    terms = [own, company, (sets.to_numpy()[:, None] == [*dict.fromkeys(sets)]).astype(float)]
    parts = [z @ z.T for z in terms] + [np.eye(len(y))]
    weights = np.array([(z.mean(0) ** 2).sum() for z in terms] + [1 / len(y)])

    def spread(x):
        theta = targets.components(x, terms).variances
        inverse = np.linalg.inv(np.tensordot(theta, parts, 1))
        p = inverse - np.outer(inverse.sum(0), inverse.sum(1)) / inverse.sum()
        slopes = np.array([(p * part).sum() - p @ x @ part @ p @ x for part in parts])
        there = theta > 1e-8 * theta.sum()
        assert np.abs(theta * slopes)[there].max() < 0.02 and (slopes[~there] > -1e-6).all()
        products = [p @ part for part, kept in zip(parts, there, strict=True) if kept]
        known = [[0.5 * (a * b.T).sum() for b in products] for a in products]
        of_variance = weights[there] @ np.linalg.pinv(known) @ weights[there]
        return weights @ theta, max(1.0, 2 * (weights @ theta) ** 2 / of_variance)

    n, (variance, freedom) = y.shape[1], spread(y.mean(1))
    contrasts = np.linalg.svd(np.ones((1, n)))[2][1:]
    noise = np.mean([spread(y @ contrast)[0] for contrast in contrasts]) / n
    of_seeds = max(0, y.mean(0).var(ddof=1) / n - noise)
    t = [stats.t.ppf(0.975, f) for f in (freedom, n - 1)]
    return y.mean(), np.sqrt(t[0] ** 2 * variance + t[1] ** 2 * of_seeds)


@pytest.fixture(scope="module")
def every():
    return study.answers()


def test_every_row_is_what_plain_pandas_makes_of_the_files(every):
    text = (Path(MODULE.__file__)).with_suffix(".csv").read_text()
    rows = pd.read_csv(io.StringIO(text), keep_default_na=False)
    told = {
        (one.case, world, name): effect
        for one in every for world, effects in one.effects.items()
        for name, effect in effects.items()
    }  # fmt: skip
    assert len(rows) == len(told)
    for row in rows.itertuples():
        difference = (read(row.left) - read(row.right)).dropna()
        found = told[row.case, row.world, row.effect]
        assert difference.index.is_unique and len(difference) >= 16, row.left
        by_seed = difference.groupby("seed").mean()
        assert found.effect == pytest.approx(by_seed.mean(), abs=1e-9), row.left
        if difference.any():
            many = difference.index.get_level_values("subset").nunique() > 1
            mean, half = (by_hand_over_sets if many else by_hand)(difference)
            near = {"rel": 0.01, "abs": 0.01} if many else {"abs": 1e-6}
            assert found[1:] == pytest.approx((mean - half, mean + half), **near), row.left


def test_rates_in_the_advice_are_those_that_validation_images_chose():
    for part in ("tangent_budgets", "tangent_icons_budgets"):
        df = whole(study.results.RECORDED / f"{part}.csv.xz")
        df = df[(df["split"] == "validation") & (df["metric"] == "single") & (df["steps"] == 240)]
        alone = df.groupby(["method", "lr"])["value"].mean().unstack()
        assert alone.loc[["nonlinear", "linearized"]].idxmax(axis=1).tolist() == [1.6e-3] * 2


def test_every_advice_is_of_no_effect_that_a_world_refutes(every):
    """Beside an effect that is decided, none of its name lies clearly on the other side."""
    for one in every:
        for name in {name for effects in one.effects.values() for name in effects}:
            ends = [effects[name] for effects in one.effects.values() if name in effects]
            assert not (any(x.low > 0 for x in ends) and any(x.high < 0 for x in ends)), name
