"""Looking into blocks and replacing them, against models that are cut by hand."""

import pytest
import torch

from tasklab.models import intercept, loading
from tests.helpers import refuses
from tests.vectors import moved


@pytest.fixture(scope="module", params=["mini_xs", "mini_sup_few"])
def encoder(request):
    return loading.load(request.param, device="cpu").encoder


@pytest.fixture
def x(encoder):
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (3, 3, 32, 32), generator=g, dtype=torch.uint8)
    return encoder.preprocess(images)


def test_front_and_back_of_one_model_are_the_model(encoder, x):
    for block in range(len(encoder.blocks)):
        h = intercept.front(encoder, encoder.params, x, block)
        found = intercept.back(encoder, encoder.params, x, block, h)
        torch.testing.assert_close(found, encoder(encoder.params, x))
    params, seen = moved(encoder.params, 1), {}
    module = encoder.module.get_submodule(encoder.blocks[1])
    handle = module.register_forward_hook(lambda m, a, out: seen.update(out=out))
    encoder(params, x)
    handle.remove()
    torch.testing.assert_close(intercept.front(encoder, params, x, 1), seen["out"])


def test_a_stitched_model_has_the_front_of_one_and_the_back_of_the_other(encoder, x):
    one, two = moved(encoder.params, 1), moved(encoder.params, 2)
    cut = 2
    behind = tuple(f"{name}." for name in encoder.blocks[cut + 1 :])
    first = [n for n in one if any(n.startswith(f"{b}.") for b in encoder.blocks[: cut + 1])]
    stem = [n for n in one if n not in first and not n.startswith(behind)]
    before = [n for n in stem if encoder(one | {n: two[n]}, x).ne(encoder(one, x)).any()]
    # By hand: the front's tensors of one, all others of two. What is neither (embedding, last
    # norm, projection) is told apart by whether it changes what the block gives.
    reads = [
        n for n in before
        if intercept.front(encoder, one | {n: two[n]}, x, cut).ne(
            intercept.front(encoder, one, x, cut)).any()
    ]  # fmt: skip
    mixed = two | {n: one[n] for n in (*first, *reads)}
    found = intercept.back(encoder, two, x, cut, intercept.front(encoder, one, x, cut))
    torch.testing.assert_close(found, encoder(mixed, x))
    assert reads and not torch.allclose(found, encoder(two, x), atol=1e-3)


def test_stitching_and_outputs_leave_nothing_changed(encoder, x):
    expected = encoder(encoder.params, x)
    with pytest.raises(RuntimeError):
        intercept.back(encoder, encoder.params, x, 1, torch.zeros(2, 2))
    refuses("no block", intercept.front, encoder, encoder.params, x, len(encoder.blocks))
    torch.testing.assert_close(encoder(encoder.params, x), expected)
    for name in encoder.blocks:
        module = encoder.module.get_submodule(name)
        assert "forward" not in vars(module) and not module._forward_hooks
    params = moved(encoder.params, 1)
    found = intercept.outputs(encoder, params, x)
    assert list(found) == [*encoder.blocks, intercept.FEATURES]
    for block, name in enumerate(encoder.blocks):
        torch.testing.assert_close(found[name], intercept.front(encoder, params, x, block))
    torch.testing.assert_close(found[intercept.FEATURES], encoder(params, x))


def test_the_outer_of_two_calls_the_inner_and_leaves_it_as_it_was(encoder, x):
    name, asked = encoder.blocks[1], []

    def told(word):
        return lambda usual, *args, **named: asked.append(word) or usual(*args, **named)

    with intercept.around(encoder.module, {name: told("inner")}):
        with intercept.around(encoder.module, {name: told("outer")}):
            encoder(encoder.params, x)
        encoder(encoder.params, x)
    encoder(encoder.params, x)
    assert asked == ["outer", "inner", "inner"]
