"""Nothing that is not finite is scored, and nothing is made of nothing: one error, at once."""

import numpy as np
import pandas as pd
import pytest
import torch

from tasklab.analyses import (
    coefficients,
    cross_task,
    curvature,
    disentanglement,
    editing,
    evaluation,
    kernels,
    layers,
    pair_errors,
    ring,
    step_curves,
    stitching,
    subsets,
    tangent_gap,
    transitivity,
)
from tasklab.errors import TasklabError
from tasklab.models import heads, loading
from tasklab.models.heads import Head
from tasklab.tasks.suites import suite
from tasklab.taskvector import TaskVector
from tasklab.tuning.tangent import TangentFeatures
from tests.helpers import refuses

NAN, INF = float("nan"), float("inf")
EYE = torch.eye(4)
ODD_LISTS = [[], "0, 1", 0.5, [0, NAN], [0, INF], [0, 1e300], [0, "1"], [0, None], {0: 1}]


class Toy(evaluation.Evaluator):
    """Two tasks of a linear encoder x W with W = I, whose tangent features the test can spoil."""

    def __init__(self):
        x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
        encoder = type("Encoder", (), {"params": {"w": EYE}})
        self.clip = type("Clip", (), {"encoder": encoder})
        control = type("Task", (), {"name": "b"})
        self.suite = type("Suite", (), {"control": control})
        self.head = {"a": Head(EYE), "b": Head(EYE)}.__getitem__
        data = type("Images", (), {"x": x, "y": x.argmax(1)})
        self.images = lambda task, split: data
        self.vectors = {t: TaskVector({"w": s * EYE.flip(0)}) for t, s in (("a", 1), ("b", 2))}
        self.spoilt, self.scale = {}, 1.0

    def features(self, params, task, split):
        return self.images(task, split).x @ params["w"] * self.scale + self.spoilt.get(task, 0)

    def tangent_features(self, vector, task, split):
        x = self.images(task, split).x
        return TangentFeatures(x, x @ vector["w"] * self.scale + self.spoilt.get(task, 0))

    def preprocessed(self, task, split, most):
        return self.images(task, split).x[:most]


@pytest.fixture
def toy():
    return Toy()


LINEAR = pytest.mark.parametrize("linear", [True, False])
SCORING = {
    "evaluate": lambda e, v, linear: e.evaluate(v["a"], "a", "test", linear=linear),
    "sweep": lambda e, v, linear: e.sweep(v["a"], ["b", "a"], "val", linear=linear),
    "single_task": lambda e, v, linear: editing.single_task(e, v, "val", linear=linear),
    "addition": lambda e, v, linear: editing.addition(e, v, linear=linear),
    "negation": lambda e, v, linear: editing.negation(e, "a", v["a"], linear=linear),
    "per_task": lambda e, v, linear: coefficients.per_task(e, v, linear=linear),
}


@LINEAR
@pytest.mark.parametrize("spoilt", [NAN, -INF])
@pytest.mark.parametrize("function", SCORING.values(), ids=SCORING)
def test_features_that_are_not_finite_are_not_scored(toy, function, spoilt, linear):
    toy.spoilt["a"] = spoilt
    error = refuses(r"not all finite", function, toy, toy.vectors, linear)
    assert "'a'" in error  # the task's name


@LINEAR
def test_features_whose_length_overflows_are_not_scored(toy, linear):
    """Each number is finite, but scaled to unit length they would all be 0."""
    toy.scale = 1e30
    with pytest.raises(TasklabError, match=r"task 'a', split 'test', coefficient 0.5"):
        toy.evaluate(toy.vectors["a"], "a", "test", 0.5, linear=linear)


def test_logits_that_are_not_finite_are_not_scored(toy):
    toy.head = {"a": Head(EYE * 3e38, normalise=False)}.__getitem__
    with pytest.raises(TasklabError, match=r"logits \(task 'a', split 'test', coefficient 1\)"):
        toy.evaluate(toy.vectors["a"], "a", "test", linear=False)
    refuses("accuracy", heads.accuracy, torch.full((2, 3), NAN), torch.zeros(2, dtype=torch.long))
    toy.head = {"a": Head(EYE), "b": Head(EYE * 3e38, normalise=False)}.__getitem__
    with pytest.raises(TasklabError, match=r"logits \(task 'b', edited\)"):
        disentanglement.error_map(toy, toy.vectors, linear=True, alphas=(0.0, 1.0), progress=False)


@pytest.mark.parametrize("spoilt", [NAN, INF])
def test_scores_features_and_tables_are_finite(toy, spoilt):
    toy.spoilt["b"] = spoilt
    refuses(r"scores .*task 'b'", coefficients.exact_addition, toy, toy.vectors)
    spoil_passes(toy, spoilt)
    accuracies = subsets.passes(toy, toy.vectors, {"val": 4})
    refuses(r"features \(task 'b', coefficient 0.5\)", accuracies, (1,), 0.5, "val")
    with pytest.raises(TasklabError, match=r"features \(task 'a', edited\)"):
        next(pair_errors.pair_errors(toy, toy.vectors, (1.0,), 4))
    toy.spoilt["b"] = spoilt
    refuses(r"scores .*task 'b'", subsets.affine, toy, toy.vectors)
    pairs = [("a", "b"), ("b", "c"), ("a", "c"), ("a", "d"), ("b", "d"), ("c", "d")]
    table = pd.DataFrame(pairs, columns=["one", "other"]).assign(value=0.1, base=0.5)
    for column in ("value", "base"):
        spoiled = table.copy()
        spoiled.loc[0, column] = spoilt
        refuses(f"column '{column}'", transitivity.transitivity, spoiled, 0.1)
    refuses("threshold", transitivity.transitivity, table, spoilt)
    sides = table.assign(bound=np.arange(6.0), value=np.arange(6.0))
    sides.loc[3, "bound"] = spoilt
    refuses("column 'bound'", curvature.explained_variance, sides)


def test_tangent_features_that_are_not_finite_are_not_kept():
    """In the store they would be read by every later session."""
    kept = []

    class Store:
        def get(self, kind, config, make):
            kept.append(make(None))

    clip = loading.load("mini")
    name = next(iter(clip.encoder.params))
    huge = TaskVector({name: torch.full_like(clip.encoder.params[name], 1e38)})
    evaluator = evaluation.Evaluator(clip, suite("mini"), Store(), counts={"test": 2})
    with pytest.raises(TasklabError, match=r"task 'Textures', split 'test'"):
        evaluator.evaluate(huge, "Textures", "test", linear=True)
    assert not kept


GRIDS = {
    "sweep": lambda e, g: e.sweep(e.vectors["a"], ["a"], "val", linear=True, alphas=g),
    "addition": lambda e, g: editing.addition(e, e.vectors, linear=True, alphas=g),
    "negation": lambda e, g: editing.negation(e, "a", e.vectors["a"], linear=True, alphas=g),
    "exact_addition": lambda e, g: coefficients.exact_addition(e, e.vectors, grid=g),
    "error_map": lambda e, g: disentanglement.error_map(e, e.vectors, linear=True, alphas=g),
    "ascend": lambda e, g: step_curves.ascend([LINES], np.ones(1), g),
    "climb": lambda e, g: step_curves.climb(lambda a: 0.0, g),
    "gaps": lambda e, g: tangent_gap.gaps(None, e.vectors["a"], torch.zeros(1, 3, 8, 8), g),
}
LINES = step_curves.AffineScores(np.zeros((3, 2)), np.ones((1, 3, 2)), np.array([0, 1, 1]))


def each_once(functions, odd):
    first = next(iter(functions.values()))
    cases = [(function, odd[i % len(odd)]) for i, function in enumerate(functions.values())]
    return pytest.mark.parametrize(("function", "given"), [*cases, *((first, x) for x in odd)])


@each_once(GRIDS, ODD_LISTS)
def test_coefficients_are_a_list_of_finite_numbers(toy, function, given):
    refuses("must be a ", function, toy, given)


VECTORS = {
    "single_task": lambda e, v: editing.single_task(e, v, "val", linear=True),
    "addition": lambda e, v: editing.addition(e, v, linear=True),
    "exact_addition": coefficients.exact_addition,
    "per_task": lambda e, v: coefficients.per_task(e, v, linear=True),
    "error_map": lambda e, v: disentanglement.error_map(e, v, linear=True),
    "affine": subsets.affine,
    "passes": lambda e, v: subsets.passes(e, v, {}),
    "pair_errors": lambda e, v: next(pair_errors.pair_errors(e, v, (1.0,), 4)),
    "cosines": lambda e, v: layers.cosines(v),
    "norms": lambda e, v: layers.norms(v, {}),
    "alignment": lambda e, v: layers.alignment(v, {}, {}),
    "interference": lambda e, v: layers.interference(e, v, pd.DataFrame(), linear=True),
}


@each_once(VECTORS, [{}, [], None, "a", {"a": {}}, {"a": 1}, TaskVector({})])
def test_vectors_are_named_and_at_least_one(toy, function, given):
    refuses(r"nothing to add|given by|no TaskVector", function, toy, given)


VALUES = {
    "alpha": (
        lambda e, x: e.evaluate(e.vectors["a"], "a", "test", x, linear=True),
        [NAN, INF, -INF, 1e300, "0.5", None, True],
    ),
    "tasks": (
        lambda e, x: e.sweep(e.vectors["a"], x, "val", linear=True), [[], None, "", [1]]
    ),
    "reach": (lambda e, x: disentanglement.grid(x, 5), [NAN, INF, 0, -1, "3"]),
    "points": (lambda e, x: ring.angles(x), ["many", 3.5, None, [4], NAN, 0, 2, 7]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given"), [(name, x) for name, (_, odd) in VALUES.items() for x in odd]
)
def test_one_value_that_is_wrong_is_told(toy, name, given):
    refuses(name, VALUES[name][0], toy, given)


def test_searches_and_tasks_refuse_what_is_not_finite(toy):
    assert toy.sweep(toy.vectors["a"], "a", "val", linear=True).shape == (21, 1)
    refuses(r"values at coefficients \[0.5\]", step_curves.climb, lambda alphas: NAN, [0.5])
    refuses("single-task accuracies", lambda: step_curves.ascend([LINES], np.array([NAN]), [0.5]))
    refuses("at least one task", lambda: step_curves.ascend([], np.array([]), [0.5]))
    refuses("as many coefficients", LINES.accuracy, [1.0, 2.0])
    curve = LINES.along([1.0])
    for weights in ([NAN], [1.0, 2.0], ["1"]):
        refuses("weights", step_curves.mean_curve, [curve], weights)
    refuses("curves", step_curves.mean_curve, [])
    refuses("coefficients", curve.at, [0.5, NAN])
    refuses("accuracies.*finite", editing.normalised, np.array([50.0]), np.array([NAN]))
    encoder = loading.load("mini").encoder
    models = {"one": encoder.params, "two": {n: p * NAN for n, p in encoder.params.items()}}
    merge = cross_task.Merge("m", {"one": 1.0, "two": 0.0}, ("a",))
    images = {"a": torch.zeros(2, 3, 32, 32, dtype=torch.uint8)}
    refuses("finite", cross_task.measure, encoder, models, [merge], images)


WRONG = {
    "a list of vectors": lambda e: e.evaluate([e.vectors["a"]], "a", "val", linear=True),
    "no groups": lambda e: editing.groups([], 2),
    "groups of no number": lambda e: editing.groups("abcd", "two"),
    "accuracies of text": lambda e: editing.normalised(["a"], ["b"]),
    "subsets of none": lambda e: subsets.subsets_of(0),
    "a sample of text": lambda e: subsets.subsets_of(4, "some"),
    "eigenfunctions": lambda e: ring.table(8, "four"),
    "a width": lambda e: ring.network(0),
    "memory": lambda e: kernels.gram(None, {"w": EYE}, Head(EYE), EYE, memory="all"),
    "classes": lambda e: kernels.gram(None, {"w": EYE}, Head(EYE), EYE, classes="some"),
    "a merge": lambda e: cross_task.Merge("m", None, ("a",)),
    "a bound": lambda e: curvature.bound("high", 1.0),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_wrong_types_are_told(toy, call):
    refuses("", call, toy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": NAN}, "scores are not all finite"),
        ({"slopes": INF}, "slopes of scores are not all finite"),
        ({"scores": 1.7e308}, "differences of scores"),
        ({"low": NAN}, "lowest alpha must be a finite"),
        ({"high": INF}, "highest alpha must be a finite"),
        ({"high": "1"}, "highest alpha must be a finite"), ({"high": 0.0}, "must be below"),
        ({"labels": [0, 2]}, "from 0 to 1"), ({"labels": [0, -1]}, "from 0 to 1"),
        ({"labels": [0.0, 1.0]}, "whole numbers"), ({"labels": [0]}, r"\(N, C\)"),
        ({"labels": []}, "at least one image"),
    ],
)  # fmt: skip
def test_exact_curves_are_of_finite_scores(change, message):
    scores = np.array([[0.0, 1.0], [1.0, 0.0]])
    case = {"scores": scores.copy(), "slopes": -scores, "labels": np.array([0, 1])}
    for name, value in change.items():
        if name in ("scores", "slopes"):
            case[name][0] = [value, -value]
        else:
            case[name] = value
    refuses(message, step_curves.exact_curve, **case)


def spoil_passes(toy, spoilt):
    toy.clip.encoder = lambda params, x: x @ params["w"] + spoilt
    toy.clip.encoder.params = {"w": EYE}
    toy.parts = lambda function, x: [function(x)]


@pytest.mark.parametrize("coefficients", [[], "1", [NAN], [1e300]])
def test_pairs_have_finite_coefficients(toy, coefficients):
    refuses("must be a ", lambda: next(pair_errors.pair_errors(toy, toy.vectors, coefficients, 4)))
    with pytest.raises(TasklabError, match="two task vectors"):
        next(pair_errors.pair_errors(toy, {"a": toy.vectors["a"]}, (1.0,), 4))


@pytest.mark.parametrize("spoilt", [NAN, INF])
def test_stitched_features_kernels_and_losses_are_finite(spoilt):
    encoder = loading.load("mini").encoder
    x = encoder.preprocess(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    data = type("Images", (), {"x": x, "y": torch.zeros(2, dtype=torch.long)})
    h = stitching.front(encoder, encoder.params, x, 0) + spoilt
    with pytest.raises(TasklabError, match=r"features \(stitched after block 0\)"):
        stitching.accuracy(encoder, Head(torch.ones(2, 1)), data, 0, h)
    params = {"w": torch.eye(3)}
    x = torch.ones(2, 3)
    x[1, 0] = spoilt
    with pytest.raises(TasklabError, match=r"tangent kernels \(classes \[0\]\)"):
        kernels.gram(lambda p, x: x @ p["w"], params, Head(torch.ones(1, 3)), x)
    refuses("kernels.*finite", kernels.localization, torch.full((1, 2, 3), spoilt), 2)
    one, two = {"w": torch.ones(2)}, {"w": torch.zeros(2)}
    with pytest.raises(TasklabError, match="losses between two models"):
        curvature.interpolation_gap(lambda p: p["w"].sum() * spoilt, one, two)
    refuses("alpha must be", curvature.bound, 1.0, 1.0, spoilt)
    refuses("curvature must be", curvature.bound, spoilt, 1.0)


@LINEAR
@pytest.mark.parametrize("spoilt", [NAN, INF])
def test_maps_are_of_finite_features(toy, spoilt, linear):
    toy.spoilt["b"] = spoilt
    if not linear:
        spoil_passes(toy, spoilt)
    refuses(
        r"features \(task . of 2", disentanglement.error_map, toy, toy.vectors, linear=linear,
        alphas=(0.0, 1.0), progress=False,
    )  # fmt: skip


@pytest.mark.parametrize("weight", [NAN, INF, "0.5", 1e300])
def test_merges_have_finite_weights(weight):
    with pytest.raises(TasklabError, match="weight of 'two' in merge 'm'"):
        cross_task.Merge("m", {"one": 1.0, "two": weight}, ("a",))
    for data in ((), "a"):
        refuses("list of data sets", cross_task.Merge, "m", {"one": 0.5, "two": 0.5}, data)
