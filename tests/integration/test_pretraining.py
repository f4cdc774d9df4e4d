"""Pre-training: pools, checkpoints, branches, the queue, levels."""

import dataclasses
import functools
import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from pretraining import evaluate, install, levels, loop, pool, queue, recipes
from pretraining.pool import Pool
from tasklab.errors import TasklabError
from tasklab.mini import shipped
from tasklab.storage.checksums import file_sha256
from tests.helpers import refuses

TINY = dataclasses.replace(
    recipes.BASE, steps=8, batch_size=8, shard=32, pool=2, warmup=1, decay_share=0.25
)


def train(recipe, out, folder, name="mini_xs", every=2, **more):
    return loop.run(
        recipe, queue.objective(name, recipe, folder), out, every=every, images=60, looks=4, **more
    )


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_damaged_part_is_noticed_and_drawn_anew(tmp_path, capsys):
    drawn = Pool(tmp_path, seed=3, parts=2, size=32)
    drawn.fill()
    path, whole = drawn.path(1), drawn.path(1).read_bytes()
    before = drawn.part(1)
    flipped = whole[:-50] + bytes([whole[-50] ^ 1]) + whole[-49:]
    for harm in (flipped, whole[:-9], b"", None):
        path.unlink() if harm is None else path.write_bytes(harm)
        for found in (drawn.part(1), pool.read(path)[0]):
            assert all(torch.equal(before[k], found[k]) for k in before)
        assert ("drawn anew" in capsys.readouterr().err) == (harm is not None)


def test_rounds_and_pools(tmp_path):
    drawn = Pool(tmp_path, seed=0, parts=3, size=16)
    rounds = [[drawn.turn(3 * lap + i)["images"] for i in range(3)] for lap in range(2)]
    keys = [[x.flatten(1).float().mean(1) for x in parts] for parts in rounds]
    first, second = (torch.cat(k) for k in keys)
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)
    assert torch.equal(drawn.turn(4)["images"], rounds[1][1])
    parts = [Pool(tmp_path, seed, 1, 64).part(0)["images"].flatten(1) for seed in (0, 1)]
    assert len(torch.unique(torch.cat(parts), dim=0)) == 128
    alone = train(TINY, tmp_path / "alone", tmp_path, every=4)
    torch.manual_seed(5)  # what the run sets anew
    assert same(alone, train(TINY, tmp_path / "ahead", tmp_path, every=4, workers=2))
    odd = dataclasses.replace(TINY, batch_size=12)  # two of them in a shard of 32
    stream = loop.batches(odd, queue.objective("mini_xs", odd, tmp_path), step=1)
    second, third = next(stream)[0], next(stream)[0]
    assert len(second) == len(third) == 12
    again = loop.batches(odd, queue.objective("mini_xs", odd, tmp_path), step=2)
    assert torch.equal(third, next(again)[0])


@pytest.mark.parametrize("name", ["mini_xs", "mini_few", "mini_mae", "mini_dino", "mini_convnext"])
def test_a_run_that_is_asked_to_end_goes_on_bit_for_bit(tmp_path, monkeypatch, name):
    whole = train(TINY, tmp_path / "whole", tmp_path, name, every=4)
    task = queue.objective(name, TINY, tmp_path)
    after, calls = task.after_step, []

    def told(model):
        after(model)
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(task, "after_step", told)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="asked to end: step 3 of 8"):
        loop.run(TINY, task, tmp_path / "parts", every=4, images=60, looks=2)
    assert signal.getsignal(signal.SIGTERM) == before
    resumed = train(TINY, tmp_path / "parts", tmp_path, name, every=4)
    assert same(whole, resumed)
    exported = [load_file(tmp_path / part / "step00008.safetensors") for part in ("whole", "parts")]
    assert all(torch.equal(exported[0][k], exported[1][k]) for k in exported[0])
    logs = [json.loads((tmp_path / part / "log.json").read_text()) for part in ("whole", "parts")]
    assert [entry["loss"] for entry in logs[0]] == [entry["loss"] for entry in logs[1]]


def test_a_run_goes_on_with_the_threads_it_began_with(tmp_path):
    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        train(TINY, tmp_path / "a", tmp_path, keep=(4,))
        assert pool.read(loop.kept(tmp_path / "a", 4))[1]["threads"] == 1
        torch.set_num_threads(2)
        train(TINY, tmp_path / "a", tmp_path)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(usual)


def test_a_shorter_run_branches_off_and_ends_where_it_would_have_ended(tmp_path):
    train(TINY, tmp_path / "long", tmp_path, keep=(3,))
    short = dataclasses.replace(TINY, steps=4)
    alone = train(short, tmp_path / "alone", tmp_path)
    loop.branch(tmp_path / "long", short, tmp_path / "branch")
    assert (tmp_path / "branch" / "last.safetensors").exists()
    assert same(alone, train(short, tmp_path / "branch", tmp_path))
    log = json.loads((tmp_path / "branch" / "log.json").read_text())
    assert [entry["step"] for entry in log] == [2, 4]


def test_a_run_killed_at_its_last_writes_is_finished_by_the_next(tmp_path, monkeypatch):
    out, save = tmp_path / "runs" / "mini_xs", loop.save

    def killed(path, *more):
        if path.name == "last.safetensors":
            raise KeyboardInterrupt
        save(path, *more)

    monkeypatch.setattr(loop, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        train(TINY, out, tmp_path, every=8, keep=(8,))
    assert sorted(file.name for file in out.iterdir()) == [
        "kept000008.safetensors", "step00008.safetensors",
    ]  # fmt: skip
    monkeypatch.setattr(loop, "save", save)
    train(TINY, out, tmp_path, every=8, keep=(8,))
    whole = json.loads((out / "log.json").read_text())
    assert [entry["step"] for entry in whole] == [8]
    for left in ('[{"st', "[]", "{}"):
        (out / "log.json").write_text(left)
        assert queue.done(tmp_path, "mini_xs") == 0
        train(TINY, out, tmp_path, every=8)
        assert json.loads((out / "log.json").read_text()) == whole
        assert queue.done(tmp_path, "mini_xs") == 8


def test_a_folder_of_another_run_or_a_damaged_one_is_refused(tmp_path):
    train(TINY, tmp_path / "run", tmp_path)
    last = tmp_path / "run" / "last.safetensors"
    whole = last.read_bytes()
    for change in ({"lr": 2e-3}, {"seed": 1}, {"steps": 6}, {"pool": 1}):
        with pytest.raises(TasklabError, match=f"another recipe \\({next(iter(change))} "):
            train(dataclasses.replace(TINY, **change), tmp_path / "run", tmp_path)
    refuses("another model", lambda: train(TINY, tmp_path / "run", tmp_path, "mini_s"))
    assert last.read_bytes() == whole
    for at in (-100, 200):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        last.write_bytes(damaged)
        refuses("delete it", train, TINY, tmp_path / "run", tmp_path)


def test_the_queue_does_each_job_once(tmp_path, monkeypatch, capsys):
    jobs = {
        "long": recipes.Job(model="mini_xs", recipe=TINY, keep=(3,)),
        "short": recipes.Job(
            model="mini_xs", recipe=dataclasses.replace(TINY, steps=4), source="long"
        ),
    }
    monkeypatch.setattr(queue, "JOBS", jobs)
    monkeypatch.setattr(queue, "IMAGES", 18)
    usual = torch.get_num_threads()
    try:
        assert queue.waits(tmp_path, "short")
        queue.main(["--folder", str(tmp_path), "short", "long"])
        assert all(queue.finished(tmp_path, name) for name in jobs)
        assert not queue.waits(tmp_path, "short")
        told = capsys.readouterr().out
        assert told.index("long: process") < told.index("resumed at step 3 of 4")
        queue.main(["--folder", str(tmp_path)])
        assert capsys.readouterr().out == "long: finished\nshort: finished\n"
        with queue.alone(tmp_path, "long") as free:
            assert free
            queue.main(["--folder", str(tmp_path), "long"])
        assert capsys.readouterr().out == "long: in work\n"
        with pytest.raises(SystemExit):
            queue.main(["--folder", str(tmp_path), "lng"])
        assert "did you mean 'long'" in capsys.readouterr().err
    finally:
        torch.set_num_threads(usual)


@pytest.mark.slow
def test_levels_are_those_of_the_edited_models():
    """Fine-tuning learns, coefficients are applied, and the control is kept."""
    model = levels.load(shipped.weights_path("mini_xs"), "mini_xs")
    found = levels.Levels(model, train=128, val=40, control=20)
    vector = found.finetune("LandCover", lr=1e-3, steps=40, batch=32, seed=0)
    again = found.finetune("LandCover", lr=1e-3, steps=40, batch=32, seed=0)
    assert all(torch.equal(vector[k], again[k]) for k in vector)
    before, after = (found.accuracy(found.at(vector, a), "LandCover") for a in (0.0, 1.0))
    assert after > before + 10
    result = levels.measure(found, lr=1e-3, steps=3, batch=16, step=0.25)
    expected = pytest.approx(sum(result["tasks"]["alone"].values()) / 8, abs=0.1)
    assert result["means"]["alone"] == expected
    assert result["control kept"] >= levels.KEPT * result["control"] - 0.01


def test_a_finished_run_is_installed_with_its_card(tmp_path, monkeypatch):
    jobs = {
        "mini_xs": recipes.Job(model="mini_xs", recipe=TINY),
        "mini_clip_more": recipes.Job(model="mini_s", recipe=TINY),
        "mini_few": recipes.Job(model="mini_few", recipe=TINY),
        "mini_10": recipes.Job(model="mini_xs", recipe=TINY),
    }
    for module in (queue, install):
        monkeypatch.setattr(module, "JOBS", jobs)
    monkeypatch.setattr(queue, "IMAGES", 18)
    for measure, few in (
        (evaluate.zero_shot_accuracy, {}),
        (evaluate.probe_accuracy, {"fitted_to": 60}),
    ):
        monkeypatch.setattr(install, measure.__name__, functools.partial(measure, n=20, **few))
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path / "data"))
    for name in jobs:
        refuses(f"{name} is not pre-trained yet", install.install, tmp_path, name, "here")
        queue.work(tmp_path, name)
    for name in list(jobs)[:3]:
        path = install.install(tmp_path, name, "here", tmp_path / "into")
        card = json.loads(path.with_suffix(".json").read_text())
        kept = load_file(path)
        assert card["sha256"] == file_sha256(path) and card["machine"] == "here"
        assert card["parameters"] == sum(tensor.numel() for tensor in kept.values())
        assert card["recipe"]["steps"] == card["curve"][-1]["step"] == TINY.steps
        assert ("zero-shot accuracy" in " ".join(card)) == (name == "mini_xs")
        assert "linear probe on 1,000" in " ".join(card)
        assert all(key.startswith("visual.") for key in kept) == (name == "mini_clip_more")
    assert "64 images of 58 classes (few), 64 of them distinct" in card["data"]
    extra = install.install(tmp_path, "mini_10", "here")
    assert extra == tmp_path / "data" / "pretrained" / "mini_10.safetensors"
    assert shipped.weights_path("mini_10") == extra and shipped.card("mini_10")["name"] == "mini_10"


@pytest.mark.parametrize("name", ["mini_xs", "mini_few", "mini_mae"])
def test_on_a_device_a_run_learns_the_same(tmp_path, pretended, name):
    plain = dataclasses.replace(TINY, precision="float32", patch_dropout=0.0)
    with pretended.cuda():
        there = train(plain, tmp_path / "there", tmp_path, name, every=4, device="cuda")
        assert all(tensor.device.type == "cuda" for tensor in there.parameters())
    train(plain, tmp_path / "here", tmp_path, name, every=4)
    exported = [load_file(tmp_path / run / "step00008.safetensors") for run in ("there", "here")]
    for key, tensor in exported[1].items():
        torch.testing.assert_close(exported[0][key], tensor, rtol=1e-3, atol=1e-3)
