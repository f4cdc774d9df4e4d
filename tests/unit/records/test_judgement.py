"""The rule of verdicts."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tasklab.evidence.records import judgement
from tasklab.evidence.records.claims import CLAIMS
from tasklab.evidence.records.images import box_means, packed
from tasklab.evidence.records.judgement import verdict
from tasklab.evidence.records.pairing import pairs
from tasklab.evidence.records.table import tidy
from tests.helpers import refuses
from tests.rows import CLAIM, TASKS, two_methods
from tests.rows import added as row

EXACT = {"n": None}  # no number of images: as if they were all there are


def changed(**other):
    return dataclasses.replace(CLAIM, **other)


@pytest.mark.parametrize(
    ("differences", "outcome"),
    [
        ({0: 1.0, 1: 1.2, 2: 0.9}, "holds"),
        ({0: -1.0, 1: -1.2, 2: -0.9}, "does not hold"),
        ({0: 3.0, 1: 0.1}, "undecided"),
        ({0: 1.0, 1: 1.1}, "holds"),  # 1.05 of 12.7 x 0.05
        ({0: 1.0, 1: 1.3}, "undecided"),  # 1.15 of 12.7 x 0.15
        ({0: 2.0, 1: 0.2, 2: 2.0}, "undecided"),  # mean above two standard errors, below 4.3
        ({0: 9.0}, "undecided"),  # one seed tells nothing of seeds
        ({0: 1.0, 1: 1.0, 2: 1.0}, "undecided"),  # nothing varies: too coarse a measure
    ],
)
def test_rule(differences, outcome):
    found = verdict(CLAIM, two_methods(differences, **EXACT))
    assert found.outcome == outcome
    assert found.outcome in judgement.OUTCOMES
    assert found.by_seed == pytest.approx(differences)
    assert found.interval.effect == pytest.approx(sum(differences.values()) / len(differences))
    assert (found.n_seeds, found.n_pretrainings) == (len(differences), 1)
    assert math.isnan(found.interval.low) == (len(set(differences.values())) == 1)


def test_intervals_of_seeds_and_images():
    values = {0: 1.0, 1: 2.5, 2: 0.4, 3: 1.9}
    found = verdict(CLAIM, two_methods(values, **EXACT))
    theirs = stats.ttest_1samp(list(values.values()), 0)
    assert found.interval[1:] == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    assert found.p == pytest.approx(theirs.pvalue) and found.sources == ("seeds",)
    values = {0: 1.0, 1: 1.2, 2: 0.9}
    alone, counted = (verdict(CLAIM, two_methods(values, n=n)) for n in (None, 1000))
    assert counted.sources == ("seeds", "images")
    assert alone.outcome == "holds" and counted.outcome == "undecided"
    # Two sides and two tasks with images of their own: about sqrt(p (1 - p) / 1000).
    wider = (counted.interval.high - counted.interval.low) / 2
    assert 1.9 < wider / (100 * math.sqrt(0.61 * 0.39 / 1000)) < 2.2


def of_images(right, **other):
    return tidy(
        row(
            method, 100 * hits.mean(), seed=seed, task=task, n=len(hits), hits=packed(hits), **other
        )
        for (method, seed, task), hits in right.items()
    )


def test_what_all_seeds_answer_alike_is_drawn_once():
    """Images that one side answers at every seed count as images, not as many more of them."""
    rng = np.random.default_rng(0)
    n, gained = 400, rng.random((2, 400)) < 0.3
    right = {}
    for seed in range(3):
        for t, task in enumerate(TASKS):
            right["nonlinear", seed, task] = np.arange(n) < 100 + 10 * seed
            right["linearized", seed, task] = right["nonlinear", seed, task] | gained[t]
    df = of_images(right)
    found = verdict(CLAIM, df)
    assert found.sources == ("seeds", "images")
    bound = verdict(CLAIM, df.drop(columns="hits"))
    assert found.interval.effect == pytest.approx(bound.interval.effect)
    narrow, wide = (v.interval.high - v.interval.low for v in (found, bound))
    assert narrow < 0.9 * wide
    # What is particular to a seed and an image is in the spread over seeds: it is not drawn twice.
    shuffled = {key: rng.permutation(hits) for key, hits in right.items()}
    assert verdict(CLAIM, of_images(shuffled)).interval.high < bound.interval.high


def test_a_ratio_has_the_images_of_both_its_parts():
    claim = changed(metric="normalised")
    rng, rows = np.random.default_rng(1), []
    for seed in range(3):
        for method, top in (("nonlinear", 0.6), ("linearized", 0.72)):
            for task in TASKS:
                alone, added = rng.random(500) < 0.8, rng.random(500) < top + 0.01 * seed
                same = {"seed": seed, "task": task, "n": 500}
                values = 100 * alone.mean(), 100 * added.mean()
                rows += [
                    row(method, values[0], experiment="single", metric="single", n_tasks=None,
                        hits=packed(alone), **same),
                    row(method, values[1], hits=packed(added), **same),
                    row(method, 100 * values[1] / values[0], metric="normalised", **same),
                ]  # fmt: skip
    found = verdict(claim, tidy(rows))
    bound = verdict(claim, tidy({k: v for k, v in r.items() if k != "hits"} for r in rows))
    assert found.outcome == "holds" and 10 < found.interval.effect < 20
    assert found.sources == bound.sources == ("seeds", "images")
    assert found.interval != bound.interval
    halves = [(v.interval.high - v.interval.low) / 2 for v in (found, bound)]
    assert halves[0] < 1.5 * halves[1]
    same = packed(rng.random(500) < 0.5)  # what moves both parts alike moves no ratio
    ends = {"value": 90.0, "n": 500, "top": same, "base": same}
    one = ends | {f"{name}_right": x for name, x in ends.items()} | {"value_right": 70.0}
    assert not judgement._contributions(claim, one).any()


def test_maps_know_on_which_images_predictions_changed():
    """What drawing both tasks' images anew does to the difference of two maps."""
    claim = changed(experiment="disentanglement", metric="xi_classifier_box", relation="<")
    rng, n, rows, kept = np.random.default_rng(2), 200, [], {}
    hard = rng.random((2, n)) < 0.3  # images that both methods get wrong, at every seed
    for method, share in (("nonlinear", 0.15), ("linearized", 0.05)):
        often = rng.random((2, n)) < share
        for seed in range(3):
            for alpha in (0.0, 0.5):
                bits = hard | often | (rng.random((2, n)) < 0.01)
                kept.setdefault(method, []).append(bits)
                rows.append(
                    row(method, 100 * bits.mean(1).sum(), experiment="disentanglement",
                        metric="xi_classifier", task="Signs+Places", n_tasks=None, n=n, seed=seed,
                        alpha1=alpha, alpha2=1.0, hits=packed(bits.ravel()))
                )  # fmt: skip
    df = box_means(tidy(rows))
    (source,) = judgement._of_images(claim, pairs(claim, df, None, 8))
    each = 100 * (np.mean(kept["nonlinear"], 0) - np.mean(kept["linearized"], 0))
    draws = rng.integers(n, size=(4000, 2, n))
    bootstrap = np.take_along_axis(each[None], draws, 2).mean(2).sum(1).var()
    assert source.variance == pytest.approx(bootstrap, rel=0.15)
    found, bound = (verdict(claim, table) for table in (df, df.drop(columns="hits")))
    assert found.interval.effect == pytest.approx(bound.interval.effect)
    narrow, wide = (v.here.high - v.here.low for v in (found, bound))
    assert found.on_these_tasks.outcome == "holds" and narrow < 0.7 * wide


def gaining(start, gains):
    return [
        row(method, start + seed + (gains[task] + 0.1 * seed) * (method == "linearized"), seed=seed,
            task=task)
        for method in ("nonlinear", "linearized") for seed in range(3) for task in gains
    ]  # fmt: skip


def test_tasks_in_general_and_these_alone():
    values = {"Signs": 6.0, "Places": -3.0, "Scenes": 2.0, "Digits": 1.0}
    rows = gaining(60, values)
    found = verdict(CLAIM, tidy(rows))
    assert found.sources == ("seeds", "tasks") and found.outcome == "undecided"
    assert (found.tasks_as_claimed, found.n_tasks) == (3, 4)
    names = {"pairs": ("A+B", "A+C"), "cases": ("0.05", "0.1")}
    for noun, (one, two) in names.items():
        assert dataclasses.replace(found, by_task={one: 1.0, two: 2.0}).counted == noun
    control = changed(experiment="negation", metric="control")
    negated = tidy(r | {"experiment": "negation", "metric": "control"} for r in rows)
    here = verdict(control, negated)
    assert here.sources == ("seeds", "images")  # of these tasks alone: the same control images
    assert here.interval.low > found.interval.low and here.on_these_tasks is None
    alone = found.on_these_tasks
    assert alone.sources == ("seeds", "images") and alone.interval == found.here
    assert alone.interval.effect == found.interval.effect
    assert found.interval.low < alone.interval.low and alone.p == found.p_here < found.p
    gains = {"Signs": 40.0, "Places": -10.0, "Scenes": 30.0, "Digits": 20.0}
    rows = gaining(40, gains)
    for relation, outcome in ((">", "holds"), ("<", "does not hold")):
        found = verdict(changed(relation=relation), tidy(rows))
        assert (found.outcome, found.on_these_tasks.outcome) == ("undecided", outcome)


def test_claims_of_less_and_common_seeds():
    found = verdict(changed(relation="<"), two_methods({0: -2.0, 1: -2.1}, **EXACT))
    assert found.outcome == "holds" and found.interval.effect == pytest.approx(2.05)
    refuses("relation", changed, relation=">=")
    df = two_methods({0: 1.0, 1: 1.1})
    extra = tidy([row("linearized", 99.0, seed=2), row("linearized", 99.0, task="Scenes")])
    found = verdict(CLAIM, pd.concat([df, extra]))
    assert found.by_seed == pytest.approx({0: 1.0, 1: 1.1})
    lacking = verdict(CLAIM, df, n_tasks=4)
    assert lacking.outcome == "not tested" and lacking.n_pretrainings == 0


@pytest.mark.parametrize(
    ("differences", "outcome"),
    [
        ({0: 0.1, 1: -0.2, 2: 0.1}, "holds"),
        ({0: 0.1, 1: -0.9, 2: 0.1}, "undecided"),
        ({0: 3.0, 1: 3.1, 2: 2.9}, "does not hold"),
        ({0: -3.0, 1: -3.1, 2: -2.9}, "does not hold"),
    ],
)
def test_a_claim_of_equality_needs_the_interval_within_its_margin(differences, outcome):
    equal = changed(relation="=", margin=1.0)
    found = verdict(equal, two_methods(differences, **EXACT))
    assert found.outcome == outcome
    assert found.tasks_as_claimed == 2 * (abs(found.interval.effect) <= 1)
    assert (found.p <= 0.05) == (outcome == "holds") or outcome == "does not hold"


@pytest.mark.parametrize("tasks", [("Objects",), TASKS])
def test_control_is_compared_with_a_share_of_the_pretrained_one(tasks):
    claim = changed(experiment="negation", metric="control", right="pretrained", factor=0.95)
    base = {"experiment": "negation", "metric": "control", "n_tasks": None, **EXACT}
    rows = [row("pretrained", 60.0, seed=None, task=t, **base) for t in tasks]
    rows += [row("linearized", 57.5 + s / 100, seed=s, task=t, **base)
             for s in (0, 1) for t in TASKS]  # fmt: skip
    found = verdict(claim, tidy(rows))
    assert found.outcome == "holds"
    assert found.by_seed == pytest.approx({0: 0.5, 1: 0.51})


def test_tables_and_files_have_verdicts():
    found = judgement.verdicts(two_methods({0: 1.0, 1: 1.01}, **EXACT), "tangent", "1")
    chosen = [v for v in found if v.claim.setting == "chosen"]
    assert {v.claim.table for v in found} == {"1"} and len(chosen) == 5
    assert [v.outcome for v in chosen] == ["holds", *["not tested"] * 4]
    equal = next(c for c in CLAIMS if c.relation == "=")
    assert equal.test == "single: attention = nonlinear ± 1"
    assert CLAIMS[0].test == "absolute: linearized > nonlinear"
    assert CLAIMS[1].test.endswith("at equal accuracy")
    assert CLAIMS[0].unit == "points"
    refuses("'tangents': .*'tangent'", judgement.verdicts, two_methods({0: 1.0}), "tangents")
    model = "timm/resnet50.a1_in1k"
    judged = judgement.verdicts(two_methods({0: 1.0, 1: 2.0}), "closed_vocab", model=model)
    assert judged and {one.outcome for one in judged} == {"not tested"}


def test_a_claim_may_compare_models_and_initialisations():
    claims = {
        where: changed(left="nonlinear", right=f"nonlinear@{where}")
        for where in ("convnext", "random")
    }
    df = tidy(
        row("nonlinear", 60.0 + seed + more, seed=seed, task=task, model=model, init=init)
        for model, init, more in (
            ("mini", "pretrained", 3), ("mini", "random", 1), ("mini_convnext", "pretrained", 2)
        )
        for seed in (0, 1)
        for task in TASKS
    )  # fmt: skip
    found = {where: verdict(claim, df, model="mini") for where, claim in claims.items()}
    assert {where: v.interval.effect for where, v in found.items()} == {"convnext": 1, "random": 2}
    refuses("several|2 models", verdict, CLAIM, df)
    alone = df[(df["model"] == "mini") & (df["init"] == "pretrained")]
    assert verdict(claims["convnext"], alone).outcome == "not tested"


def test_other_pretrainings_stand_apart_and_growth_is_a_slope():
    effects = {"mini": 1.0, "mini_s_seed0": 3.0, "mini_s_seed1": 4.0, "mini_s_seed2": 5.0}
    df = pd.concat(
        two_methods({0: value, 1: value + 0.01}, model=model, **EXACT)
        for model, value in effects.items()
    )
    found = verdict(CLAIM, df, model="mini")
    assert found.interval.effect == pytest.approx(1.005)
    assert found.n_pretrainings == 3
    theirs = stats.ttest_1samp([3.005, 4.005, 5.005], 0).confidence_interval(0.95)
    assert found.pretrainings == pytest.approx((4.005, *theirs))
    other = {"icons_s": 7.0, "icons_s_seed1": 8.0, "vitb16": 20.0}  # of another world, of none
    more = [two_methods({0: x, 1: x}, model=model, **EXACT) for model, x in other.items()]
    both = pd.concat([df, *more])
    assert verdict(CLAIM, both, model="mini").pretrainings == found.pretrainings
    drawings = verdict(CLAIM, both, model="icons_s")
    assert (drawings.n_pretrainings, drawings.pretrainings.effect) == (2, 7.5)
    assert verdict(CLAIM, both, model="vitb16").n_pretrainings == 1
    shares = {"mini_3": 3, "mini_10": 10, "mini_30": 30, "mini": 100}
    df = pd.concat(
        two_methods({s: 2 * math.log10(share) + 0.1 * s for s in (0, 1)}, model=model)
        for model, share in shares.items()
    )
    grown = changed(grows="t")
    found = verdict(grown, df, model="mini")
    assert found.interval.effect == pytest.approx(2.0)
    steeper = df.assign(value=df["value"] + (df["seed"] * (df["model"] == "mini") * 0.3).where(
        df["method"] == "linearized", 0))  # fmt: skip
    assert verdict(grown, steeper, model="mini").interval.effect > 2
    two = df[df["model"].isin(["mini", "mini_3"])]
    assert verdict(grown, two, model="mini").outcome == "not tested"
