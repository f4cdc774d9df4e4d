"""Methods against the functions of `fusion_bench`, where it is installed."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch

from tasklab.analyses import merging
from tasklab.taskvector import TaskVector

REASON = "fusion_bench, another implementation of the same methods, is not installed"
pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries that it imports


def oracle(module):
    with contextlib.redirect_stdout(io.StringIO()):
        return pytest.importorskip(
            f"fusion_bench.method.{module}", reason=REASON, exc_type=ImportError
        )


def states(vectors):
    """Return vectors as lists of plain dictionaries."""
    return [{name: x.clone() for name, x in v.items()} for v in vectors]


def without_turned(cases, count):
    """Return vectors without `proj`, which is stored the other way around there."""
    return [
        TaskVector({name: x for name, x in v.items() if name != "proj"})
        for v in cases.vectors(count)
    ]


def flat(vectors):
    return torch.stack([torch.cat([v[n].reshape(-1) for n in sorted(v)]) for v in vectors])


def test_ties(cases):
    theirs = oracle("ties_merging.ties_merging_utils")
    vectors = cases.vectors(3)
    rows = flat(vectors)
    expected = theirs.ties_merging(rows, reset_thresh=0.2, merge_func="dis-mean")
    kept = int(0.2 * rows.shape[1]) + 1  # theirs keeps one number more
    found = flat([merging.ties(vectors, keep=kept / rows.shape[1])])[0]
    torch.testing.assert_close(found, expected)


def test_tsv_m(cases):
    theirs = oracle("task_singular_vector.utils.TSVM_utils")
    vectors = [
        TaskVector({n: x for n, x in v.items() if n != "positional_embedding"})
        for v in without_turned(cases, 2)
    ]
    tau = [type("Vector", (), {"vector": one}) for one in states(vectors)]  # it writes into them
    config = type("Config", (), {"DATASETS": ["a", "b"]})
    expected = theirs.sum_svd_dict(theirs.compute_svd_dict(tau, config), config)
    cases.assert_close(dict(merging.tsv_m(vectors)), expected)


@pytest.mark.parametrize("rule", ["iso_c", "iso_cts"])
def test_iso(cases, rule):
    theirs = oracle("isotropic_merging.iso_utils")
    vectors = without_turned(cases, 3)
    options = {} if rule == "iso_c" else {"common_space_fraction": 0.5}
    expected = getattr(theirs, rule)(
        states(vectors), accelerator="cpu", exclude_keys=["positional_embedding"], **options
    )
    found = merging.merge(rule, vectors, **({} if rule == "iso_c" else {"common": 0.5}))
    cases.assert_close(dict(found), expected)


def test_wudi(cases):
    theirs = oracle("wudi.wudi")
    vectors = without_turned(cases, 3)
    with contextlib.redirect_stderr(io.StringIO()):
        expected = theirs.wudi_merging(
            states(vectors), accelerator="cpu", iter_num=50, exclude_keys=["positional_embedding"]
        )
    found = merging.wudi_descent(vectors, steps=50)
    cases.assert_close(dict(found), {n: x.detach() for n, x in expected.items()})


def test_consensus(cases):
    theirs = oracle("tall_mask.utils")
    vectors = cases.vectors(4)
    rows = flat(vectors)
    start = torch.zeros_like(rows[0])
    masks = [
        theirs.generate_task_masks(rows, row, start, tall_mask_lambda=0.4).reshape(-1)
        for row in rows
    ]
    expected = rows.sum(0) * (sum(mask.int() for mask in masks) >= 2)
    torch.testing.assert_close(flat([merging.consensus(vectors, threshold=0.4)])[0], expected)


def test_regmean(cases):
    theirs = oracle("regmean.regmean")
    vectors = cases.vectors(2)
    names = [n for n in cases.MATRICES if n.endswith(".weight")]
    G = [{n: v[n].T @ v[n] + torch.eye(v[n].shape[1]).double() for n in names} for v in vectors]
    expected = theirs.merging_with_regmean_weights(
        {n: [v[n] for v in vectors] for n in vectors[0]},
        [{n.removesuffix(".weight"): x for n, x in one.items()} for one in G],
        reduce_non_diagonal_ratio=0.7,
    )
    cases.assert_close(dict(merging.regmean(vectors, G, ratio=0.7)), expected)


def test_fisher(cases):
    theirs = oracle("fisher_merging.fisher_merging")
    vectors = cases.vectors(3)
    F = [{n: x.abs() for n, x in v.items()} for v in cases.vectors(6)[3:]]
    expected = theirs.merging_with_fisher_weights(
        {n: [v[n] for v in vectors] for n in vectors[0]},
        F,
        torch.ones(3).double(),
        normalize_fisher_weight=False,
        minimal_fisher_weight=0.0,
    )
    cases.assert_close(dict(merging.fisher(vectors, F)), expected)


def test_dare_drops_and_rescales_alike(cases):
    theirs = oracle("dare.utils")
    (vector,) = cases.vectors(1)
    expected = {n: x.clone() for n, x in vector.items()}
    theirs.module_random_drop_(expected, 0.5, rescale=True)
    found = merging.dare([vector], drop=0.5)
    for name, x in vector.items():  # each number is dropped or doubled, by other draws
        for one in (found[name], expected[name]):
            assert ((one == 0) | ((one - 2 * x).abs() < 1e-12)).all()
