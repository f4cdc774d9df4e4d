"""Products by a convolution are those of matrices, and are made where nothing else is asked for."""

import time

import pytest
import torch
import torch.nn.functional as F

from tasklab.models import products
from tasklab.models.encoder import Encoder
from tasklab.tuning import tangent


@pytest.fixture
def convolutions(monkeypatch):
    made, usual = [], F.conv2d
    monkeypatch.setattr(products, "by_convolution", lambda: True)
    monkeypatch.setattr(F, "conv2d", lambda *a, **k: made.append(a) or usual(*a, **k))
    return made


def drawn(*shape, **options):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), **options)


@pytest.mark.parametrize("shape", [(16, 5, 8), (3, 7, 5, 8)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_convolution_is_the_same_product(convolutions, shape, turned):
    x, weight, bias = drawn(*shape), drawn(6, 8), drawn(6)
    if turned:  # not in order in memory
        x, weight = x.transpose(-1, -2).contiguous().transpose(-1, -2), weight.t().contiguous().t()
    with torch.no_grad():
        made, total = products.linear(x, weight, bias), drawn(*shape[:-1], 6)
        expected = total + 0.5 * x @ weight.t()
        again = products.add_product(total, x, weight, 0.5)
    torch.testing.assert_close(made, F.linear(x, weight, bias))
    assert made.shape == (*shape[:-1], 6) and made.is_contiguous()
    torch.testing.assert_close(total, expected)
    assert again is total and len(convolutions) == 2


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (drawn(15, 5, 8), "few images"),
        (drawn(40, 8), "rows of no images"),
        (drawn(40, 1, 8), "one token of each"),
        (drawn(16, 5, 8, dtype=torch.float64), "another precision"),
        (drawn(16, 5, 8).bfloat16(), "another precision"),
        (drawn(16, 5, 8), "derivatives"),
        (drawn(16, 5, 8), "autocast"),
    ],
)
def test_elsewhere_it_is_a_product_of_matrices(convolutions, x, why):
    weight, total = drawn(6, 8).to(x.dtype), torch.zeros(*x.shape[:-1], 6, dtype=x.dtype)
    with (
        torch.set_grad_enabled(why == "derivatives"),
        torch.autocast("cpu", torch.bfloat16, enabled=why == "autocast"),
    ):
        made = products.linear(x, weight, None)
        assert torch.equal(made, F.linear(x, weight))
        products.add_product(total, x, weight)
    torch.testing.assert_close(total, made.to(total.dtype), atol=2e-2, rtol=2e-2)
    assert not convolutions


def test_a_processor_that_is_not_faster_so_keeps_its_products(convolutions, monkeypatch):
    monkeypatch.setattr(products, "by_convolution", lambda: False)
    with torch.no_grad():
        products.linear(drawn(16, 5, 8), drawn(6, 8), None)
    assert not convolutions


@pytest.mark.parametrize(("slow", "answer"), [("linear", True), ("conv2d", False)])
def test_which_is_faster_is_measured_on_one_thread(monkeypatch, slow, answer):
    usual = getattr(F, slow)

    def delayed(*args, **options):
        assert torch.get_num_threads() == 1
        time.sleep(0.003)
        return usual(*args, **options)

    monkeypatch.setattr(F, slow, delayed)
    threads = torch.get_num_threads()
    products.by_convolution.cache_clear()
    try:
        assert products.by_convolution() is answer
    finally:
        products.by_convolution.cache_clear()  # the next one asks this processor
    assert torch.get_num_threads() == threads


def test_tangents_are_the_same(convolutions, monkeypatch):
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 12), torch.nn.GELU(), torch.nn.LayerNorm(12), torch.nn.Linear(12, 4)
    )
    encoder, x = Encoder.of(net), drawn(16, 5, 8)
    tau = {name: drawn(*value.shape) for name, value in encoder.params.items()}
    ahead = tangent.jvp(encoder, encoder.params, tau, x)
    assert len(convolutions) == 5  # of the first layer, whose inputs do not move, two
    monkeypatch.setattr(products, "by_convolution", lambda: False)
    for one, two in zip(ahead, tangent.jvp(encoder, encoder.params, tau, x), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
