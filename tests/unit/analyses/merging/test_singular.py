"""Merges by singular vectors, in float64 against whole decompositions."""

import pytest
import torch

from tasklab.analyses.merging import average, iso_c, iso_cts, tsv_m
from tasklab.analyses.merging.singular import flattened, leading, orthogonal
from tasklab.taskvector import TaskVector
from tests.helpers import refuses

svd = torch.linalg.svd


def matrix(rows, columns, *, seed=0, sizes=None):
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    if sizes is None:
        return A
    u, _, vh = svd(A, full_matrices=False)
    return (u * torch.tensor(sizes, dtype=torch.float64)) @ vh


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (5, 5)])
@pytest.mark.parametrize("k", [1, 3, 4])
def test_leading_triplets_are_those_of_the_decomposition(shape, k):
    A = matrix(*shape)
    u, s, vh = svd(A, full_matrices=False)
    found = leading(A, k)
    torch.testing.assert_close(found.s, s[:k])
    torch.testing.assert_close((found.u * found.s) @ found.vh, (u[:, :k] * s[:k]) @ vh[:k])
    for side in (found.u.T @ found.u, found.vh @ found.vh.T):
        torch.testing.assert_close(side, torch.eye(k, dtype=torch.float64))


def test_small_singular_values_and_orthogonal_matrices():
    A = matrix(8, 4, sizes=[1, 1e-3, 1e-6, 1e-7])
    torch.testing.assert_close(leading(A, 4).s, svd(A).S, rtol=1e-6, atol=0)
    B = matrix(8, 4, sizes=[1e6, 1e3, 0, 0])
    found = leading(B, 4)
    assert len(found.s) == 2 and leading(torch.zeros(3, 2), 2).s.numel() == 0
    torch.testing.assert_close((found.u * found.s) @ found.vh, B)
    A = matrix(6, 3)
    u, _, vh = svd(A, full_matrices=False)
    torch.testing.assert_close(orthogonal(A), u @ vh)
    column = A[:, :1] / A[:, :1].norm()
    torch.testing.assert_close(orthogonal(column.repeat(1, 4)), column.repeat(1, 4) / 2)


@pytest.mark.parametrize("sizes", [[4, 3, 2, 1], [1e4, 1e3, 1e2, 1e-3]])
def test_flattened_matrices_have_equal_singular_values(sizes):
    for A in (matrix(9, 4, sizes=sizes), matrix(9, 4, sizes=sizes).T):
        u, s, vh = svd(A, full_matrices=False)
        torch.testing.assert_close(flattened(A), s.mean() * u @ vh, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(orthogonal(A), u @ vh, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(svd(flattened(A)).S, s.mean().expand(4))


def test_tsv_m_leaves_one_task_as_it_is_and_averages_what_is_no_matrix(cases):
    vectors = cases.vectors(3)
    for name in cases.SHAPES.keys() - set(cases.MATRICES):
        torch.testing.assert_close(tsv_m(vectors)[name], average(vectors)[name])
    cases.assert_close(tsv_m(vectors[:1]), vectors[0], rtol=1e-9, atol=1e-9)
    cases.assert_close(tsv_m(vectors[:1], alpha=0.5), vectors[0] / 2, rtol=1e-9, atol=1e-9)


def test_tsv_m_of_orthogonal_and_equal_tasks():
    u, _, vh = svd(matrix(6, 6))
    sizes = torch.tensor([5.0, 4, 3, 6, 2, 1]).double()
    one, two = ((u[:, part] * sizes[part]) @ vh[part] for part in (slice(0, 3), slice(3, 6)))
    merged = tsv_m([TaskVector({"w": one}), TaskVector({"w": two})])
    torch.testing.assert_close(merged["w"], one + two)
    A = matrix(6, 4, sizes=[4, 3, 2, 1])
    merged = tsv_m([TaskVector({"w": A})] * 2)
    u, s, vh = svd(A, full_matrices=False)
    torch.testing.assert_close(merged["w"], (u[:, :2] * s[:2]) @ vh[:2])


@pytest.mark.parametrize("common", [0.0, 0.5, 0.8, 1.0])
def test_iso_cts_is_the_published_algorithm(cases, common):
    many, vectors = 2, cases.vectors(2)
    found = iso_cts(vectors, common=common)
    for name in cases.MATRICES:
        turn = name == "proj"  # it is stored as inputs x outputs
        matrices = [v[name].T if turn else v[name] for v in vectors]
        u, s, vh = svd(sum(matrices), full_matrices=False)
        own = round((len(s) - int(len(s) * common)) / many)
        shared = len(s) - own * many
        parts = [svd(x - u[:, :shared] @ u[:, :shared].T @ x) for x in matrices]
        U = torch.cat([*(p.U[:, :own] for p in parts), u[:, :shared]], 1)
        V = torch.cat([*(p.Vh[:own] for p in parts), vh[:shared]])
        S = torch.cat([*(p.S[:own] for p in parts), s[:shared]])
        (a, _, b), (c, _, d) = (svd(x, full_matrices=False) for x in (U, V))
        merged = found[name].T if turn else found[name]
        torch.testing.assert_close(merged, S.mean() * a @ b @ c @ d)
        torch.testing.assert_close(svd(merged).S, S.mean().expand(len(s)))


def test_zero_vectors_and_too_many_tasks(cases, caplog):
    zeros = [TaskVector.zeros_like(cases.vector(0))] * 2
    for rule in (tsv_m, iso_c, iso_cts):
        assert rule(zeros) == zeros[0]
    caplog.set_level("INFO", "tasklab")
    many, mean = tsv_m(cases.vectors(7)), average(cases.vectors(7))
    name = caplog.messages[0].partition(" has 6 directions, for 7 tasks")[0]
    torch.testing.assert_close(many[name], mean[name])
    refuses("common must be", lambda: iso_cts(cases.vectors(2), common=1.2))
    refuses("at least 2", lambda: iso_cts(cases.vectors(1)))


@pytest.mark.parametrize("rule", [iso_c, iso_cts])
def test_directions_that_nothing_determines_are_told_once(rule, caplog):
    torch.manual_seed(0)
    title = {iso_c: "Iso-C", iso_cts: "Iso-CTS"}[rule]

    def told(*changes):
        caplog.clear()
        rule([TaskVector({"a.weight": x, "b.weight": 2 * x, "bias": x[0]}) for x in changes])
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    low = [torch.randn(24, 3) @ torch.randn(3, 30) for _ in range(3)]
    base = 5 * torch.randn(24, 30)  # a checkpoint that an adapter was merged into
    rounded = [(base + 0.1 * x) - base for x in low]
    eye = torch.eye(24, 30)
    one_hot = [eye[i : i + 1] * eye[:, i : i + 1] for i in range(3)]
    for changes, rank in ((low, 9), (rounded, 9), (one_hot, 3)):
        (text,) = told(*changes)
        assert text.startswith(f"{title} takes ") and f"have only {rank}, as those of ada" in text
    full = [torch.randn(24, 30) for _ in range(3)]
    spread = [x * torch.logspace(0, -3, 30) for x in full]
    for changes in (full, spread, [torch.zeros(24, 30)] * 3):
        assert told(*changes) == []
