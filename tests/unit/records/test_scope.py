"""What draws tasks, what is a number against itself, and what many tests leave."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from benchmarks import simulation
from tasklab.evidence.records import intervals
from tasklab.evidence.records.claims import BY_ID
from tasklab.evidence.records.intervals import Interval
from tasklab.evidence.records.judgement import Verdict, verdict
from tasklab.evidence.records.statements import effect_of, entries, marked, verdict_rows
from tasklab.evidence.records.table import tidy


def rows(claim, values, seeds=3):
    return tidy(
        {"experiment": claim.experiment, "model": "mini", "method": method, "task": task,
         "metric": claim.metric, "value": 20 + gain * (method == claim.left) + 0.01 * seed,
         "seed": seed, "n_tasks": 8 if claim.experiment == "addition" else None}
        for method in (claim.left, claim.right) for seed in range(seeds)
        for task, gain in values.items()
    )  # fmt: skip


def test_pairs_and_tasks_are_drawn():
    claim = BY_ID["tangent-fig10-linearized"]
    found = verdict(claim, rows(claim, {"Signs+Places": -5.0}))
    assert found.outcome == "undecided" and found.too_few and math.isnan(found.p)
    assert found.on_these_tasks.outcome == "holds" and found.interval.effect == pytest.approx(5)
    (row,) = verdict_rows([found]).to_dict("records")
    assert effect_of(row) == "+5.0 points, one pair" and row["here"] == "holds"
    apart = {"A+B": 1.0, "C+D": 2.0, "E+F": 6.0}
    source = intervals.of_tasks(apart)
    assert source.variance == pytest.approx(np.var([1, 2, 6], ddof=1) / 3) and source.freedom == 2
    names, rng = "ABCDEFGH", np.random.default_rng(0)
    errors, told = [], []
    for _ in range(400):  # effects of pairs that are sums of their tasks'
        own = dict(zip(names, rng.standard_normal(8), strict=True))
        pairs = {f"{a}+{b}": own[a] + own[b] for a in names for b in names if a < b}
        errors.append(np.mean(list(pairs.values())))
        told.append(intervals.of_tasks(pairs).variance)
    assert np.mean(told) == pytest.approx(np.var(errors), rel=0.15)
    assert intervals.of_tasks(pairs).freedom == 7
    assert math.isinf(intervals.of_tasks({"A": 1.0}).variance)


def test_bands_and_gains():
    claim = dataclasses.replace(BY_ID["closed-1-gain-clip_more"], left="nonlinear", right="probe")
    same = rows(claim, dict.fromkeys("ABC", 0.0))
    assert verdict(claim, same).outcome == "no gain"
    share = dataclasses.replace(claim, left="probe", right="nonlinear", factor=0.95)
    assert verdict(share, same).outcome == "not tested"
    gaining = verdict(dataclasses.replace(claim, id="b"), rows(claim, {"A": 2, "B": 2.1, "C": 2.2}))
    (entry,) = entries([verdict(claim, same), gaining])
    assert gaining.outcome == "holds" and entry.outcome == "no gain"
    claim = BY_ID["ctl-output-coef"]
    assert claim.band
    at = {"interval": Interval(-0.012, -0.02, -0.004), "p": 1e-3, "value": 0.112, "bound": 0.1}
    more = {"by_seed": {0: -0.012, 1: -0.012}, "by_task": {"A+B": -0.012}}
    found = Verdict(claim=claim, outcome="outside the band", **at, **more)
    (row,) = verdict_rows([found]).to_dict("records")
    assert row["outcome"] == "outside the band" and effect_of(row).startswith(
        "0.112, limit 0.1, margin "
    )


def test_headlines_are_corrected_among_themselves():
    def cell(number, p, headline):
        claim = dataclasses.replace(
            BY_ID["tangent-1-absolute"], id=f"c{number}", entry=f"s{number}", headline=headline
        )
        half = abs(stats.norm.isf(p / 2))
        return Verdict(claim=claim, outcome="holds", interval=Interval(half, 0.1, 2 * half), p=p)

    verdicts = [cell(0, 0.02, 1), cell(1, 0.001, 2), *(cell(2 + i, 0.9, 0) for i in range(50))]
    assert [one.survives for one in marked(verdicts)[:2]] == [("headlines",), ("headlines",)]
    few = marked([cell(0, 0.02, 1), cell(1, 0.0005, 2), cell(2, 0.03, 3)])
    assert [one.survives for one in few] == [
        ("headlines", "all"), ("headlines", "all"), ("headlines", "all")
    ]  # fmt: skip
    assert verdict_rows(marked(verdicts)[:1])["survives"].tolist() == ["headlines"]


def test_the_bootstrap_of_verdicts():
    # Checked at the precision of 2,000 draws.
    normal = simulation.skewed(simulation.SHAPES["normal"], repeats=2000)
    assert max(normal.values()) < 0.035
    skewed = simulation.skewed(simulation.SHAPES["exponential"], repeats=2000)
    assert skewed["t"] > 0.05 and skewed["bootstrap-t"] < 0.8 * skewed["t"]
    claim = BY_ID["tangent-1-absolute"]
    df = rows(claim, dict(zip("ABCDEF", (0.1, 0.2, 0.4, 0.8, 1.6, 6.4), strict=True)))
    moved = (df["method"] == claim.left) & (df["seed"] == 1)
    found = verdict(claim, df.assign(value=df["value"] + 3 * moved))
    seeds = intervals.half_width([intervals.of_means("seeds", [*found.by_seed.values()])])
    each = np.array([*found.by_task.values()])
    ends = intervals.bootstrap_t(found.interval.effect, each, seeds**2)
    assert found.robust[1:] == pytest.approx(ends)
    values = np.array([-3.0, -1, 1, 3, -2, 2, 0, 0])
    low, high = intervals.bootstrap_t(0.0, values)
    assert low == pytest.approx(-high, rel=0.1)
    wider = intervals.bootstrap_t(0.0, values, 25.0)
    assert wider[1] == pytest.approx(math.hypot(high, 5)) and wider[0] < low
    assert np.isnan(intervals.bootstrap_t(0.0, values[:4])).all()
