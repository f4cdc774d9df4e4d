"""Methods by name."""

import re

import pytest
import torch

from tasklab.analyses import merging
from tasklab.analyses.merging import registry
from tasklab.taskvector import TaskVector
from tests.helpers import refuses


@pytest.fixture(scope="module")
def told(cases):
    """Return three vectors, and what a merge needs of their images in an order of tasks."""
    vectors, draw = cases.vectors(3), torch.Generator().manual_seed(0)

    def gram(name):
        X = torch.randn(50, cases.SHAPES[name][1], generator=draw, dtype=torch.float64)
        return X.T @ X

    grams = [{n: gram(n) for n in cases.MATRICES if n != "proj"} for _ in vectors]
    each = {
        "diagonals": [{name: x.square() for name, x in v.items()} for v in vectors],
        "grams": grams,
        "readers": [lambda _, names, own=G: {n: own[n] for n in names if n in own} for G in grams],
    }

    def needed(method, order=(0, 1, 2)):
        made = {method.needs: [each[method.needs][t] for t in order]} if method.needs else {}
        few = {"ridge": 1e-3, "steps": 20}
        return made | {option: few[option] for option in few.keys() & method.options.keys()}

    return vectors, needed


def test_every_method_keeps_names_shapes_types_and_scales_with_alpha(cases, told):
    vectors, needed = told
    for name, method in merging.METHODS.items():
        whole = merging.merge(name, vectors, **needed(method))
        assert {n: (x.shape, x.dtype) for n, x in whole.items()} == {
            n: (x.shape, x.dtype) for n, x in vectors[0].items()
        }, name
        single = [TaskVector({n: x.float() for n, x in v.items()}) for v in vectors]
        rough = merging.merge(name, single, **needed(method))
        assert all(x.dtype == single[0][n].dtype for n, x in rough.items()), name


@pytest.mark.parametrize("name", merging.METHODS)
def test_the_merge_at_a_coefficient_is_it_times_the_merge_at_one(cases, told, name):
    vectors, needed = told
    method = merging.METHODS[name]
    given = needed(method) | dict(method.fixed)
    if "steps" in method.options:
        given["steps"] = 5
    for value in method.values or (None,):
        options = given if value is None else {**given, method.searched: value}
        whole = merging.merge(name, vectors, **options)
        assert whole.norm() > 0
        for alpha in (0.3, -2.0):
            found = merging.merge(name, vectors, alpha=alpha, **options)
            cases.assert_close(found, alpha * whole)
            assert found.norm() == pytest.approx(abs(alpha) * whole.norm())


#: Merges whose size is not that of the vectors: tanh(tau S), and Adam's steps.
SIZED = ("pcb", "wudi", "wudi_descent")
ITSELF = ("average", "ties", "fisher", "regmean", "regmean_plusplus", "wudi_exact")


@pytest.mark.parametrize("name", merging.METHODS)
def test_merges_scale_with_vectors_know_no_order_and_keep_what_all_tasks_share(cases, told, name):
    vectors, needed = told
    method = merging.METHODS[name]
    found = merging.merge(name, vectors, **needed(method))
    if name not in SIZED:
        tripled = merging.merge(name, [3 * v for v in vectors], **needed(method))
        cases.assert_close(tripled, 3 * found, rtol=1e-7, atol=1e-9)
        turned = merging.merge(name, [-v for v in vectors], **needed(method))
        cases.assert_close(turned, -found, rtol=1e-7, atol=1e-9)
    for order in ((2, 0, 1), (1, 0, 2)):
        other = merging.merge(name, [vectors[t] for t in order], **needed(method, order))
        cases.assert_close(other, found, rtol=1e-7, atol=1e-9)
    if name in ITSELF:
        options = {"keep": 1.0} if name == "ties" else {}
        same = merging.merge(name, vectors[:1] * 3, **needed(method), **options)
        cases.assert_close(same, vectors[0], rtol=1e-7, atol=1e-9)


def test_defaults_are_those_of_papers_and_of_their_code():
    found = {pair for method in merging.METHODS.values() for pair in method.options.items()}
    assert found == {
        ("alpha", 1.0), ("keep", 0.2), ("keep", 0.05), ("drop", 0.9), ("seed", 0),
        ("by_place", False), ("small", 0.85),
        ("large", 0.007), ("threshold", 0.4), ("agree", 2), ("beta", 0.0), ("beta", 0.01),
        ("common", 0.8), ("ratio", 0.9), ("ridge", 0.0), ("steps", 300), ("lr", 1e-5),
        ("grams", None), ("diagonals", None), ("readers", None),
    }  # fmt: skip


def test_methods_have_sources_and_unknown_ones_a_nearest(cases):
    for name, method in merging.METHODS.items():
        assert re.fullmatch(r"(\d{4}\.\d{5})?", method.paper), name  # none: a rule of one's own
        assert method.paper in (method.function.__doc__ or ""), name
        assert method.text and method.title and "alpha" in method.options, name
    vectors = cases.vectors(2)
    refuses("'tie': did you mean 'ties'", merging.merge, "tie", vectors)
    refuses("ties 'kep': did you mean 'keep'", merging.merge, "ties", vectors, kep=0.2)
    refuses("unknown method of merging 3", merging.merge, 3, vectors)


@pytest.mark.parametrize("name", ["tall_masks", "emr", "tsv_c", "wemoe", "adamerging"])
def test_what_is_no_merge_is_said_to_be_none(cases, name):
    refuses(rf"^{name} .*(no single model|test images)", merging.merge, name, cases.vectors(2))


def test_a_recommended_coefficient_follows_number_length_size_and_way_of_training():
    known = merging.defaults.Known

    def of(vectors, name="arithmetic"):
        return merging.METHODS[name].recommended(vectors)["alpha"]

    alphas = [of(n) for n in (2, 4, 8, 14, 20, 40)]
    assert alphas == sorted(alphas, reverse=True) and of(1) == of(2)
    assert alphas[4] < 0.4 * alphas[2]  # faster than 1 / n beyond eight
    assert of(known(8, 0.04)) > of(8) > of(known(8, 0.16))
    assert of(known(8, 0.001)) == of(known(8, 0.02))  # the shortest that were recorded
    assert of(known(8, 0.08, 1_000_000)) < of(8) == of(known(8, 0.08, 10**9))
    assert of(known(8, partly=True)) > of(8)
    for n in (2, 8, 20):  # the mean is the sum over n
        assert of(n, "average") == pytest.approx(n * of(n), rel=0.02)
    refuses("wudi_exact has no recommended coefficient", merging.METHODS["wudi_exact"].usual, 8, {})
    assert merging.METHODS["wudi_exact"].usual(8, {"alpha": 0.5}) == {}


def test_what_is_known_of_vectors_is_measured():
    theta0 = {"w": torch.tensor([3.0, 4.0])}
    vectors = [TaskVector({"w": torch.tensor(x)}) for x in ([1.0, 0.0], [0.0, 2.0])]
    found = merging.defaults.Known.of(vectors, theta0, "attention_mlp")
    assert found == merging.defaults.Known(2, 0.3, 2, partly=True)
    nothing = merging.defaults.Known.of([0 * vectors[0]], theta0)
    assert nothing.relative == merging.defaults.USUAL and not nothing.partly


def test_solved_merges_run_where_they_are_named_and_have_their_own_coefficient(cases):
    every, few = registry.several(None), registry.several(["ties", " least_logits", "all"])
    assert every == tuple(merging.METHODS) == registry.several(["all"])
    assert few == (*every, "least_logits") and registry.several(["ties"]) == ("ties",)
    assert registry.method("least_logits").usual(5, {}) == {"alpha": 1.0}
    vectors, (solution,) = cases.vectors(2), cases.vectors(1)
    found = merging.merge("least_features", vectors, solution=solution, alpha=0.5)
    cases.assert_close(found, solution / 2)
    refuses("'least_feature': did you mean", registry.several, ["ties", "least_feature"])


@pytest.mark.parametrize("name", ["TIES", "Ties", "ties"])
def test_a_name_may_be_written_in_any_case(name):
    vectors = [TaskVector({"w": torch.tensor(x)}) for x in ([3.0, -1.0], [1.0, 2.0])]
    assert merging.merge(name, vectors, keep=0.5) == merging.merge("ties", vectors, keep=0.5)
    assert registry.several([name, "TSV-M"]) == ("ties", "tsv_m")
    refuses("keeps a mask for each task", registry.named, "EMR")
    refuses("did you mean 'ties'", registry.named, "tiess")


def test_published_names_name_the_method_and_those_of_mergekit_the_nearest():
    for name, rule in registry.METHODS.items():
        assert registry.named(rule.title) == registry.named(rule.title.upper()) == name
    published = ("TIES-Merging", "Task Arithmetic", "TSV-Merge", "Model Soup", "Fisher merging")
    found = [registry.named(one) for one in published]
    assert found == ["ties", "arithmetic", "tsv_m", "average", "fisher"]
    for name, told in (("linear", "`average`"), ("dare_ties", "`dare`"), ("SLERP", "`average`")):
        refuses(told, registry.named, name)
