"""KnOTS and Core Space, against plain dense computations in numpy."""

import numpy as np
import pytest
import torch

import tasklab
from tasklab.analyses import merging
from tasklab.analyses.merging import spaces
from tasklab.taskvector import TaskVector
from tests.helpers import refuses
from tests.unit.analyses.merging.test_adapters import factors, written

NAMES, SHAPES = ("q", "v"), {"q": (8, 6), "v": (6, 8)}
RANKS = (1, 2)


@pytest.fixture
def base():
    draw = torch.Generator().manual_seed(0)
    made = {f"{n}.weight": torch.randn(SHAPES[n], generator=draw) for n in NAMES}
    return made | {"q.bias": torch.zeros(8)}


@pytest.fixture
def places(tmp_path):
    made = []
    for number, r in enumerate(RANKS):
        tensors = {}
        for name in NAMES:
            tensors |= factors(name, *SHAPES[name], r=r, seed=10 * number + len(tensors))
        made.append(written(tmp_path / f"a{number}", tensors, r=r, lora_alpha=3 * r))
    return made


def pairs(places):
    """Return A and B times the scale of 3, by task and parameter, as numpy's."""
    from safetensors.numpy import load_file

    found = []
    for place in places:
        read = load_file(place / "adapter_model.safetensors")
        get = lambda n, part, read=read: read[f"base_model.model.{n}.lora_{part}.weight"]  # noqa: E731
        found.append({n: (get(n, "A").astype(float), 3 * get(n, "B").astype(float)) for n in NAMES})
    return found


def ties(rows, keep):
    """Return TIES of vectors (T, N): trimmed over all entries, elected by the sum, averaged."""
    kept = []
    for row in rows:
        least = np.sort(np.abs(row))[::-1][round(keep * row.size) - 1]
        kept.append(np.where(np.abs(row) >= least, row, 0))
    kept = np.array(kept)
    sign = np.sign(kept.sum(0))
    agree = (np.sign(kept) == sign) & (sign != 0)
    return (kept * agree).sum(0) / np.maximum(agree.sum(0), 1)


def dense(space, each, keep):
    """Return the merge of matrices that are held whole, by SVDs of the whole."""
    bases, parts = {}, []
    for name in NAMES:
        A, B = ([one[name][i] for one in each] for i in (0, 1))
        if space == "core":
            U = np.linalg.svd(np.concatenate(B, 1), full_matrices=False)[0]
            Vt = np.linalg.svd(np.concatenate(A), full_matrices=False)[2]
            parts.append([U.T @ b @ a @ Vt.T for a, b in zip(A, B, strict=True)])
            bases[name] = U, Vt
        else:
            whole = np.concatenate([b @ a for a, b in zip(A, B, strict=True)], 1)
            U, s, Vt = np.linalg.svd(whole, full_matrices=False)
            r = sum(RANKS)
            coordinates = np.split(s[:r, None] * Vt[:r], len(each), axis=1)
            parts.append(coordinates)
            bases[name] = U[:, :r], np.eye(SHAPES[name][1])
    rows = [np.concatenate([part[t].ravel() for part in parts]) for t in range(len(each))]
    merged, found = ties(rows, keep), {}
    for name, part in zip(NAMES, parts, strict=True):
        own, merged = merged[: part[0].size], merged[part[0].size :]
        U, Vt = bases[name]
        found[f"{name}.weight"] = U @ own.reshape(part[0].shape) @ Vt
    return found


@pytest.mark.parametrize("space", spaces.SPACES)
def test_ties_of_adapters_is_that_of_whole_matrices(base, places, space):
    expected = dense(space, pairs(places), 0.5)
    found = tasklab.merge(base, places, "ties", space=space, keep=0.5, alpha=0.7)
    plain = tasklab.merge(base, places, "ties", keep=0.5, alpha=0.7)
    for name, x in expected.items():
        change = (found[name] - base[name]).numpy()
        np.testing.assert_allclose(change, 0.7 * x, atol=1e-6)
        assert not np.allclose(change, (plain[name] - base[name]).numpy(), atol=1e-3)


@pytest.mark.parametrize("space", spaces.SPACES)
def test_a_sum_loses_nothing(base, places, space):
    found = tasklab.merge(base, places, alpha=0.4, space=space)
    for name, x in tasklab.merge(base, places, alpha=0.4).items():
        torch.testing.assert_close(found[name], x, atol=1e-6, rtol=1e-5)


def test_orthogonalised_directions_are_the_same_in_core_space(base, tmp_path):
    """Where ranks fill the matrix, TSV-M keeps the same directions in both spaces."""
    places = []
    for seed in (0, 10):
        tensors = factors("q", 8, 6, r=3, seed=seed) | factors("v", 6, 8, r=3, seed=seed + 1)
        places.append(written(tmp_path / f"of{seed}", tensors, r=3))
    whole = tasklab.merge(base, places, "tsv_m", alpha=1.0)
    found = tasklab.merge(base, places, "tsv_m", alpha=1.0, space="core")
    for name, x in whole.items():
        torch.testing.assert_close(found[name], x, atol=1e-5, rtol=1e-4)


def test_whole_networks_are_merged_in_knots_as_their_adapters_are(base, places):
    whole = [tasklab.merge(base, [place], alpha=1.0) for place in places]
    expected = tasklab.merge(base, places, "ties", alpha=1.0, space="knots", keep=1.0)
    found = tasklab.merge(base, whole, "ties", alpha=1.0, space="knots", keep=1.0)
    for name in ("q.weight", "v.weight"):
        torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=1e-4)
    refuses("space knots", tasklab.merge, base, whole, alpha=1.0, space="core")


def test_a_task_that_leaves_a_matrix_alone_has_zeros(base, places, tmp_path):
    alone = written(tmp_path / "alone", factors("q", 8, 6, seed=5))
    for space in spaces.SPACES:
        found = tasklab.merge(base, [*places, alone], alpha=1.0, space=space)
        for name, x in tasklab.merge(base, [*places, alone], alpha=1.0).items():
            torch.testing.assert_close(found[name], x, atol=1e-6, rtol=1e-5)


def test_other_spaces_and_rules_are_refused(base, places):
    refuses("'cores': did you mean 'core'", tasklab.merge, base, places, alpha=1.0, space="cores")
    refuses("'pcb'", tasklab.merge, base, places, "pcb", alpha=1.0, space="core")


def test_sizes_are_those_of_the_ranks():
    draw = torch.Generator().manual_seed(0)
    each = [spaces.Factors(torch.randn(9, r, generator=draw), torch.randn(r, 7, generator=draw))
            for r in (1, 2)]  # fmt: skip
    whole = [one.B @ one.A for one in each]
    shared = spaces.core("w", whole, each)
    assert [x.shape for x in shared.parts] == [(3, 3)] * 2
    in_knots = spaces.knots("w", whole, each)
    assert [x.shape for x in in_knots.parts] == [(3, 7)] * 2
    for x, part, other in zip(whole, shared.parts, in_knots.parts, strict=True):
        torch.testing.assert_close(shared.back(part).float(), x, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(in_knots.back(other).float(), x, atol=1e-5, rtol=1e-4)
    zeros = spaces.knots("w", [0 * x for x in whole], [None, None])
    assert not zeros.back(zeros.parts[0]).any()
    merged = spaces.merge(
        "knots",
        merging.arithmetic,
        [TaskVector({"w": x}) for x in whole],
        [each[0]._asdict().get] * 2,
    )
    torch.testing.assert_close(merged["w"], whole[0] + whole[1], atol=1e-5, rtol=1e-4)
