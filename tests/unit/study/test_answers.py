"""Advice is made of recorded numbers, and of no others."""

import sys

import numpy as np
import pytest

from tasklab import study
from tasklab.records import intervals, targets
from tasklab.records.table import nothing, tidy

study.answers  # noqa: B018 - loads the module, whose function has the same name
MODULE = sys.modules["tasklab.study.answers"]


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
    assert line.endswith("eight tasks +2.4 (−1.4 to 6.2)<br>*real drawings:* not recorded |")


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
