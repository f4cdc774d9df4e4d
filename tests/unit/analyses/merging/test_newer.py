"""RegMean++, Subspace Boosting and Essential Subspace Merging, against numpy in float64."""

from functools import partial

import numpy as np
import torch

from tasklab.analyses import merging
from tasklab.taskvector import TaskVector
from tests.helpers import refuses

svd = np.linalg.svd
FC, PROJ, SCALE = "blocks.{}.mlp.fc1.weight", "blocks.{}.mlp.fc2.weight", "blocks.{}.norm.weight"


def array(x):
    return x.detach().numpy()


def features(seed, rows, columns, rank=None):
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, columns))
    return X if rank is None else X[:, :rank] @ draw.normal(size=(rank, columns))


def gram(X):
    return torch.tensor(X.T @ X / len(X))


def one_layer(many, *, inputs=6, outputs=5, rank=None, kind=FC):
    name = kind.format(0)
    draw = np.random.default_rng(7)
    each = [
        TaskVector({name: torch.tensor(draw.normal(size=(outputs, inputs)))}) for _ in range(many)
    ]
    X = [features(seed, 20, inputs, rank) for seed in range(many)]
    return name, each, X, [{name: gram(x)} for x in X]


# --- RegMean++ -----------------------------------------------------------------------------------
def test_regmean_plusplus_averages(cases):
    vectors = cases.vectors(2)
    read = lambda v, names: {n: v[n].T @ v[n] for n in names if n.endswith("weight")}  # noqa: E731
    found = merging.regmean_plusplus(vectors, [read, read], ridge=0.1)
    for name in ("proj", "positional_embedding"):
        torch.testing.assert_close(found[name], (vectors[0][name] + vectors[1][name]) / 2)
    refuses(r"readers=\[...\].* 2 vectors, not 1", merging.regmean_plusplus, vectors, [read])


# --- Subspace Boosting ---------------------------------------------------------------------------
def test_boosting_lifts_no_value_or_all_of_them(cases):
    vectors = cases.vectors(3)
    cases.assert_close(merging.boosting(vectors, beta=1.0), merging.arithmetic(vectors))
    raised, total = (f(vectors)["proj"] for f in (partial(merging.boosting, beta=0.0), sum))
    np.testing.assert_allclose(svd(array(raised))[1], [svd(array(total))[1][0]] * 6)


# --- Essential Subspace Merging: what `test_oracle.py` does not see ----------------------------
def blocks(many, inputs):
    draw = np.random.default_rng(5)
    shapes = {FC.format(i): (12, inputs) for i in range(2)} | {
        "blocks.0.attn.out_proj.weight": (6, 6)
    }
    each = [
        TaskVector({n: torch.tensor(draw.normal(size=s)) for n, s in shapes.items()})
        for _ in range(many)
    ]
    return each, [
        {n: gram(features(10 * t + i, 40, s[1])) for i, (n, s) in enumerate(shapes.items())}
        for t in range(many)
    ]


def test_essential_merges_have_one_size_and_directions_that_images_show():
    each, grams = blocks(2, 14)
    s = svd(array(merging.essential(each, grams)[FC.format(0)]))[1]
    np.testing.assert_allclose(s, s[0])
    zeros = [TaskVector.zeros_like(each[0])] * 2
    assert all(not x.any() for x in merging.essential(zeros, grams).values())
    name, one, _, _ = one_layer(2, inputs=14, outputs=12)
    blind = torch.zeros(14, 14).double()
    blind[0, 0] = 1.0  # images show only the first input: its column is each task's direction
    P = merging.pooled_directions(one, [{name: blind}] * 2).bases[name]
    first = array(one[0][name][:, 0])
    assert abs(P[:, 0].numpy() @ first) / np.linalg.norm(P[:, 0]) / np.linalg.norm(first) > 1 - 1e-9
    refuses("5 .* 6 tasks", merging.essential, *[one_layer(6)[i] for i in (1, 3)])
    each, grams = blocks(3, 8)
    found = merging.essential(each, iter(grams), alpha=0.5)
    output = "blocks.0.attn.out_proj.weight"  # alone of its kind: as TSV-M has it
    torch.testing.assert_close(found[output], 0.5 * merging.tsv_m(each)[output])
    again = merging.essential(each, merging.pooled_directions(each, grams), alpha=0.5)
    assert all(torch.equal(found[name], again[name]) for name in found)


# --- ACTMat --------------------------------------------------------------------------------------
def test_actmat_leaves_out_directions_that_vectors_hardly_have():
    """In its code's float32 a share of 1e-5 of the length is 1e-10 of the eigenvalue, and lost."""
    name = FC.format(0)
    each = [torch.diag(torch.tensor([1.0, 0.5, 1e-5]).double()) * s for s in (1, 2)]
    vectors = [TaskVector({name: x}) for x in each]
    found, exact = merging.actmat(vectors)[name], merging.actmat(vectors, rtol=0)[name]
    weighed = 9 / 5  # (1 + 2^3) / (1 + 2^2)
    torch.testing.assert_close(exact.diagonal(), weighed * each[0].diagonal())
    kept = torch.tensor([1.0, 0.5, 0.0]).double()
    torch.testing.assert_close(found.diagonal(), weighed * kept)
    torch.testing.assert_close(merging.actmat(vectors, alpha=0.5)[name], found / 2)
    refuses("rtol", merging.actmat, vectors, rtol=-1)
