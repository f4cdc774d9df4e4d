"""Products by oneDNN are those of matrices, and are made where nothing else is asked for."""

import time

import pytest
import torch
import torch.nn.functional as F

from tasklab.analyses import meters
from tasklab.models import inference, products, training
from tasklab.models.encoder import Encoder
from tasklab.tuning import tangent


@pytest.fixture
def made(monkeypatch):
    """Count products by oneDNN, which is the faster one, of any size."""
    operation, made = products._operation(), []
    if operation is None:
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(products, "by_onednn", lambda: True)
    monkeypatch.setattr(products, "_LEAST", 0)
    monkeypatch.setattr(
        products, "_operation", lambda: lambda *given: made.append(given) or operation(*given)
    )
    return made


def drawn(*shape, **options):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), **options)


@pytest.mark.parametrize("shape", [(40, 8), (2, 5, 8), (3, 7, 5, 8)])
@pytest.mark.parametrize("turned", [False, True])
def test_it_is_the_same_product(made, shape, turned):
    x, weight, bias = drawn(*shape), drawn(6, 8), drawn(6)
    if turned:  # not in order in memory
        x, weight = x.transpose(-1, -2).contiguous().transpose(-1, -2), weight.t().contiguous().t()
    with torch.no_grad():
        y, total = products.linear(x, weight, bias), drawn(*shape[:-1], 6)
        expected = total + 0.5 * x @ weight.t()
        again = products.add_product(total, x, weight, 0.5)
    torch.testing.assert_close(y, F.linear(x, weight, bias))
    assert y.shape == (*shape[:-1], 6) and y.is_contiguous()
    torch.testing.assert_close(total, expected)
    assert again is total and len(made) == 2


@pytest.mark.parametrize("biased", [True, False])
def test_derivatives_are_those_of_the_product_and_so_are_theirs(made, biased):
    given = [drawn(2, 5, 8), drawn(6, 8), drawn(6)][: 2 + biased]
    found = []
    for product in (products.linear, F.linear):
        leaves = [one.clone().requires_grad_() for one in given]
        y = product(*leaves, *[None] * (not biased))
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(one.square().sum() for one in first), leaves)
        found.append([y, *first, *second])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-3)
    assert len(made) > 3  # the backward passes' too
    x, weight = given[0].clone().requires_grad_(), given[1]
    made.clear()
    products.linear(x, weight, None).sum().backward()
    assert len(made) == 2  # frozen weights need no gradient


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (drawn(16, 5, 8, dtype=torch.float64), "another precision"),
        (drawn(16, 5, 8).bfloat16(), "another precision"),
        (drawn(16, 5, 8), "autocast"),
        (drawn(16, 5, 8), "few"),
    ],
)
def test_elsewhere_it_is_pytorchs_product(made, monkeypatch, x, why):
    weight, total = drawn(6, 8).to(x.dtype), torch.zeros(*x.shape[:-1], 6, dtype=x.dtype)
    if why == "few":
        monkeypatch.setattr(products, "_LEAST", 16 * 5 * 8 * 6 + 1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=why == "autocast"):
        y = products.linear(x, weight, None)
        assert torch.equal(y, F.linear(x, weight))
        products.add_product(total, x, weight)
    torch.testing.assert_close(total, y.to(total.dtype), atol=2e-2, rtol=2e-2)
    assert not made


def test_transforms_of_functions_see_pytorchs_product(made):
    x, weight = drawn(16, 8), drawn(6, 8)
    one, two = (
        torch.func.grad(lambda w, way=way: way(x, w, None).square().sum())(weight)
        for way in (products.linear, F.linear)
    )
    torch.testing.assert_close(one, two)
    per_row = torch.func.vmap(lambda row: products.linear(row, weight, None))(x)
    torch.testing.assert_close(per_row, x @ weight.t())
    assert not made


def test_a_processor_that_is_not_faster_so_keeps_its_products(made, monkeypatch):
    monkeypatch.setattr(products, "by_onednn", lambda: False)
    with torch.no_grad():
        products.linear(drawn(16, 5, 8), drawn(6, 8), None)
    net = torch.nn.Sequential(torch.nn.Linear(8, 12))
    encoder = Encoder.of(net)
    assert inference.passes(encoder) is encoder is training.passes(encoder)
    assert not made


@pytest.mark.parametrize("slow", ["linear", "_product", None])
def test_which_is_faster_is_measured_on_one_thread(monkeypatch, slow):
    owner = F if slow == "linear" else products
    if slow is None:
        monkeypatch.setattr(products, "_operation", lambda: None)
    else:
        usual = getattr(owner, slow)

        def delayed(*args, **options):
            assert torch.get_num_threads() == 1
            time.sleep(0.003)
            return usual(*args, **options)

        monkeypatch.setattr(owner, slow, delayed)
    threads = torch.get_num_threads()
    products.by_onednn.cache_clear()
    try:
        assert products.by_onednn() is (slow == "linear")
    finally:
        products.by_onednn.cache_clear()  # the next one asks this processor
    assert torch.get_num_threads() == threads


def layers():
    return torch.nn.Sequential(
        torch.nn.Linear(8, 12), torch.nn.GELU(), torch.nn.LayerNorm(12), torch.nn.Linear(12, 4)
    )


def test_tangents_are_the_same(made, monkeypatch):
    encoder, x = Encoder.of(layers()), drawn(16, 5, 8)
    tau = {name: drawn(*value.shape) for name, value in encoder.params.items()}
    ahead = tangent.jvp(encoder, encoder.params, tau, x)
    assert len(made) == 5  # of the first layer, whose inputs do not move, two
    monkeypatch.setattr(products, "by_onednn", lambda: False)
    for one, two in zip(ahead, tangent.jvp(encoder, encoder.params, tau, x), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_any_networks_linear_layers_take_it_and_dual_numbers_pass_through(made):
    encoder, x = Encoder.of(layers()), drawn(16, 5, 8)
    usual = encoder(encoder.params, x)
    assert not made
    for passes in (inference.passes, training.passes):
        made.clear()
        quick = passes(encoder)
        torch.testing.assert_close(quick(quick.params, x), usual)
        assert len(made) == 2 and quick.weights_hash == encoder.weights_hash
        tau = {name: drawn(*value.shape) for name, value in encoder.params.items()}
        one, two = (tangent.jvp(some, some.params, tau, x).jtau for some in (encoder, quick))
        torch.testing.assert_close(one, two)


def test_its_operations_are_counted(monkeypatch):
    x, weight = drawn(16, 5, 8), drawn(6, 8)
    monkeypatch.setattr(products, "by_onednn", lambda: products._operation() is not None)
    monkeypatch.setattr(products, "_LEAST", 0)

    def step():
        leaf = weight.clone().requires_grad_()
        products.linear(x, leaf, None).sum().backward()

    quick = meters.flops(step)
    monkeypatch.setattr(products, "by_onednn", lambda: False)
    assert quick == meters.flops(step) == 2 * 2 * x.numel() * 6
