"""Merges that leave numbers out: cases worked out by hand, and what holds for any numbers."""

import math

import pytest
import torch

from tasklab.analyses.merging import (
    arithmetic,
    average,
    breadcrumbs,
    consensus,
    dare,
    pcb,
    ties,
)
from tasklab.taskvector import TaskVector
from tests.helpers import refuses


def test_ties_by_hand_and_of_equal_signs(cases):
    # kept of 5 at 60 %: (5, -4, 3), (2, 6, -7), (-9, -3, 8); the sums there: -2, -1, 9, -1, 1
    rows = [5, -4, 3, 1, 0.5], [2, 6, 1, -7, 1], [-9, -3, 1, 1, 8]
    merged = ties(cases.single(*rows), keep=0.6)
    assert cases.numbers(merged) == [-9, -3.5, 3, -7, 8]
    assert cases.numbers(ties(cases.single([4, 1], [-4, 1]), keep=0.5)) == [0, 0]  # no sign
    assert cases.numbers(ties(cases.single([1, 3, 2]), keep=0.6)) == [0, 3, 2]  # 1.8 of 3 are 2
    # Before it the sum at the first place is 0.5, after it -1.5.
    merged = ties(cases.single([1, -10], [1, -10], [-1.5, 0]), keep=0.5)
    assert cases.numbers(merged) == [-1.5, -10]
    tensors = {"a": torch.tensor([10.0, 9, 8]), "b": torch.tensor([1.0, 2, 3])}
    merged = ties([TaskVector(tensors)], keep=0.5)
    assert merged["a"].tolist() == [10, 9, 8] and merged["b"].tolist() == [0, 0, 0]
    positive = [
        TaskVector({name: x.abs() for name, x in vector.items()}) for vector in cases.vectors(3)
    ]
    cases.assert_close(ties(positive, keep=1), average(positive))
    negative = [-vector for vector in positive]
    cases.assert_close(ties(negative, keep=1, alpha=0.5), average(negative, alpha=0.5))


def test_dare_averages_to_the_sum_and_draws_by_the_seed(cases):
    vectors = cases.vectors(2)
    total = arithmetic(vectors)
    runs = [dare(vectors, drop=0.5, seed=seed) for seed in range(400)]
    mean = TaskVector.sum(runs) / len(runs)
    # of each number the standard error is |tau| / 20, of two tasks; all within five of them
    for name in total:
        error = sum(vector[name].square() for vector in vectors).sqrt() / math.sqrt(len(runs))
        assert ((mean[name] - total[name]).abs() < 5 * error).all()
    (vector,) = cases.vectors(1)
    found = dare([vector], drop=0.75, seed=3)
    kept = torch.cat([x.reshape(-1) != 0 for x in found.values()])
    assert 0.2 < kept.double().mean() < 0.3
    for name, x in found.items():
        torch.testing.assert_close(x[x != 0], 4 * vector[name][x != 0])
    other_order = TaskVector({name: vector[name] for name in reversed(list(vector))})
    assert found == dare([vector], drop=0.75, seed=3) == dare([other_order], drop=0.75, seed=3)
    assert found != dare([vector], drop=0.75, seed=4)
    assert dare([vector], drop=0) == vector
    recorded = dare(cases.single([1, 2, 3, 4, 5, 6, 7, 8]), drop=0.5, seed=1)
    assert cases.numbers(recorded) == [2, 4, 6, 8, 10, 0, 14, 0]


def test_dare_draws_anew_for_each_task_and_tensor(cases):
    vectors = cases.vectors(2)
    kept = [dare([v], drop=0.5) for v in vectors]
    pair = (
        "transformer.resblocks.0.attn.in_proj_weight",
        "transformer.resblocks.1.attn.in_proj_weight",
    )
    first, second = (kept[0][name] != 0 for name in pair)
    assert 0.3 < float((first == second).double().mean()) < 0.7  # tensors of one shape
    both = dare(vectors, drop=0.5)[pair[0]]
    ways = [
        a * 2 * vectors[0][pair[0]] + b * 2 * vectors[1][pair[0]] for a in (0, 1) for b in (0, 1)
    ]
    which = torch.stack([(both - way).abs() for way in ways]).argmin(0)
    assert set(which.reshape(-1).tolist()) == {0, 1, 2, 3}  # tasks are dropped apart


def test_dare_draws_by_content_and_in_recorded_experiments_by_place(cases):
    a, b, c = cases.vectors(3)
    found = dare([a, b, c], drop=0.5)
    assert found == dare([c, a, b], drop=0.5) == dare({"x": b, "y": c, "z": a}, drop=0.5)
    one, two = cases.single([1.0] * 8, [10.0] * 8)
    placed = dare([one, two], drop=0.5, seed=1, by_place=True)
    assert cases.numbers(placed) == [22, 22, 22, 2, 2, 20, 22, 0]  # as recorded
    turned = dare([two, one], drop=0.5, seed=1, by_place=True)
    assert cases.numbers(turned) == [22, 22, 22, 20, 20, 2, 22, 0]


def test_breadcrumbs_by_hand(cases):
    # Of each row of 5 the largest one goes, the 3 next ones are kept.
    one = [[1, -2, 3, -4, 5], [9, 8, 7, 6, -10]]
    two = [[50, 40, 30, 20, 10], [0, 0, 0, 0, 1]]
    merged = breadcrumbs(cases.single(one, two), small=0.4, large=0.2, alpha=2)
    assert cases.numbers(merged) == [[0, 76, 66, 32, 0], [18, 16, 14, 0, 0]]
    few = {"a": torch.tensor(3.0), "b": torch.tensor([1.0, 2.0, 3.0]), "c": torch.ones(2, 1, 4)}
    few["c"][0, 0, 1] = -2
    merged = breadcrumbs([TaskVector(few)], small=0.6, large=0.3)
    assert merged["a"] == 3  # a number alone stays
    assert merged["b"].tolist() == [0, 0, 3]  # int(3 x 0.3) is 0, int(3 x 0.4) is 1
    assert merged["c"].abs().sum(-1).tolist() == [[1], [1]] and merged["c"][0, 0, 1] == 0


def test_consensus_by_hand_and_at_zero(cases):
    # |tau_t| / |S - tau_t|: (3/3 4/0 1/2), (2/4 0/4 1/2), (1/5 0/4 1/2)
    vectors = cases.single([3, 4, 1], [2, 0, 1], [1, 0, 1])
    assert cases.numbers(consensus(vectors, threshold=0.6)) == [0, 0, 0]
    assert cases.numbers(consensus(vectors, threshold=0.5)) == [6, 0, 3]
    for each in ([0.5, 9, 0.1], torch.tensor([0.5, 9, 0.1])):
        assert cases.numbers(consensus(vectors, threshold=each)) == [6, 0, 3]
    assert cases.numbers(consensus(vectors, threshold=0.5, agree=3)) == [0, 0, 3]
    vectors = cases.vectors(3)
    cases.assert_close(consensus(vectors, threshold=0, alpha=0.3), arithmetic(vectors, alpha=0.3))
    sparse = cases.single([1, 0], [0, 0], [0, 0])
    assert cases.numbers(consensus(sparse, threshold=0)) == [1, 0]


def slow_pcb(rows, keep):
    tau = torch.tensor(rows, dtype=torch.float64)
    tasks, many = tau.shape

    def bounds(x, low, high):
        ranks = x.sort(1).values
        return ranks[:, int(many * low), None], ranks[:, int(many * (1 - high) - 1), None]

    def norm(x):
        low, high = x.min(1, keepdim=True).values, x.max(1, keepdim=True).values
        return (x - low) / (high - low)

    size = tau.abs().clamp(*bounds(tau.abs(), 0.0001, 0.0001))
    beta = torch.exp(tasks * norm(size) ** 2) * torch.tanh(tau * tau.sum(0))
    weight = norm(beta.clamp(*bounds(beta, 1 - keep, 0)))
    return (weight * tau.sign() * size).sum(0) / weight.sum(0).clamp(min=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_pcb_is_what_sorting_finds(cases, dtype):
    vectors = cases.vectors(3, dtype=dtype)
    flat = [torch.cat([x.reshape(-1) for x in v.values()]).tolist() for v in vectors]
    found = torch.cat([x.reshape(-1) for x in pcb(vectors, keep=0.1).values()])
    expected = slow_pcb(flat, 0.1)
    assert 0.02 < (expected != 0).double().mean() < 0.3
    torch.testing.assert_close(found, expected.to(dtype))


def test_zero_vectors_merge_to_zero_and_one_alone_is_refused(cases):
    zeros = [TaskVector.zeros_like(cases.vector(0))] * 2
    for rule in (ties, dare, breadcrumbs, consensus, pcb):
        assert rule(zeros) == zeros[0]
    for rule in (consensus, pcb):
        refuses("give at least 2", rule, cases.vectors(1))


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        (ties, {"keep": -0.1}, "keep must be a finite number of at least 0 and at most 1"),
        (ties, {"keep": 1.5}, "keep must be"),
        (ties, {"keep": 1e-9}, "leaves nothing"),
        (dare, {"drop": 1}, "drop must be less than 1"),
        (dare, {"drop": float("nan")}, "drop must be a finite number"),
        (dare, {"seed": -1}, "seed must be at least 0"),
        (breadcrumbs, {"small": 0.6, "large": 0.4}, "leaves nothing"),
        (breadcrumbs, {"small": -1}, "small must be"),
        (consensus, {"threshold": -1}, "threshold must be at least 0"),
        (consensus, {"threshold": [1, 2, 3]}, "2 task vectors cannot have 3 thresholds"),
        (consensus, {"agree": 3}, "agree must be 2 at most"),
        (pcb, {"keep": 0}, "more than 0"),
        (pcb, {"keep": 2}, "keep must be"),
    ],
)
def test_shares_that_are_none_are_refused(cases, rule, options, message):
    refuses(message, lambda: rule(cases.vectors(2), **options))
