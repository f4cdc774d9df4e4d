"""Smaller parts against the whole in float64; memory that runs out, injected and real."""

import dataclasses
import functools
import gc
import logging
import weakref

import pytest
import torch
import torch.nn.functional as F

from tasklab.analyses.meters import peak_bytes
from tasklab.errors import TasklabError
from tasklab.machine import malloc
from tasklab.models.encoder import Encoder
from tasklab.tuning import memory, steps, tangent
from tasklab.tuning.memory import Plan, Recomputed
from tests import towers
from tests.helpers import in_bfloat16, refuses

COUNT, CLASSES = 7, towers.OUT


def full():
    return RuntimeError("CUDA error: out of memory")


class Case:
    """An encoder in float64 or float32, its parameters, a task vector, images and labels."""

    def __init__(self, model="vit", dtype=torch.float64, name="mini"):
        make, prefix = towers.MODELS[model]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = make().to(dtype).eval().requires_grad_(False)
            params = {n: p + 0.05 * torch.randn_like(p) for n, p in module.named_parameters()}
            # The module keeps other parameters than theta_0: who reads those is found out.
            self.delta = {n: 0.05 * torch.randn_like(p) for n, p in params.items()}
            self.x = torch.randn(COUNT, 3, towers.SIDE, towers.SIDE, dtype=dtype)
        size = len(list(module.get_submodule(prefix.rstrip(".")).children()))
        blocks = tuple(f"{prefix}{i}" for i in range(size))
        # `mini` takes the math kernel, a name of no registry takes the usual one
        made = Encoder.of(module, name=name, image_size=towers.SIDE)
        self.encoder = dataclasses.replace(made, params=params, blocks=blocks)
        self.y = torch.arange(COUNT) % CLASSES

    def gradient(self, method, model, x=None, y=None):
        how = steps.tangent_gradient if method == "linearized" else steps.gradient
        x, y = (self.x, self.y) if x is None else (x, y)
        loss = lambda features: F.cross_entropy(3 * features, y)  # noqa: E731
        return how(model, self.encoder.params, self.delta, x, loss)


def agree(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found[0], expected[0], rtol=tolerance, atol=tolerance)
    assert list(found[1]) == list(expected[1])
    for name, gradient in expected[1].items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(found[1][name], gradient, rtol=0, atol=tolerance * (1 + scale))


@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_parts_give_the_gradient_of_the_whole(method, size):
    case, seen = Case(), []

    def gradient(x, y):
        seen.append(len(y))
        return case.gradient(method, case.encoder, x, y)

    found = memory.accumulated(gradient, case.x, case.y, size)
    assert max(seen) == size and sum(seen) == COUNT
    agree(found, case.gradient(method, case.encoder))


def test_batches_are_left_alone_or_summed():
    case = Case(dtype=torch.float32)
    gradient = functools.partial(case.gradient, "nonlinear", case.encoder)
    found = memory.accumulated(gradient, case.x, case.y, 2)
    agree(found, case.gradient("nonlinear", case.encoder), 1e-6)
    assert {gradient.dtype for gradient in found[1].values()} == {torch.float32}
    case, result = Case(), (torch.ones(()), {})
    calls = []

    def gradient(x, y):
        calls.append(x is case.x and y is case.y)
        return result

    for size in (COUNT, COUNT + 1):
        assert memory.accumulated(gradient, case.x, case.y, size) is result
    assert calls == [True, True]
    # They may be one tensor twice, or expanded.
    ones = torch.ones(1).expand(3)
    gradient = lambda x, y: (torch.ones(()), {"a": ones, "b": ones})  # noqa: E731
    _, sums = memory.accumulated(gradient, torch.zeros(4, 1), torch.zeros(4), 1)
    assert ones.tolist() == [1, 1, 1] == sums["a"].tolist() == sums["b"].tolist()


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, answer):
    assert memory.is_out_of_memory(error) is answer


def test_plans_fit_or_say_what_was_tried():
    assert memory.plans(1) == (Plan(1),)
    expected = [(5, False), (3, False), (2, False), (1, False)]
    assert list(memory.plans(5)) == expected
    again = [(size, True) for size, _ in expected]
    assert list(memory.plans(5, recompute=True)) == expected + again

    def attempt(plan):
        return torch.empty(2**58 if plan.size > 1 else 1, dtype=torch.uint8)

    result, left = memory.first_that_fits(attempt, memory.plans(4), "a test")
    assert len(result) == 1 and list(left) == [Plan(1)]

    def attempt(plan):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    message = (
        r"^step 3: out of memory, even with 1 at a time, and the insides of blocks a second time.*"
        r"\(CUDA out of memory. Tried to allocate 2.00 GiB\)\. Sell it\.$"
    )
    with pytest.raises(TasklabError, match=message) as caught:
        memory.first_that_fits(attempt, memory.plans(4, recompute=True), "step 3", "Sell it.")
    assert caught.value.__context__ is None  # which would hold the tensors of the last attempt

    def features(x):
        raise full()

    parts = memory.Parts(2)(features, torch.zeros(4, 1), "maps")
    refuses("maps: out of memory, even with 1 at a time.*smaller", list, parts)


def test_the_first_plan_that_fits_is_kept_and_told_once(caplog):
    tried = []

    def attempt(plan):
        tried.append(plan.size)
        if plan.size > 3:
            raise full()
        return "done"

    result, left = memory.first_that_fits(attempt, memory.plans(10), "step 3")
    assert (result, tried, left[0]) == ("done", [10, 5, 3], Plan(3))
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    for word in ("step 3", "CUDA error: out of memory", "3 at a time", "same result"):
        assert word in told.getMessage()
    memory.first_that_fits(attempt, left, "step 4")
    assert len(caplog.records) == 1 and tried[3:] == [3]

    def attempt(plan):
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):  # another error passes
        memory.first_that_fits(attempt, memory.plans(4), "a step")
    assert len(caplog.records) == 1


def test_a_failed_attempts_tensors_are_gone_before_memory_is_freed(monkeypatch):
    held, alive = [], []

    def attempt(plan):
        activations = torch.ones(plan.size)
        held.append(weakref.ref(activations))
        if plan.size > 1:
            raise full()
        return activations

    monkeypatch.setattr(memory, "_free", lambda: alive.append(held[-1]() is not None))
    gc.disable()
    try:
        memory.first_that_fits(attempt, memory.plans(4), "a step")
    finally:
        gc.enable()
    assert alive == [False, False]


def test_batches_of_any_size_give_the_same_features(caplog):
    case, sizes = Case(), []

    def features(x):
        sizes.append(len(x))
        if len(x) > 2 and len(sizes) > 1:
            raise full()
        return case.encoder(case.encoder.params, x)

    whole = case.encoder(case.encoder.params, case.x)
    parts = memory.Parts(3)
    found = torch.cat(list(parts(features, case.x)))
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)
    assert (sizes, parts.size) == ([3, 3, 2, 2], 2) and len(caplog.records) == 1
    assert list(parts(len, case.x)) == [2, 2, 2, 1]  # of other images as well
    parts = memory.Parts(4)
    assert list(parts(len, case.x)) == [4, 3]
    assert list(parts(len, case.x[:3])) == [3]
    assert list(parts(len, case.x[:0])) == [0]
    assert parts.size == 4


def test_tangent_features_in_smaller_parts(monkeypatch):
    case, jvp = Case(), tangent.jvp

    def short(encoder, params, tau, x):
        if len(x) > 2:
            raise full()
        return jvp(encoder, params, tau, x)

    arguments = (lambda p, x: case.encoder(p, x), case.encoder.params, case.delta, case.x)
    whole = tangent.features(*arguments)
    monkeypatch.setattr(tangent, "jvp", short)
    for one, two in zip(tangent.features(*arguments), whole, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
@pytest.mark.parametrize(
    ("model", "name"), [("vit", "mini"), ("vit", "other"), *((m, "mini") for m in towers.MODELS)]
)
def test_recomputed_blocks_give_the_same_gradient(model, name, method):
    case = Case(model, name=name)
    blocks = [case.encoder.module.get_submodule(block) for block in case.encoder.blocks]
    assert len(blocks) >= 2
    agree(case.gradient(method, Recomputed(case.encoder)), case.gradient(method, case.encoder))
    assert not any("forward" in vars(block) for block in blocks)


def test_blocks_are_recomputed_in_less_memory():
    case = Case()
    case.delta = {name: t for name, t in case.delta.items() if "attn" in name and "weight" in name}
    for method in ("nonlinear", "linearized"):
        agree(case.gradient(method, Recomputed(case.encoder)), case.gradient(method, case.encoder))
    case, calls = Case(), []
    module = case.encoder.module
    # Before the call: the second pass ends as soon as all that is needed is there.
    module.transformer.resblocks[1].mlp.register_forward_pre_hook(lambda *_: calls.append("block"))
    module.conv1.register_forward_pre_hook(lambda *_: calls.append("first layer"))
    case.gradient("nonlinear", Recomputed(case.encoder))
    assert sorted(calls) == ["block", "block", "first layer"]
    case = Case()
    case.x = case.x.repeat(8, 1, 1, 1)
    case.y = case.y.repeat(8)
    for method in ("nonlinear", "linearized"):
        models = case.encoder, Recomputed(case.encoder)
        usual, less = (peak_bytes(functools.partial(case.gradient, method, m)) for m in models)
        assert less < 0.75 * usual


def test_a_blocks_own_forward_and_a_failure_leave_it_as_it_was():
    case = Case()
    block = case.encoder.module.transformer.resblocks[0]
    usual = block.forward
    block.forward = own = lambda *args, **named: usual(*args, **named)
    found = case.gradient("nonlinear", Recomputed(case.encoder))
    agree(found, case.gradient("nonlinear", case.encoder))
    assert block.forward is own
    case.x = case.x[:, :1]
    with pytest.raises(RuntimeError, match="channels"):
        case.gradient("nonlinear", Recomputed(case.encoder))
    assert block.forward is own
    assert "forward" not in vars(case.encoder.module.transformer.resblocks[1])


def test_recomputed_blocks_under_autocast():
    """The second pass is in bfloat16 as the first: the gradient is the same to the last bit."""
    case = Case(dtype=torch.float32)
    models = Recomputed(case.encoder), case.encoder
    found, expected = in_bfloat16(lambda: [case.gradient("nonlinear", one) for one in models])
    agree(found, expected, 1e-6)
    exact = case.gradient("nonlinear", case.encoder)
    assert not torch.equal(exact[0], expected[0])
    assert {gradient.dtype for gradient in found[1].values()} == {torch.float32}


@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
@pytest.mark.parametrize("model", towers.MODELS)
@pytest.mark.parametrize("again", [False, True])
def test_bfloat16_comes_close_on_every_architecture(model, method, again):
    case = Case(model, dtype=torch.float32)
    exact = case.gradient(method, case.encoder)
    tried = Recomputed(case.encoder) if again else case.encoder
    found = in_bfloat16(lambda: case.gradient(method, tried))
    assert not torch.equal(found[0], exact[0])
    assert found[0].item() == pytest.approx(exact[0].item(), rel=0.03)
    assert {gradient.dtype for gradient in found[1].values()} == {torch.float32}
    one, two = (torch.cat([g.flatten() for g in x[1].values()]) for x in (found, exact))
    assert F.cosine_similarity(one, two, dim=0) > 0.99
    assert (one.norm() / two.norm()).item() == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(("least", "returned"), [(1, 1), (2**40, 0)])
def test_a_large_model_gives_its_freed_memory_back(monkeypatch, least, returned):
    given = []
    monkeypatch.setattr(memory, "_LARGE", least)
    monkeypatch.setattr(memory.machine, "return_freed_memory", lambda: given.append(1))
    with pytest.raises(ZeroDivisionError), memory.given_back(Encoder.of(towers.vit())):
        raise ZeroDivisionError
    assert len(given) == returned


def test_a_process_that_begins_with_a_large_model_gives_freed_memory_back(monkeypatch):
    asked = []
    monkeypatch.setattr(malloc, "_asked", asked)
    keep = malloc.keep_freed_memory.__wrapped__
    assert not keep(False) and not keep(True)  # a shipped model beside it changes nothing
    assert asked == [False, True]
