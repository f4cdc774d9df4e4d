"""What moves tensors, on a pretended CUDA device; with `gpu`, the same on a real one.

Each test of a real device has a body that also runs on the pretended one, so that it is whole when
there is a card.
"""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tasklab import Lab
from tasklab.analyses import disentanglement, meters
from tasklab.evidence import experiments
from tasklab.storage import placement, writing
from tasklab.tuning import finetune, memory

CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
REAL = pytest.param("real", marks=[pytest.mark.gpu, CARD])
ALL = {
    name: lambda lab, name=name: getattr(experiments, name)(lab, ["nonlinear", "linearized"])
    for name in ("single", "addition", "negation", "alignment", "cosines", "cross_task")
} | {
    "disentanglement": lambda lab: experiments.disentanglement(lab, ["nonlinear", "linearized"]),
    "linear_gaps": lambda lab: experiments.linear_gaps(lab, ["nonlinear"]),
    "localization": lambda lab: experiments.localization(lab),
    "merging": lambda lab: experiments.merging(
        lab, ["nonlinear"], ["arithmetic", "ties", "regmean"]
    ),
    "pair_errors": lambda lab: experiments.pair_errors(lab, ["nonlinear"], coefficients=(0.5,)),
    "stitched_addition": lambda lab: experiments.stitched_addition(lab, ["nonlinear"]),
    "stitched_negation": lambda lab: experiments.stitched_negation(lab, ["nonlinear"]),
}


@pytest.fixture(params=["pretended", REAL])
def card(request, pretended):
    with pretended.cuda() if request.param == "pretended" else contextlib.nullcontext():
        yield request.param


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return tmp_path_factory.mktemp("stores")


@pytest.fixture
def lab(stores, request):
    kind = "real" if "real" in request.node.name else "pretended"

    def make(device, root=stores):
        names = Lab("mini_xs", progress=False, use="plan", device="cpu").suite.names[:2]
        setting = {"steps": 2, "precision": "float32", "store_root": root / f"{kind}-{device}"}
        return Lab("mini_xs", progress=False, tasks=names, device=device, **setting)

    return make


def refuses(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_pretended_device_refuses_and_does_what_a_real_one_does(card):
    there, here = torch.ones(3, 3, device="cuda"), torch.ones(3, 3)
    mixed = (
        lambda: there + here,
        lambda: F.linear(there, here),
        lambda: torch.cat([there, here]),
        lambda: torch.where(there > 0, there, here),
        lambda: there.masked_fill(here > 0, 0),
        lambda: torch.zeros(()).add_(there.sum()),
        lambda: torch.stack([there.sum(), here.sum()]),
    )
    for call in mixed:
        refuses(call, RuntimeError, "on the same device|Expected all tensors|be on the")
    refuses(lambda: here[torch.zeros(1, dtype=torch.long, device="cuda")], RuntimeError, "cpu")
    for call in (there.numpy, lambda: np.asarray(there)):
        refuses(call, TypeError, "can't convert cuda:0")
    generator = torch.Generator()
    for call in (
        lambda: torch.randn(3, device="cuda", generator=generator),
        lambda: there.clone().uniform_(generator=generator),
    ):
        refuses(call, RuntimeError, "generator")
    refuses(lambda: there.long() @ there.long(), RuntimeError, "not implemented")
    with torch.inference_mode():
        refuses(lambda: there @ here, RuntimeError, "same device|Expected all tensors")
    x = torch.arange(6.0).view(2, 3).to("cuda")
    assert x[torch.tensor([1])].tolist() == [[3, 4, 5]] and float(x.sum() + torch.tensor(1.0)) == 16
    module = nn.Linear(3, 2).to("cuda")
    module(x).sum().backward()
    assert {p.grad.device.type for p in module.parameters()} == {"cuda"}
    here = torch.ones(3, requires_grad=True)
    (here.to("cuda") * x).sum().backward()
    assert here.grad.tolist() == [3, 5, 7]  # on the CPU, where its parameter is
    slope = torch.func.vmap(torch.func.grad(lambda row: (row * row).sum()))(x)
    assert slope.cpu().numpy().tolist() == (2 * x).cpu().numpy().tolist()
    with torch.autocast("cuda", torch.bfloat16):
        assert (x @ x.T).dtype == torch.bfloat16


def test_a_pretended_device_leaves_pytorch_as_it_was(pretended):
    torch.utils._device._device_constructors.cache_clear()
    with pretended.cuda(), torch.device("meta"):
        torch.empty(1)
    with torch.device("meta"):
        assert torch.tensor([]).is_meta and torch.arange(2).is_meta


def test_a_fused_step_refuses_what_a_convolution_gives(device):
    weight = torch.randn(4, 3, 2, 2, device="cuda", requires_grad=True)
    value = F.conv2d(torch.randn(2, 3, 8, 8).to("cuda"), weight, stride=2).square().sum()
    optimiser = torch.optim.AdamW([weight], fused=True)
    (weight.grad,) = torch.autograd.grad(value, [weight])
    refuses(optimiser.step, RuntimeError, "dtype, device, and layout")


def test_fine_tuning_fails_where_gradients_keep_their_layout(device, lab, monkeypatch, tmp_path):
    there = lab("cuda", tmp_path)
    assert there.tune(there.suite.names[0], "linearized", 0).record["device"].startswith("cuda")
    monkeypatch.setattr(finetune, "laid_out", lambda gradient, parameter: gradient)
    call = lambda: there.tune(there.suite.names[1], "linearized", 0)  # noqa: E731
    refuses(call, RuntimeError, "dtype, device, and layout")


def test_error_maps_fail_where_vectors_are_not_moved(device, lab, monkeypatch):
    there = lab("cuda")
    vectors = {t: v.to("cpu") for t, v in there.vectors("nonlinear", 0).items()}
    call = lambda: disentanglement._inputs(there.evaluator, vectors, "val", 4)  # noqa: E731
    assert call()[1].device.type == "cuda"
    monkeypatch.setattr(disentanglement, "placed", lambda what, device: what)
    refuses(call, RuntimeError, "same device")


def test_heads_and_vectors_meet_an_encoder_from_anywhere(card, lab):
    there = lab("cuda")
    task, encoder = there.suite.names[0], there.clip.encoder
    images = there.evaluator.images(task, "val").x[:4]
    features = encoder(encoder.params, encoder.preprocess(images))
    head = there.evaluator.head(task).to("cpu")
    assert head(features).device.type == "cuda"
    torch.testing.assert_close(head(features).cpu(), head(features.cpu()))
    vector = there.tune(task, "nonlinear", 0).vector.to("cpu")
    name = next(iter(vector))
    assert vector.apply(encoder.params, 0.5)[name].device.type == "cuda"


def test_a_run_is_at_hand_on_the_device_before_it_is_written(card, lab, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "LARGE", 1)
    there = lab("cuda", tmp_path)
    task, evaluator = there.suite.names[0], there.evaluator
    vector = there.tune(task, "nonlinear", 0).vector
    early = evaluator.tangent_features(vector, task, "val").jtau
    writing.finish()
    placement.release()  # read from the disk now
    again = there.tune(task, "nonlinear", 0).vector
    assert vector.device.type == again.device.type == early.device.type == "cuda"
    assert again == vector
    assert torch.equal(evaluator.tangent_features(again, task, "val").jtau, early)


def test_an_evaluators_images_leave_the_device_when_memory_is_needed(pretended, lab):
    placement.release()  # of tests before
    with pretended.cuda() as memory:
        there = lab("cuda")
        task, images = there.suite.names[0], there.evaluator.images
        size, before = images(task, "val").x.nbytes, memory.now
        assert images(task, "val").x.device.type == "cuda" and memory.now == before  # kept
        placement.release()
        assert memory.now <= before - size
        assert images(task, "val").x.device.type == "cuda"


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_an_experiment_on_a_device_equals_the_cpus(name, card, lab):
    """In float32; where two classes tie, one image of a cell may be another."""
    one, two = (ALL[name](lab(device)) for device in ("cpu", "cuda"))
    assert list(one.columns) == list(two.columns) and len(one) == len(two)
    for metric, rows in one.groupby("metric", observed=True):
        found = two.loc[rows.index, "value"].to_numpy(float)
        each = np.abs(found - rows["value"].to_numpy(float))
        images = rows["n"].to_numpy(float) if "n" in rows else np.nan
        tie = np.where(np.isfinite(images) & (images > 0), 100 / np.maximum(images, 1), 0)
        scale = 1 + np.abs(rows["value"].to_numpy(float))
        assert (each <= np.maximum(2e-3 * scale, 1.01 * tie)).all(), (name, metric, each.max())


def test_memory_of_a_step_is_that_of_the_device(card):
    x = torch.ones(2**20, device="cuda")
    step = lambda: x.add(1).add(1)  # noqa: E731
    step()
    assert meters.peak_bytes(step, "cuda") == 2 * x.nbytes


def test_less_memory_than_a_batch_needs_takes_parts(pretended):
    with pretended.cuda(total=2**20):
        x = torch.ones(64, 1024, device="cuda")  # a quarter of the memory
        parts = memory.Parts(64)
        rows = torch.cat([row.cpu() for row in parts(lambda one: one.repeat(1, 4).mean(1), x)])
    assert rows.tolist() == [1] * 64 and parts.size < 64


def test_what_merging_takes_is_measured_where_it_merges(card, lab):
    rows = experiments.merging_cost(lab("cuda"), ["nonlinear"], ["arithmetic", "ties"])
    ratio = rows.loc[rows["metric"] == "memory_ratio", "value"]
    assert len(ratio) == 2 and (ratio > 0.2).all()
