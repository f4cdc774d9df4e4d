"""The theorems on cross-task linearity against closed forms and dense matrices, in float64."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import linregress, spearmanr
from torch import nn

from tasklab.analyses import curvature as sharpness
from tasklab.models.encoder import math_attention
from tasklab.models.heads import Head
from tasklab.taskvector import TaskVector
from tasklab.tuning.forward_mode import dual_numbers
from tests.helpers import refuses

SIZES = {"a": (4, 5), "b": (10,)}  # 30 numbers: more than the method's 20 vectors


def drawn(sizes, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: scale * torch.randn(size, dtype=torch.float64, generator=generator)
        for name, size in sizes.items()
    }


def flat(params):
    return torch.cat([x.flatten() for x in params.values()])


def unflat(row, sizes):
    parts = row.split([torch.Size(size).numel() for size in sizes.values()])
    return {name: x.view(size) for (name, size), x in zip(sizes.items(), parts, strict=True)}


def quadratic(eigenvalues, seed=0):
    n = len(eigenvalues)
    generator = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator)).Q
    H = Q @ torch.diag(torch.as_tensor(eigenvalues, dtype=torch.float64)) @ Q.T
    g = torch.randn(n, dtype=torch.float64, generator=generator)
    return lambda p: flat(p) @ H @ flat(p) / 2 + g @ flat(p) + 3, H, Q


@pytest.fixture(params=[7.0, -7.0], ids=["positive", "negative"])
def valley(request):
    return quadratic([request.param, *torch.linspace(-3, 5, 29)])


def test_quadratics_have_their_eigenvalue_and_second_order(valley):
    f, H, _ = valley
    found = sharpness.largest_curvature(f, drawn(SIZES, 1), tol=1e-8)
    values = torch.linalg.eigvalsh(H)
    assert found.value == pytest.approx(float(values[values.abs().argmax()]), rel=1e-8)
    assert found.size == abs(found.value) == pytest.approx(7)
    assert found.residual < 1e-6
    assert 10 < found.products < 400
    f, H, Q = valley
    two = drawn(SIZES, 1)
    for alpha in (0.1, 0.5, 0.8):
        one = drawn(SIZES, 2)
        d = flat(one) - flat(two)
        delta = sharpness.interpolation_gap(f, one, two, alpha)
        assert delta == pytest.approx(alpha * (1 - alpha) / 2 * abs(float(d @ H @ d)), rel=1e-9)
        distance = float(d @ d)
        assert delta < sharpness.bound(7.0, distance, alpha)
        # Along the top eigenvector the bound is reached.
        top = unflat(flat(two) + 0.3 * Q[:, 0], SIZES)
        delta = sharpness.interpolation_gap(f, top, two, alpha)
        assert delta == pytest.approx(sharpness.bound(7.0, 0.09, alpha), rel=1e-9)


def test_eigenvalues_of_few_parameters_and_of_no_curvature():
    f, _, _ = quadratic([1.0, -6.0, 2.0])
    found = sharpness.largest_curvature(f, drawn({"w": (3,)}, 0))
    assert found.value == pytest.approx(-6, rel=1e-12)
    assert found.products == 3 + 1
    assert sharpness.largest_curvature(f, drawn({"w": (3,)}, 5)).value == pytest.approx(-6)
    flat_f = lambda p: p["a"].sum() + 2 * p["b"].sum()  # noqa: E731
    assert sharpness.largest_curvature(flat_f, drawn(SIZES, 0)) == (0.0, 0.0, 1)
    partly = lambda p: p["b"].sum() + 2 * p["a"].square().sum()  # noqa: E731
    assert sharpness.largest_curvature(partly, drawn(SIZES, 0)).value == pytest.approx(4)
    one, two = drawn(SIZES, 0), drawn({"a": (4, 5)}, 0)
    refuses("b", sharpness.interpolation_gap, lambda p: p["a"].sum(), one, two)
    refuses("alpha", sharpness.bound, 1.0, 1.0, 1.5)


def test_pairs_are_the_single_measurements(valley):
    f, _, Q = valley
    theta0 = drawn(SIZES, 1)
    vectors = {name: TaskVector(drawn(SIZES, i, 0.1)) for i, name in enumerate("xyz", 5)}
    vectors["top"] = vectors["x"] + TaskVector(unflat(0.2 * Q[:, 0], SIZES))
    df = sharpness.pairs(f, theta0, vectors, 0.3)
    expected = [*itertools.combinations(["x", "y", "z", "top"], 2)]
    assert list(zip(df["one"], df["other"], strict=True)) == expected
    for row in df.itertuples():
        one, two = (vectors[name].apply(theta0) for name in (row.one, row.other))
        assert row.value == pytest.approx(sharpness.interpolation_gap(f, one, two, 0.3))
        assert row.distance == pytest.approx(float((flat(one) - flat(two)).square().sum()))
        assert row.curvature == pytest.approx(7)
        assert row.bound == pytest.approx(sharpness.bound(7, row.distance, 0.3))
        assert row.second_order == pytest.approx(row.value, rel=1e-6)  # no higher orders here
    reached = df[(df["one"] == "x") & (df["other"] == "top")].iloc[0]
    assert reached["second_order"] == pytest.approx(reached["bound"], rel=1e-6)
    known = sharpness.Curvature(2.0, 0.0, 1)
    assert (sharpness.pairs(f, theta0, vectors, curvature=known)["curvature"] == 2).all()
    refuses("move b", sharpness.pairs, f, theta0, vectors, names=["a"])


def test_pairs_that_differ_in_some_parameters(network):
    """The Hessian over the parameters that were fine-tuned gives the same second order."""
    call, head, x, y, params = network
    f, names = sharpness.loss(call, head, x, y), ["out.weight"]
    part = {name: params[name].shape for name in names}
    vectors = {name: TaskVector(drawn(part, i, 0.01)) for i, name in enumerate("ab")}
    few, all_ = (sharpness.pairs(f, params, vectors, names=n).iloc[0] for n in (names, None))
    for name in ("value", "distance", "second_order"):
        assert few[name] == pytest.approx(all_[name])
    assert few["second_order"] <= few["bound"] < all_["bound"]


class Attention(nn.Module):
    """One head of attention over 3 tokens of width 2, by the kernel that PyTorch chooses."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(2, 6), nn.Linear(2, 3)

    def forward(self, x):
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v)[:, 0].mean(1)).tanh()


@pytest.fixture(scope="module")
def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Attention().double()
        x, y = torch.randn(6, 3, 2).double(), torch.randint(0, 4, (6,))
        head = Head(torch.randn(4, 3).double())
    module.requires_grad_(False)
    call = lambda p, x: torch.func.functional_call(module, dict(p), (x,))  # noqa: E731
    return call, head, x, y, dict(module.named_parameters())


def dense(f, params):
    with math_attention():
        with dual_numbers():  # loads what PyTorch warns about when forward mode is first used
            pass
        blocks = torch.func.hessian(lambda p: f(p))(params)
    rows = [
        torch.cat([blocks[a][b].reshape(params[a].numel(), -1) for b in params], 1) for a in params
    ]
    return torch.cat(rows)


def test_a_network_against_its_dense_hessian_and_a_block_of_it(network):
    call, head, x, y, params = network
    f = sharpness.loss(call, head, x, y)
    assert float(f(params)) == pytest.approx(float(F.cross_entropy(head(call(params, x)), y)))
    H = dense(f, params)
    assert len(H) == 27 and torch.allclose(H, H.T)
    product = sharpness.hessian_product(f, params)
    v = drawn({name: x.shape for name, x in params.items()}, 3)
    torch.testing.assert_close(flat(product(v)), H @ flat(v))
    part = {"out.weight": v["out.weight"]}  # absent names count as zero
    zeros = {name: torch.zeros_like(x) for name, x in params.items()}
    torch.testing.assert_close(flat(product(part)), H @ flat(zeros | part))
    found = sharpness.largest_curvature(f, params, tol=1e-8)
    values = torch.linalg.eigvalsh(H)
    assert found.value == pytest.approx(float(values[values.abs().argmax()]), rel=1e-7)
    names = ["out.weight", "out.bias"]
    H = dense(lambda p: f({**params, **p}), {name: params[name] for name in names})
    values = torch.linalg.eigvalsh(H)
    found = sharpness.largest_curvature(f, params, names=names)
    assert found.value == pytest.approx(float(values[values.abs().argmax()]))
    assert set(sharpness.hessian_product(f, params, names)({})) == set(names)
    single = sharpness.loss(call, Head(head.weight.float()), x.float(), y)
    found = sharpness.largest_curvature(single, {n: x.float() for n, x in params.items()})
    assert found.value == pytest.approx(sharpness.largest_curvature(f, params).value, rel=1e-4)


@pytest.mark.parametrize(
    ("f", "options", "told"),
    [
        (lambda p: p["a"], {}, "scalar"),
        (lambda p: torch.ones(()), {}, "depends"),
        (lambda p: p["a"].square().sum(), {"names": ["c"]}, "lack c"),
        (lambda p: (p["a"].square().sum() * 1e200) ** 2, {}, "not finite"),
        (lambda p: (p["a"] ** 4).sum() - (p["b"] ** 4).sum(),
         {"tol": 1e-12, "max_iter": 1}, "raise max_iter"),
    ],
)  # fmt: skip
def test_what_has_no_eigenvalue_is_said(f, options, told):
    params = drawn({"a": (300,), "b": (300,)}, 0)
    refuses(told, sharpness.largest_curvature, f, params, **options)


def measured(groups=2, models=6, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for g in range(groups):
        for one, other in itertools.combinations([f"m{i}" for i in range(models)], 2):
            distance, curvature = rng.uniform(1, 2), 1.0 + g
            bound = curvature * distance / 8
            rows.append((one, other, f"g{g}", curvature, distance, bound,
                         2 * bound + 0.02 * rng.normal()))  # fmt: skip
    columns = ["one", "other", "group", "curvature", "distance", "bound", "value"]
    return pd.DataFrame(rows, columns=columns)


def test_regressions_are_scipys_and_need_checkpoints():
    df = measured()
    found = sharpness.explained_variance(df).set_index("predictor")
    assert list(found.index) == ["bound", "curvature", "distance"]
    for name, row in found.iterrows():
        line = linregress(df[name], df["value"])
        expected = (line.rvalue**2, line.slope, line.intercept)
        assert (row["value"], row["slope"], row["intercept"]) == pytest.approx(expected)
        assert row["rank"] == pytest.approx(spearmanr(df[name], df["value"]).statistic)
        assert 0 <= row["low"] < row["value"] < row["high"] <= 1
    assert found.loc["bound", "slope"] == pytest.approx(2, abs=0.15)
    assert found["value"].idxmax() == "bound"
    assert (found[["n_pairs", "n_models", "n_groups"]] == [30, 12, 2]).all(axis=None)
    assert sharpness.explained_variance(df).equals(sharpness.explained_variance(df))
    found = sharpness.explained_variance(measured(groups=1).drop(columns="group"))
    found = found.set_index("predictor")
    assert found.loc["curvature", ["value", "low", "high", "slope", "rank"]].isna().all()
    for name in ("value", "low", "high"):
        assert found.loc["bound", name] == pytest.approx(found.loc["distance", name])
    # Twelve models of which six are copies give a wider interval than twelve different ones.
    twelve = sharpness.explained_variance(measured(1, 12)).set_index("predictor").loc["distance"]
    four = sharpness.explained_variance(measured(1, 4)).set_index("predictor").loc["distance"]
    assert twelve["high"] - twelve["low"] < four["high"] - four["low"]
    refuses("at least four", lambda: sharpness.explained_variance(measured(1, 3)))
