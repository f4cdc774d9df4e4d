"""Compiled and recorded steps: the same runs, one compilation, and a sentence where it fails."""

import dataclasses
import gc
import weakref

import pytest
import torch
from torch._dynamo.utils import counters

from tasklab.models import loading
from tasklab.models.loading import Encoder
from tasklab.storage.store import Store
from tasklab.tasks import drawn
from tasklab.tuning import compiled, dual, finetune, memory, steps
from tasklab.tuning.memory import Plan
from tasklab.tuning.recipe import FineTune

# PyTorch's own, of a block's input, while it traces
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
RUN = FineTune(task="LandCover", model="mini_xs", steps=3, batch_size=8, lr=1e-3, warmup=1)
METHODS = ("nonlinear", "linearized", "attention")


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (40, 3, 32, 32), generator=generator, dtype=torch.uint8)
    images = drawn.Images(x, torch.randint(0, 10, (40,), generator=generator))
    monkeypatch.setattr(drawn.DrawnImages, "load", lambda *args, **kwargs: images)
    monkeypatch.setattr(drawn.DrawnImages, "version", lambda *args, **kwargs: "test")
    monkeypatch.setattr(compiled.Quick, "failed", set())
    monkeypatch.setattr(steps, "_compiled", set())


@pytest.fixture
def clip():
    return loading.load("mini_xs")


@pytest.fixture
def traced(monkeypatch):
    monkeypatch.setattr(compiled, "_backend", "aot_eager")
    monkeypatch.setenv(compiled.SETTING, "1")
    compiled.block.cache_clear()
    torch._dynamo.reset()
    counters.clear()
    yield
    compiled.block.cache_clear()
    torch._dynamo.reset()


def train(config, clip, folder):
    return finetune.finetune(config, clip, Store(folder), progress=False)


def near(run, expected):
    assert run.record["losses"] == pytest.approx(expected.record["losses"], rel=1e-4)
    assert run.vector.cosine(expected.vector) > 0.999  # AdamW's first steps enlarge rounding


@pytest.mark.parametrize("method", METHODS)
def test_a_compiled_run_is_the_same(clip, tmp_path, traced, monkeypatch, method):
    config = dataclasses.replace(RUN, method=method)
    run = train(config, clip, tmp_path / "compiled")
    assert counters["stats"]["unique_graphs"] == 1  # of three blocks and steps
    again = train(dataclasses.replace(config, seed=1), clip, tmp_path / "compiled")
    assert counters["stats"]["unique_graphs"] == 1 and again.vector != run.vector
    monkeypatch.setenv(compiled.SETTING, "0")
    near(run, train(config, clip, tmp_path / "usual"))
    key = finetune.identity(config, clip)
    assert Store(tmp_path / "compiled").find("finetune", key) is not None


@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
def test_compiled_blocks_are_recomputed(clip, tmp_path, traced, monkeypatch, method):
    monkeypatch.setattr(compiled, "_backend", "eager")  # traced alone, for time
    config = dataclasses.replace(RUN, method=method, steps=2)
    monkeypatch.setattr(steps.footprint, "plans", lambda *args: [Plan(5, True)])
    run = train(config, clip, tmp_path / "compiled")
    assert run.record["recomputed"] and counters["stats"]["unique_graphs"] > 0
    monkeypatch.setenv(compiled.SETTING, "0")
    near(run, train(config, clip, tmp_path / "usual"))


def test_it_is_said_once_that_a_first_step_compiles(clip, traced):
    def note(config):
        names = dict(clip.encoder.params)
        delta = {name: torch.zeros_like(weight) for name, weight in names.items()}
        return steps.Step(steps.Problem(config, None, names, delta, {}), clip.encoder).note()

    assert [note(RUN), note(RUN)] == [compiled.NOTE, ""]
    assert note(dataclasses.replace(RUN, method="linearized")) == compiled.NOTE


def test_a_step_and_its_tensors_go_when_the_run_ends(clip, monkeypatch):
    """A cycle of references would keep delta, and a graph's memory, until garbage is looked for."""
    monkeypatch.setenv(compiled.SETTING, "1")
    monkeypatch.setattr(compiled, "records", lambda config, encoder: True)
    names = dict(clip.encoder.params)
    head, delta = torch.nn.Linear(128, 10), {n: torch.zeros_like(w) for n, w in names.items()}
    step = steps.Step(steps.Problem(RUN, head, names, delta, {}), clip.encoder)
    gone = weakref.ref(step._problem.delta["proj"]), weakref.ref(step)
    gc.disable()
    try:
        del step, delta
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
def test_without_a_compiler_the_run_goes_on(clip, tmp_path, monkeypatch, caplog, method):
    config = dataclasses.replace(RUN, method=method)
    usual = train(config, clip, tmp_path / "usual")

    def missing(*args):
        raise RuntimeError("Failed to find C compiler.\nPlease specify one via CC.")

    monkeypatch.setenv(compiled.SETTING, "1")
    monkeypatch.setattr(compiled, "block", lambda kind, dtype: missing)
    for folder, seed in (("one", 0), ("two", 1)):
        run = train(dataclasses.replace(config, seed=seed), clip, tmp_path / folder)
        if seed == 0:
            assert run.vector == usual.vector and run.record["losses"] == usual.record["losses"]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        "the blocks of mini_xs could not be compiled (RuntimeError: Failed to find C compiler). "
        "The run goes on without."
    )


def test_memory_that_runs_out_is_no_failure_of_the_compiler():
    def full():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.")

    quick = compiled.Quick(full, lambda: 1, "it failed")
    with pytest.raises(torch.cuda.OutOfMemoryError):
        quick()
    assert not compiled.Quick.failed


def test_another_network_is_not_compiled(clip, tmp_path, traced):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 128))
    other = dataclasses.replace(clip, encoder=Encoder.of(module, name="mini_xs", image_size=32))
    run = train(RUN, other, tmp_path)
    assert counters["stats"]["unique_graphs"] == 0 and len(run.record["losses"]) == RUN.steps


@pytest.mark.parametrize(
    ("setting", "gpu", "count", "size", "expected"),
    [
        ("", True, 100, 30_000_000, True), ("", True, 99, 30_000_000, False),
        ("", True, 100, 3_000_000, False), ("", False, 100, 30_000_000, False),
        ("1", False, 1, 3_000_000, True), ("0", True, 100, 30_000_000, False),
    ],
)  # fmt: skip
def test_where_blocks_are_compiled(clip, monkeypatch, setting, gpu, count, size, expected):
    monkeypatch.setenv(compiled.SETTING, setting)
    monkeypatch.setattr(compiled, "_on_gpu", lambda encoder: gpu)
    params = {"w": torch.empty(size, device="meta")}
    encoder = dataclasses.replace(clip.encoder, params=params)
    config = dataclasses.replace(RUN, steps=count)
    assert compiled.compiles(config, encoder) == expected


def test_which_steps_are_recorded(clip, monkeypatch):
    monkeypatch.setattr(compiled, "_on_gpu", lambda encoder: True)
    long = dataclasses.replace(RUN, steps=200, batch_size=128)
    towers = {"mini": True, "vitb32": True, "vitb16": False, "vitl14": False, "timm/x": False}
    for name, expected in towers.items():
        assert compiled.records(long, dataclasses.replace(clip.encoder, name=name)) == expected
    assert not compiled.records(RUN, clip.encoder)
    monkeypatch.setenv(compiled.SETTING, "1")
    assert compiled.records(RUN, clip.encoder)
    penalty = dataclasses.replace(long, method="ortho_reg")
    assert not compiled.records(penalty, clip.encoder)


# --- Recorded steps, with a recorder that computes into the same tensors again -------------------
def pretended_graph(run):
    kept = run()

    def again():
        value, gradients = run()
        kept[0].copy_(value)
        for name, gradient in gradients.items():
            kept[1][name].copy_(gradient)

    return again, kept


@pytest.mark.parametrize("kind", [{"method": one} for one in METHODS] + [{"head": "trained"}])
def test_a_recorded_run_ends_bit_for_bit_the_same(clip, tmp_path, monkeypatch, kind):
    config = dataclasses.replace(RUN, **kind)
    expected = train(config, clip, tmp_path / "usual")
    recorded = []

    def record(run):
        recorded.append(run)
        return pretended_graph(run)

    monkeypatch.setattr(compiled, "_cuda_graph", record)
    monkeypatch.setattr(compiled, "records", lambda config, encoder: True)
    run = train(config, clip, tmp_path / "recorded")
    assert len(recorded) == 1 and not compiled.Quick.failed
    assert run.record["losses"] == expected.record["losses"] and run.vector == expected.vector
    if expected.head is not None:
        assert torch.equal(run.head.weight, expected.head.weight)


def frozen(run):
    """A replay that does nothing."""
    return (lambda: None), run()


def deaf(run):
    """A replay that gives the results of the batch that was recorded."""
    value, gradients = run()
    kept = value.clone(), {name: one.clone() for name, one in gradients.items()}

    def again():
        value.copy_(kept[0])
        for name, one in gradients.items():
            one.copy_(kept[1][name])

    return again, (value, gradients)


def wrong_loss(run):
    value, gradients = run()
    return (lambda: value.fill_(7.0)), (value, gradients)


def stale_gradients(run):
    """A replay that computes the loss alone."""
    value, gradients = run()
    before = {name: one.clone() for name, one in gradients.items()}

    def again():
        value.copy_(run()[0])
        for name, one in gradients.items():
            one.copy_(before[name])

    return again, (value, gradients)


def half_gradients(run):
    again, kept = pretended_graph(run)

    def halved():
        again()
        for one in kept[1].values():
            one.mul_(0.5)

    return halved, kept


@pytest.mark.parametrize(
    ("recorder", "message"),
    [
        (frozen, "has loss nan, not"), (deaf, "has loss"), (wrong_loss, "has loss 7, not"),
        (stale_gradients, "has gradients that are"), (half_gradients, "has gradients that are"),
    ],
)  # fmt: skip
def test_a_recording_that_gives_other_numbers_is_not_used(
    clip, tmp_path, monkeypatch, caplog, recorder, message
):
    expected = train(RUN, clip, tmp_path / "usual")
    monkeypatch.setattr(compiled, "_cuda_graph", recorder)
    monkeypatch.setattr(compiled, "records", lambda config, encoder: True)
    run = train(RUN, clip, tmp_path / "recorded")
    assert run.vector == expected.vector
    (told,) = [record.getMessage() for record in caplog.records]
    assert "could not be recorded as a CUDA graph" in told and message in told


def test_parts_of_a_batch_are_not_recorded(clip, tmp_path, monkeypatch):
    monkeypatch.setattr(steps.footprint, "plans", lambda *args: memory.plans(4))
    expected = train(RUN, clip, tmp_path / "usual")
    monkeypatch.setattr(compiled, "_cuda_graph", None)
    monkeypatch.setattr(compiled, "records", lambda config, encoder: True)
    run = train(RUN, clip, tmp_path / "recorded")
    assert run.vector == expected.vector and not compiled.Quick.failed


# --- On a device: a pretended one computes the same functions, a real one compiles and records ----

CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(params=["pretended", pytest.param("real", marks=[pytest.mark.gpu, CARD])])
def card(request, monkeypatch):
    if request.param == "real":
        yield request.param
        return
    monkeypatch.setattr(compiled, "block", dual.block_of)
    monkeypatch.setattr(compiled, "_cuda_graph", pretended_graph)
    with request.getfixturevalue("pretended").cuda():
        yield request.param


@pytest.mark.parametrize(
    ("method", "head"), [("nonlinear", "trained"), ("linearized", "zero_shot")]
)
def test_on_a_device_quick_steps_train_as_the_usual_ones(card, tmp_path, monkeypatch, method, head):
    clip = loading.load("mini_xs", device="cuda")
    images = drawn.DrawnImages.load
    monkeypatch.setattr(
        drawn.DrawnImages, "load", lambda *args, device="cpu", **named: drawn.Images(
            *(part.to(device) for part in images())
        ),
    )  # fmt: skip
    config, runs = dataclasses.replace(RUN, method=method, head=head, steps=2), {}
    for setting in "01":
        monkeypatch.setenv(compiled.SETTING, setting)
        runs[setting] = train(config, clip, tmp_path / setting)
    assert not compiled.Quick.failed
    near(runs["1"], runs["0"])
