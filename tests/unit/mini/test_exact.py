"""Drawing uses operations that give the same bits on every processor, and no others."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from pretraining import stream
from tasklab import mini
from tasklab.mini import exact
from tasklab.mini.catalog import TASKS
from tasklab.mini.sampling import _corrections

# Elementwise operations that IEEE 754 fixes (of floating-point numbers), random bits, and what only
# moves, compares or counts numbers.
FIXED = {
    *("add", "sub", "rsub", "mul", "div", "neg", "abs", "sign", "floor", "round", "frexp"),
    *("clamp", "maximum", "minimum", "amax", "amin", "where", "eq", "ne", "lt", "gt", "ge"),
    *("bitwise_and", "bitwise_or", "any", "remainder", "floor_divide", "sum", "bincount"),
    *("rand", "randint", "randperm", "multinomial", "arange", "zeros", "ones", "full", "empty"),
    *("zeros_like", "full_like", "scalar_tensor", "lift_fresh", "detach", "_to_copy", "copy_"),
    *("clone", "view", "expand", "permute", "slice", "select", "split", "unbind", "unsqueeze"),
    *("stack", "cat", "flip", "gather", "index", "index_put_", "replication_pad2d", "_unique2"),
    "_local_scalar_dense",
}
WHOLE = {"remainder", "floor_divide", "sum", "bincount"}  # of whole numbers or truth values alone


class Fixed(TorchDispatchMode):
    """Refuses every other operation."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name in FIXED, f"{name} may round differently on another processor"
        if name in WHOLE:
            assert not args[0].is_floating_point(), f"{name} of floating-point numbers"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [task["name"] for task in TASKS])
def test_tasks_are_drawn_by_operations_with_fixed_results(name):
    with Fixed():
        mini.sample(name, "val", 40)


def test_corrections_are_few_and_pictures_of_pretraining_fixed():
    with Fixed():
        stream.draw(0, 0, 300)
    sizes = {name: int(name.split("/")[-1]) * 3 * 32 * 32 for name in _corrections()}
    places = {name: [i for p in c.values() for i in p] for name, c in _corrections().items()}
    assert {change for c in _corrections().values() for change in c} == {"+1", "-1"}
    assert sum(map(len, places.values())) == 810
    for name, own in places.items():
        assert len(set(own)) == len(own) and 0 <= min(own) <= max(own) < sizes[name]


@pytest.mark.parametrize("name", ["sin", "einsum", "sqrt", "randn", "mean"])
def test_other_operations_are_refused(name):
    calls = {
        "sin": lambda x: torch.sin(x),
        "einsum": lambda x: torch.einsum("ij,j->i", x, x[0]),
        "sqrt": lambda x: x.sqrt(),
        "randn": lambda x: torch.randn(3),
        "mean": lambda x: x.mean(),
    }
    with Fixed(), pytest.raises(AssertionError, match="on another processor"):
        calls[name](torch.ones(3, 3))


def test_functions_are_correctly_rounded():
    draw = torch.Generator().manual_seed(0)
    x, y = ((torch.rand(20_000, generator=draw) - 0.5) * 200 for _ in range(2))
    wide, tall = (part.double().numpy() for part in (x, y))
    for ours, theirs in (
        (exact.sin(x), np.sin(wide)),
        (exact.cos(x), np.cos(wide)),
        (exact.atan2(y, x), np.arctan2(tall, wide)),
        (exact.sqrt(x.abs()), np.sqrt(np.abs(wide))),
    ):
        assert np.array_equal(ours.numpy(), theirs.astype(np.float32))
    y, x = torch.tensor([0.0, 0.0, 0.0, 1.0, -1.0]), torch.tensor([0.0, 1.0, -1.0, 0.0, 0.0])
    right = torch.tensor([0, 0, math.pi, math.pi / 2, -math.pi / 2])
    assert torch.equal(exact.atan2(y, x), right)
    assert exact.normal((3, 2), torch.Generator().manual_seed(0)).shape == (3, 2)
    image = torch.rand(3, 3, 9, 7)
    torch.testing.assert_close(exact.box_blur(image), F.avg_pool2d(image, 3, 1))
    torch.testing.assert_close(exact.channel_mean(image, 1), image.mean(1))


@pytest.mark.parametrize("n", [16, 17, 100, 70_001])
def test_normal_numbers_are_those_of_torch(n):
    ours, theirs = (torch.Generator().manual_seed(n) for _ in range(2))
    drawn = exact.normal((n,), ours)
    torch.testing.assert_close(drawn, torch.randn(n, generator=theirs), rtol=2e-6, atol=2e-6)
    assert torch.equal(torch.rand(2, generator=ours), torch.rand(2, generator=theirs))


@pytest.mark.parametrize("cells", [2, 5, 8, 13])
def test_resizing_is_that_of_torch(cells):
    image = torch.rand(3, 2, cells, cells)
    usual = F.interpolate(image, size=(32, 32), mode="bicubic", align_corners=False)
    torch.testing.assert_close(exact.resized(image, 32), usual, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("reflect", "padding"), [(False, "zeros"), (True, "reflection")])
def test_sampling_is_that_of_torch(reflect, padding):
    image, (u, v) = torch.rand(3, 2, 9, 7), torch.rand(2, 3, 32, 32) * 6 - 3
    usual = F.grid_sample(image, torch.stack([u, v], -1), padding_mode=padding, align_corners=False)
    found = exact.sampled(image, u, v, reflect=reflect)
    torch.testing.assert_close(found, usual, rtol=0, atol=3e-6)
