"""Several cards, streams and recorded steps, on pretended devices (and real ones, with `gpu`)."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tasklab import Lab, TaskVector
from tasklab.analyses import disentanglement, merging, meters
from tasklab.analyses.edited import line
from tasklab.evidence import experiments
from tasklab.models import heads, loading
from tasklab.storage import placement
from tasklab.storage.store import Store
from tasklab.tasks import drawn
from tasklab.tasks.suites import suite
from tasklab.tuning import compiled, dual, finetune, multitask, session, tangent
from tasklab.tuning.recipe import FineTune
from tests import pretended_streams as streams
from tests.vectors import noise

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
    compiled._memory.cache_clear()


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
    assert len(run.record["losses"]) % RUN.steps == 0 < len(run.record["losses"])
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


def test_a_replay_waits_for_what_it_reads(cards):
    x, side = torch.ones(3, device="cuda"), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    torch.cuda.current_stream().wait_stream(graph.stream)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.fill_(5)
    with pytest.raises(RuntimeError, match="a race"):
        graph.replay()
    torch.cuda.current_stream().wait_stream(side)
    graph.replay()
    assert y.tolist() == [10, 10, 10]


def test_a_recording_needs_libraries_that_have_run_and_nothing_of_the_cpus(cards):
    x = torch.ones(3, 3, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for work in (lambda: x @ x, x.cpu, x.tolist, lambda: torch.ones(3).to("cuda")):
        with (
            pytest.raises(RuntimeError, match="capturing"),
            torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side),
        ):
            work()
    with torch.cuda.stream(side):
        x @ x
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
        x @ x


def test_a_replay_writes_over_what_a_later_graph_left_in_the_same_memory(cards):
    x, pool, side = torch.ones(3, device="cuda"), torch.cuda.graph_pool_handle(), {}
    found = {}
    for name, factor, stream in (("a", 2, "one"), ("b", 3, "one"), ("c", 4, "other")):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=pool, stream=side.setdefault(stream, torch.cuda.Stream())
        ):
            found[name] = graph, x * factor
        torch.cuda.current_stream().wait_stream(graph.stream)
    for graph, _ in found.values():
        graph.replay()
    assert [y[0].item() for _, y in found.values()] == [2, 3, 4]
    found["a"][0].replay()
    assert found["b"][1].isnan().all() and found["c"][1].tolist() == [4, 4, 4]


def test_copies_are_made_when_the_cpu_waits(cards):
    there = torch.ones(3, device="cuda")
    here = there.to("cpu", non_blocking=True)
    assert here.isnan().all()
    torch.cuda.synchronize()
    assert here.tolist() == [1, 1, 1]
    pinned = torch.ones(3).pin_memory()
    there = pinned.to("cuda", non_blocking=True)
    pinned.fill_(7)
    with pytest.raises(RuntimeError, match="a race: pinned"):
        there.sum().item()
    there = pinned.to("cuda", non_blocking=True)
    assert there.sum().item() == 21
    pinned.fill_(8)  # the CPU has waited
    assert there.sum().item() == 21


# --- float32, and what is near it -----------------------------------------------------------------
def test_float32_is_float32_in_passes_on_a_card(cards):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (4, 3, 32, 32), generator=generator, dtype=torch.uint8)
    rows = {}
    for device in ("cpu", "cuda:1"):
        clip = loading.load("mini_xs", device=device)
        images = clip.encoder.preprocess(x)
        tau = noise(clip.encoder.params, 0).to(device)
        tangents = tangent.features(clip.encoder, clip.encoder.params, tau, x)
        every = [clip.encoder(clip.encoder.params, images), tangents.f0, tangents.jtau]
        rows[device] = [one.cpu() for one in every]
    for here, there in zip(*rows.values(), strict=True):
        torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-5)
    weight, pixels = clip.encoder.params["conv1.weight"], images
    by_hand = F.conv2d(pixels, weight, stride=weight.shape[-1]).cpu()  # PyTorch's default: TF32
    full = F.conv2d(pixels.cpu(), weight.cpu(), stride=weight.shape[-1])
    assert 1e-5 < float((by_hand - full).norm() / full.norm()) < 1e-2


def test_a_run_in_bfloat16_multiplies_in_it_on_a_card(cards, both, monkeypatch):
    monkeypatch.setattr(dual, "passes", lambda *given: None)  # a CPU's autocast refuses its mixture
    record, seen = streams.record, set()

    def noted(func, args, named, out, *more, **options):
        seen.update({out.dtype} if func._schema.name in ("aten::mm", "aten::addmm") else ())
        record(func, args, named, out, *more, **options)

    monkeypatch.setattr(streams, "record", noted)
    call, low = heads.Head.__call__, []

    def logits(self, features):
        low.append(torch.is_autocast_enabled("cuda"))
        return call(self, features)

    monkeypatch.setattr(heads.Head, "__call__", logits)
    usual, recorded = both("cuda:1", precision="bfloat16")
    assert not compiled.Quick.failed and seen <= {torch.bfloat16, torch.float32}
    assert low and not any(low)  # logits need the digits
    near(recorded, usual)
    seen.clear()
    full, _ = both("cuda:1", seed=0)
    assert 0.9 < usual.vector.cosine(full.vector) < 0.9999 and seen == {torch.float32}
    assert usual.record["losses"] == pytest.approx(full.record["losses"], rel=0.05)


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


class KilledError(Exception):
    """Stands for a power cut."""


def test_a_resumed_run_ends_as_an_uninterrupted_one_on_a_card(cards, both, monkeypatch, tmp_path):
    usual, _ = both("cuda:1")
    monkeypatch.setattr(session, "_REST", 0)
    rate, steps = finetune.learning_rate, []

    def cut(config, step):
        steps.append(step)
        if len(steps) == 3:
            raise KilledError
        return rate(config, step)

    monkeypatch.setattr(finetune, "learning_rate", cut)
    config = dataclasses.replace(RUN, checkpoint_every=1)
    with pytest.raises(KilledError):
        train(config, "cuda:1", tmp_path / "cut")
    resumed = train(config, "cuda:1", tmp_path / "cut")
    assert steps == [0, 1, 2, 2, 3]  # losses were on the card alone when it was cut
    near(resumed, usual)


# --- Memory ---------------------------------------------------------------------------------------
def test_each_card_has_its_own_memory(pretended):
    placement.release()
    with pretended.cuda(total=2**20, count=2):
        one, two = (
            placement.resident(("a",), f"cuda:{n}", lambda: torch.ones(2**17)) for n in (0, 1)
        )
        assert [one.device.index, two.device.index] == [0, 1]
        placement.release()
        del two
        assert placement.fits(2**18, "cuda:1") and not placement.fits(2**18, "cuda:0")
        x = torch.ones(2**14, device="cuda:1")
        assert meters.peak_bytes(lambda: x.add(1).add(1), "cuda:1") == 2 * x.nbytes


def test_a_vector_that_was_written_to_edits_a_model_anew(cards):
    theta, tau = {"w": torch.zeros(3, device="cuda:1")}, TaskVector({"w": torch.ones(3)})
    assert line(theta, tau).at(1.0)["w"].tolist() == [1, 1, 1]
    tau["w"].mul_(5)  # on the CPU; the card has a copy
    assert line(theta, tau).at(1.0)["w"].tolist() == [5, 5, 5]


# --- A lab ---------------------------------------------------------------------------------------
def test_a_lab_on_the_second_card_leaves_the_first_alone(cards, tmp_path):
    found = {}
    for device in ("cpu", "cuda:1"):
        lab = Lab(
            "mini_xs", device=device, steps=2, precision="float32", tasks=("Textures", "Signs"),
            store_root=tmp_path / device[:4], progress=False,
        )  # fmt: skip
        vectors, names = lab.vectors("nonlinear", 0), lab.suite.names
        whole = merging.merge("tsv_m", [*vectors.values()])
        values = [lab.evaluator.evaluate(whole, name, "test", (0.5, 1.0)) for name in names]
        values.append(lab.evaluator.evaluate(whole, names[0], "test", (0.5, 1.0), linear=True))
        at = {"linear": False, "alphas": (0.5, 1.0), "progress": False}
        values.append(disentanglement.error_map(lab.evaluator, vectors, **at).representation)
        placement.release()
        again = lab.vectors("nonlinear", 0)
        places = {tau.device for tau in (*vectors.values(), *again.values(), whole)}
        assert places == {torch.device(device)}
        found[device] = values
        assert experiments.single(lab, ["nonlinear"])["value"].notna().all()
    assert cards._memories[1].peak > 0 == cards._memories[0].peak
    for here, there in zip(*found.values(), strict=True):
        np.testing.assert_allclose(there, here, rtol=2e-3, atol=2.6)  # an image of 40


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
    made = streams.Graph.made
    assert len(made) == 3 and len({(graph.pool, graph.stream) for graph in made}) == 1
    assert {graph.mode for graph in made} == {"thread_local"}  # others load images meanwhile
    assert len(handed) == 3 * RUN.steps and handed.count(handed[0]) == len(handed)
