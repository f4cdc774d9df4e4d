"""Sums over tasks in the place of every task's statistics: the same merges, one task at a time."""

import weakref

import pytest
import torch

from tasklab.analyses.merging import fisher, pooled_diagonals, pooled_grams, regmean
from tasklab.analyses.merging.pooled import unpacked
from tasklab.taskvector import TaskVector
from tests.helpers import refuses


class Told(dict):
    """What images told of a task, that can be waited for until it is forgotten."""


def grams_of(cases, seed):
    draw = torch.Generator().manual_seed(seed)
    found = Told()
    for name in cases.MATRICES[:4]:
        X = torch.randn(50, cases.SHAPES[name][1], generator=draw, dtype=torch.float64)
        found[name] = X.T @ X / 50
    return found


def dense(vectors, grams, name, ratio, ridge):
    moments = []
    for one in grams:
        diagonal = torch.diag(one[name].diagonal())
        moments.append(ratio * one[name] + (1 - ratio) * diagonal)
    size = sum(G.diagonal().mean() for G in moments) / len(moments)
    moments = [G + ridge * size * torch.eye(len(G), dtype=G.dtype) for G in moments]
    top = sum(v[name] @ G for v, G in zip(vectors, moments, strict=True))
    return top @ torch.linalg.inv(sum(moments))


def test_sums_are_of_every_task_by_its_name_and_leave_what_is_given(cases):
    each = dict(zip("ab", cases.vectors(2), strict=True))
    name, scale = cases.MATRICES[0], "transformer.resblocks.0.mlp.c_proj.bias"
    G = {t: {name: grams_of(cases, i)[name], scale: each[t][scale] ** 2}
         for i, t in enumerate("ba")}  # fmt: skip
    before = {t: {n: x.clone() for n, x in one.items()} for t, one in G.items()}
    sums = pooled_grams(each, G)
    torch.testing.assert_close(G, before)
    torch.testing.assert_close(unpacked(sums.total[name]), G["a"][name] + G["b"][name])
    torch.testing.assert_close(sums.products[name], sum(each[t][name] @ G[t][name] for t in "ab"))
    torch.testing.assert_close(sums.products[scale], sum(each[t][scale] ** 3 for t in "ab"))
    diagonals = torch.stack([G[t][name].diagonal() for t in "ab"])
    torch.testing.assert_close(sums.diagonals[name], diagonals)
    again = pooled_grams(list(each.values()), {t: G[t] for t in "ab"})  # in the vectors' order
    torch.testing.assert_close(again.products, sums.products)
    F = pooled_diagonals(each, {t: {n: x.abs() for n, x in each[t].items()} for t in "ba"})
    torch.testing.assert_close(F.total[name], sum(each[t][name].abs() for t in "ab"))
    products = sum(each[t][name].abs() * each[t][name] for t in "ab")
    torch.testing.assert_close(F.products[name], products)


@pytest.mark.parametrize(("ratio", "ridge"), [(1, 0), (0.9, 0), (0.3, 0.5), (0, 2)])
def test_the_sums_serve_every_ratio_and_ridge(cases, ratio, ridge):
    vectors, grams = cases.vectors(3), [grams_of(cases, seed) for seed in range(3)]
    sums = pooled_grams(vectors, grams)
    found = regmean(vectors, sums, ratio=ratio, ridge=ridge)
    for name in grams[0]:
        expected = dense(vectors, grams, name, ratio, ridge)
        torch.testing.assert_close(found[name], expected, rtol=1e-10, atol=1e-10)
    again = regmean(vectors, grams, ratio=ratio, ridge=ridge)
    assert all(torch.equal(found[name], again[name]) for name in found)


def test_fisher_takes_sums_and_lacking_parameters_are_averaged(cases):
    vectors = cases.vectors(3)
    F = [TaskVector({n: x.square() for n, x in v.items()}) for v in cases.vectors(3)]
    found, again = fisher(vectors, pooled_diagonals(vectors, iter(F))), fisher(vectors, F)
    assert all(torch.equal(found[name], again[name]) for name in found)
    cases.assert_close(F[0], {n: x.square() for n, x in cases.vector(0).items()})  # as it was
    vectors, grams = cases.vectors(3), [grams_of(cases, seed) for seed in range(3)]
    name, kept = cases.MATRICES[:2]
    del grams[1][name]
    found = regmean(vectors, grams)
    torch.testing.assert_close(found[name], sum(v[name] for v in vectors) / 3)
    torch.testing.assert_close(found[kept], dense(vectors, grams, kept, 0.9, 0))
    refuses("of none", lambda: pooled_grams(vectors, [grams[0], {}, grams[2]]))
    vectors, one = cases.vectors(2), grams_of(cases, 0)
    for many in (1, 3):
        refuses(f"2 vectors, not {many}", regmean, vectors, iter([one] * many))
    refuses("grams.*, not int", regmean, vectors, 3)


@pytest.mark.parametrize("rule", [regmean, fisher])
def test_no_two_tasks_are_held_at_once(cases, rule):
    vectors, alive = cases.vectors(4), []

    def of(seed):
        assert not any(there() is not None for there in alive)
        one = grams_of(cases, seed) if rule is regmean else Told(cases.vector(seed) * 0)
        alive.append(weakref.ref(one))
        return one

    rule(vectors, (of(seed) for seed in range(4)))
    assert len(alive) == 4 and not any(there() is not None for there in alive)
