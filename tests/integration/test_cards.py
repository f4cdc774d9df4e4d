"""Several cards, streams and recorded steps, on pretended devices (and real ones, with `gpu`)."""

import dataclasses

import pytest
import torch

from tasklab.models import loading
from tasklab.storage.store import Store
from tasklab.tasks import drawn
from tasklab.tasks.suites import suite
from tasklab.tuning import compiled, dual, finetune, multitask
from tasklab.tuning.recipe import FineTune
from tests import pretended_streams as streams

RUN = FineTune(
    task="LandCover", model="mini_xs", steps=4, batch_size=8, lr=1e-3, warmup=1,
    precision="float32",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (40, 3, 32, 32), generator=generator, dtype=torch.uint8)
    y = torch.randint(0, 10, (40,), generator=generator)
    monkeypatch.setattr(
        drawn.DrawnImages, "load",
        lambda *args, device="cpu", **named: drawn.Images(x.to(device), y.to(device)),
    )  # fmt: skip
    monkeypatch.setattr(drawn.DrawnImages, "version", lambda *args, **kwargs: "test")
    monkeypatch.setattr(compiled.Quick, "failed", set())
    monkeypatch.setattr(compiled, "block", dual.block_of)
    compiled._pool.cache_clear()


@pytest.fixture
def cards(pretended):
    with pretended.cuda(count=2):
        yield pretended


def train(config, device, folder):
    clip = loading.load("mini_xs", device=device)
    return finetune.finetune(config, clip, Store(folder), progress=False)


@pytest.fixture
def both(monkeypatch, tmp_path):
    """Return a function that trains the usual way, and by recorded steps."""

    def runs(device, **kind):
        config = dataclasses.replace(RUN, **kind)
        monkeypatch.setenv(compiled.SETTING, "0")
        usual = train(config, device, tmp_path / "usual")
        monkeypatch.setenv(compiled.SETTING, "1")
        return usual, train(config, device, tmp_path / "recorded")

    return runs


def near(run, expected):
    assert run.record["losses"] == pytest.approx(expected.record["losses"], rel=1e-5)
    assert run.vector.cosine(expected.vector) > 0.9999


# --- What the pretended cards refuse --------------------------------------------------------------
def test_two_cards_do_not_meet(cards):
    one, two = (torch.ones(3, 3, device=f"cuda:{n}") for n in (0, 1))
    assert (one + 1).device == torch.device("cuda:0") and two.mm(two).device.index == 1
    with pytest.raises(RuntimeError, match="cuda:0 and cuda:1"):
        one + two
    assert torch.equal((one.to("cuda:1") + two).cpu(), torch.full((3, 3), 2.0))
    with torch.cuda.device(1):
        assert torch.zeros(1, device="cuda").device.index == 1
    with pytest.raises(RuntimeError, match="ordinal"), torch.cuda.device(2):
        pass


def test_a_stream_that_has_not_waited_is_a_race(cards):
    x, side = torch.ones(3, device="cuda"), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
    with pytest.raises(RuntimeError, match="a race"):
        y + 1
    with pytest.raises(RuntimeError, match="a race"):
        y.cpu()
    torch.cuda.current_stream().wait_stream(side)
    assert (y + 1).tolist() == [3, 3, 3]


def test_a_graph_repeats_what_was_on_its_card_and_stream(cards):
    x, other = torch.ones(3, device="cuda:1"), torch.ones(3, device="cuda:0")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(1), torch.cuda.graph(graph):
        y, elsewhere = x * 2, other * 2
    torch.cuda.current_stream(1).wait_stream(graph.stream)
    assert y.isnan().all() and elsewhere.tolist() == [2, 2, 2]
    x.fill_(5)
    other.fill_(5)
    with torch.cuda.device(1):
        graph.replay()
    assert y.tolist() == [10, 10, 10] and elsewhere.tolist() == [2, 2, 2]
    with (
        pytest.raises(RuntimeError, match="capturing"),
        torch.cuda.device(1), torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):  # fmt: skip
        float(x.sum())


# --- Recorded steps -------------------------------------------------------------------------------
@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
def test_a_recorded_run_is_the_usual_one_on_either_card(cards, both, device, method):
    usual, recorded = both(device, method=method)
    assert not compiled.Quick.failed
    near(recorded, usual)
    assert recorded.vector.device == torch.device(device)


def nothing(monkeypatch):
    monkeypatch.setattr(streams.Graph, "replay", lambda self: None)


def other_card(monkeypatch):
    """Make streams and graphs on the first card, wherever the tensors are."""
    monkeypatch.setattr(compiled, "_current", lambda device: torch.cuda.device(0))


def unordered(monkeypatch):
    """Have no stream wait for another."""
    monkeypatch.setattr(streams.Stream, "wait_stream", lambda self, other: None)


def once(monkeypatch):
    """Have a graph compute at its first replay alone."""
    replay, seen = streams.Graph.replay, set()

    def again(self):
        if self not in seen:
            seen.add(self)
            replay(self)

    monkeypatch.setattr(streams.Graph, "replay", again)


@pytest.mark.parametrize("fault", [nothing, other_card, unordered, once])
def test_a_fault_of_a_recording_is_found_and_the_run_goes_on(
    cards, both, monkeypatch, caplog, fault
):
    fault(monkeypatch)
    usual, run = both("cuda:1")
    assert any("could not be recorded" in record.getMessage() for record in caplog.records)
    near(run, usual)


# --- Joint training -------------------------------------------------------------------------------
def joint(device, folder):
    clip = loading.load("mini_xs", device=device)
    runs = [dataclasses.replace(RUN, task=task) for task in ("LandCover", "Signs", "Textures")]
    return multitask.multitask(runs, clip, Store(folder), suite("mini"), progress=False)


@pytest.fixture
def handed(monkeypatch):
    """Return the places of the gradients that recorded steps hand over."""
    call, seen = compiled.Replayed.__call__, []

    def noted(self, x, y):
        value, gradients = call(self, x, y)
        seen.append({name: one.here.data_ptr() for name, one in gradients.items()})
        return value, gradients

    monkeypatch.setattr(compiled.Replayed, "__call__", noted)
    return seen


def test_joint_training_has_the_graphs_of_all_tasks_in_one_memory(
    cards, monkeypatch, tmp_path, handed
):
    monkeypatch.setenv(compiled.SETTING, "0")
    usual = joint("cuda:1", tmp_path / "usual")
    monkeypatch.setenv(compiled.SETTING, "1")
    recorded = joint("cuda:1", tmp_path / "recorded")
    assert not compiled.Quick.failed
    near(recorded, usual)
    assert len(streams.Graph.made) == 3 and len({graph.pool for graph in streams.Graph.made}) == 1
    assert len(handed) == 3 * RUN.steps and handed.count(handed[0]) == len(handed)
