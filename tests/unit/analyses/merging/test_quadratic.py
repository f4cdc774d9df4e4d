"""Merges that minimise a quadratic distance: properties, gradients, and what is refused."""

import pytest
import torch

from tasklab.analyses.merging import average, fisher, regmean, wudi, wudi_descent, wudi_exact
from tasklab.analyses.merging.quadratic import interference
from tasklab.errors import TasklabError
from tasklab.taskvector import TaskVector
from tests.helpers import refuses


def reads(side, *, seed, rows=50):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(rows, side, generator=generator, dtype=torch.float64)
    return X.T @ X / rows


def grams_of(cases, *, seed, **options):
    names = [name for name in cases.MATRICES if name != "proj"]
    return {name: reads(cases.SHAPES[name][1], seed=seed, **options) for name in names}


def slope(W, matrices, grams):
    return sum((W - x) @ G for x, G in zip(matrices, grams, strict=True)).abs().max()


def test_fisher_and_regmean_weigh_every_number(cases):
    one, two = cases.single([1, 2, 3], [5, 6, 7])
    F = cases.single([0.75, 0, 0], [0.25, 0.5, 0])
    assert cases.numbers(fisher([one, two], F)) == [2, 6, 5]
    assert cases.numbers(fisher({"a": one, "b": two}, {"b": F[1], "a": F[0]})) == [2, 6, 5]
    a, b = cases.vectors(2)
    equal = {name: torch.ones_like(x) for name, x in a.items()}
    cases.assert_close(fisher([a, b], [equal, equal], alpha=2), a + b)
    vectors, G = cases.vectors(2), [grams_of(cases, seed=seed) for seed in range(2)]
    merged = regmean(vectors, G, ratio=1)
    for name in G[0]:
        assert slope(merged[name], [v[name] for v in vectors], [one[name] for one in G]) < 1e-12
    torch.testing.assert_close(merged["proj"], average(vectors)["proj"])  # it has no Gram matrix


def test_regmean_with_equal_grams_or_a_large_ridge_is_the_average(cases):
    vectors, G = cases.vectors(3), grams_of(cases, seed=0)
    for ratio in (1.0, 0.9, 0.0):
        cases.assert_close(regmean(vectors, [G] * 3, ratio=ratio), average(vectors))
    vectors, G = cases.vectors(2), [grams_of(cases, seed=seed, rows=3) for seed in range(2)]
    refuses("ridge", regmean, vectors, G, ratio=1)
    near, two = torch.ones(2, 2).double() + 1e-13 * torch.eye(2), cases.single([[1, 2]], [[3, 4]])
    refuses("ridge", regmean, two, [{"w": near}] * 2, ratio=1)
    found = regmean(vectors, G, ratio=1, ridge=1e9)
    cases.assert_close(found, average(vectors), rtol=1e-6, atol=1e-6)
    little = regmean(vectors, G, ratio=1, ridge=1e-9)
    for name in G[0]:  # what is read on a task's images is nearly what its own matrix gives
        assert slope(little[name], [v[name] for v in vectors], [one[name] for one in G]) < 1e-6


def test_regmean_takes_inputs_that_are_nearly_or_always_0(cases):
    vectors, G = cases.vectors(2), [grams_of(cases, seed=seed) for seed in range(2)]
    name, usual = next(iter(G[0])), regmean(vectors, G)
    faint = torch.ones_like(G[0][name].diagonal())
    faint[0] = 1e-7  # a unit that hardly ever fires: both vectors' columns matter as before
    scaled = [one | {name: one[name] * torch.outer(faint, faint)} for one in G]
    small = [TaskVector({**v, name: v[name] / faint}) for v in vectors]
    cases.assert_close({name: regmean(small, scaled)[name] * faint}, {name: usual[name]})
    faint[0] = 0
    dead = [one | {name: one[name] * torch.outer(faint, faint)} for one in G]
    merged, mean = regmean(vectors, dead)[name], average(vectors)[name]
    torch.testing.assert_close(merged[:, 0], mean[:, 0])
    assert not torch.allclose(merged[:, 1:], mean[:, 1:])


def test_wudi_of_zero_and_of_equal_tasks(cases):
    zero, (one, two) = TaskVector.zeros_like(cases.vector(0)), cases.vectors(2)
    found, without = wudi_exact([one, zero, two]), wudi_exact([one, two])
    for name in cases.MATRICES:
        torch.testing.assert_close(found[name], without[name])
    assert all(not x.any() for x in wudi_exact([zero, zero]).values())
    assert all(not x.any() for x in wudi_descent([zero, zero], steps=1).values())
    vector = cases.vector(0)
    found = wudi_exact([vector] * 3)  # its Gram matrix is singular
    cases.assert_close(found, vector, rtol=1e-9, atol=1e-9)


def test_wudi_divides_by_the_norm_and_leaves_the_rest_where_it_was(cases):
    """Adam by autograd, of the objective of the authors' code; the last two are no such layers."""
    each, steps = cases.vectors(3), 40
    found = wudi(each, steps=steps, lr=0.01, alpha=2)
    for name, merged in found.items():
        if "resblocks" not in name or not name.endswith("weight"):
            assert not merged.any(), name
            continue
        tau = torch.stack([v[name] for v in each])
        W = tau.sum(0).requires_grad_()
        solver = torch.optim.Adam([W], lr=0.01)
        for _ in range(steps):
            solver.zero_grad()
            product = (W - tau) @ tau.mT
            (product.square().sum((1, 2)) / tau.flatten(1).norm(dim=1)).sum().backward()
            solver.step()
        torch.testing.assert_close(merged, 2 * W.detach())
    other = [TaskVector({"stage.weight": torch.ones(2, 3) * k, "b": torch.ones(3)}) for k in (1, 2)]
    found = wudi(other, steps=1)  # no names of blocks: all matrices
    assert found["stage.weight"].any() and not found["b"].any()


@pytest.mark.parametrize("many", [2, 5])
def test_the_closed_form_of_wudi_is_a_minimum(cases, many):
    vectors = cases.vectors(many)
    found = wudi_exact(vectors)
    for name in cases.MATRICES:
        W = (found[name].T if name == "proj" else found[name]).clone().requires_grad_()
        matrices = [v[name].T if name == "proj" else v[name] for v in vectors]
        loss = sum(((W - x) @ x.T).square().sum() / x.square().sum() for x in matrices)
        (gradient,) = torch.autograd.grad(loss, W)
        assert gradient.abs().max() < 1e-11
        assert float(loss.detach()) == pytest.approx(interference(W.detach(), matrices))
    for name in ("positional_embedding", "transformer.resblocks.0.mlp.c_proj.bias"):
        torch.testing.assert_close(found[name], average(vectors)[name])


def test_plain_descent_from_the_sum_goes_to_the_closed_form_where_the_minimum_is_no_point(cases):
    name = "transformer.resblocks.0.mlp.c_proj.weight"
    matrices = [v[name] for v in cases.vectors(2)]
    A = sum(x.T @ x / x.square().sum() for x in matrices)
    B = sum(x @ x.T @ x / x.square().sum() for x in matrices)
    assert torch.linalg.matrix_rank(A) == 12 < len(A)
    W, step = sum(matrices), 1 / torch.linalg.matrix_norm(A, 2)
    for _ in range(20000):
        W = W - step * (W @ A - B)
    found = wudi_exact([TaskVector({name: x}) for x in matrices])
    torch.testing.assert_close(W, found[name], rtol=1e-6, atol=1e-6)


def test_images_that_are_not_there_or_of_another_model_are_refused(cases):
    vectors = cases.vectors(2)
    refuses("give grams", regmean, vectors)
    refuses("fisher", fisher, vectors)
    refuses("2 vectors, not 1", lambda: regmean(vectors, [grams_of(cases, seed=0)]))
    with pytest.raises(TasklabError, match="that of 'b' is missing"):
        fisher(dict(zip("ab", vectors, strict=True)), {"a": vectors[0], "c": vectors[1]})
    refuses("names of parameters", lambda: regmean(vectors, [torch.ones(2, 2)] * 2))
    refuses("of none", lambda: regmean(vectors, [{"other": torch.eye(2)}] * 2))
    small = {name: torch.eye(3) for name in cases.MATRICES}
    refuses("6 rows", lambda: regmean(vectors, [small] * 2))
    broken = {name: x * float("nan") for name, x in grams_of(cases, seed=0).items()}
    refuses("not all finite", lambda: regmean(vectors, [broken] * 2))
    one = grams_of(cases, seed=0)
    name = cases.MATRICES[1]
    one[name] = one[name].index_put((torch.tensor([0, 1]), torch.tensor([1, 0])), torch.tensor(
        float("nan"), dtype=torch.float64))  # fmt: skip
    refuses(f"{name} .*finite", regmean, vectors, [one, grams_of(cases, seed=1)])
    refuses("the Fisher information lacks", fisher, vectors, [{}, {}])
    refuses("negative", fisher, vectors, [-v for v in map(abs_of, vectors)])
    refuses("ratio must be", lambda: regmean(vectors, [grams_of(cases, seed=0)] * 2, ratio=1.1))
    refuses("steps", wudi_descent, vectors, steps=0)
    for rule in (fisher, regmean, wudi, wudi_descent, wudi_exact):
        refuses("at least 2", rule, cases.vectors(1))


def abs_of(vector):
    return TaskVector({name: x.abs() for name, x in vector.items()})
