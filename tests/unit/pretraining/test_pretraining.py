"""Pre-training: pools, checkpoints, branches, the queue."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from pretraining import (
    evaluate,
    install,
    levels,
    loop,
    objectives,
    pool,
    queue,
    recipes,
    views,
)
from pretraining.pool import Pool
from tasklab import machine
from tasklab.errors import TasklabError
from tasklab.mini import clip, shipped
from tasklab.models import loading
from tasklab.storage.tensors import file_sha256

TINY = dataclasses.replace(
    recipes.BASE, steps=8, batch_size=8, shard=32, pool=2, warmup=1, decay_share=0.25
)


def train(recipe, out, folder, name="mini_xs", every=2, **more):
    return loop.run(
        recipe, queue.objective(name, recipe, folder), out, every=every, images=60, looks=4, **more
    )


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("harm", ["bit", "cut", "empty", "gone"])
def test_a_damaged_part_is_noticed_and_drawn_anew(tmp_path, capsys, harm):
    drawn = Pool(tmp_path, seed=3, parts=2, size=32)
    drawn.fill()
    path, whole = drawn.path(1), drawn.path(1).read_bytes()
    before = drawn.part(1)
    if harm == "gone":
        path.unlink()
    else:
        flipped = bytearray(whole)
        flipped[-50] ^= 1
        path.write_bytes({"bit": bytes(flipped), "cut": whole[:-9], "empty": b""}[harm])
    after = drawn.part(1)
    assert all(torch.equal(before[k], after[k]) for k in before)
    mended = pool.read(path)[0]
    assert all(torch.equal(before[k], mended[k]) for k in before)
    assert ("drawn anew" in capsys.readouterr().err) == (harm != "gone")


def test_a_round_takes_every_picture_once_in_an_order_of_its_own(tmp_path):
    drawn = Pool(tmp_path, seed=0, parts=3, size=16)
    rounds = [[drawn.turn(3 * lap + i)["images"] for i in range(3)] for lap in range(2)]
    keys = [[x.flatten(1).float().mean(1) for x in parts] for parts in rounds]
    first, second = (torch.cat(k) for k in keys)
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, second.sort().values)
    assert torch.equal(drawn.turn(4)["images"], rounds[1][1])


def test_the_pools_of_two_seeds_share_no_picture(tmp_path):
    parts = [Pool(tmp_path, seed, 1, 64).part(0)["images"].flatten(1) for seed in (0, 1)]
    assert len(torch.unique(torch.cat(parts), dim=0)) == 128


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


@pytest.mark.parametrize(
    ("change", "told"),
    [({"lr": 2e-3}, "lr"), ({"seed": 1}, "seed"), ({"steps": 6}, "steps"), ({"pool": 1}, "pool")],
)
def test_a_folder_of_another_recipe_is_refused(tmp_path, change, told):
    train(TINY, tmp_path / "run", tmp_path)
    before = (tmp_path / "run" / "last.safetensors").read_bytes()
    with pytest.raises(TasklabError, match=f"of another recipe \\({told} .* and not "):
        train(dataclasses.replace(TINY, **change), tmp_path / "run", tmp_path)
    assert (tmp_path / "run" / "last.safetensors").read_bytes() == before


def test_a_folder_of_another_model_is_refused(tmp_path):
    train(TINY, tmp_path / "run", tmp_path)
    with pytest.raises(TasklabError, match="of another model"):
        train(TINY, tmp_path / "run", tmp_path, "mini_s")


@pytest.mark.parametrize("at", [-100, 200])
def test_a_damaged_checkpoint_is_refused(tmp_path, at):
    train(TINY, tmp_path / "run", tmp_path)
    last = tmp_path / "run" / "last.safetensors"
    damaged = bytearray(last.read_bytes())
    damaged[at] ^= 4
    last.write_bytes(damaged)
    with pytest.raises(TasklabError, match="delete it to begin anew"):
        train(TINY, tmp_path / "run", tmp_path)


def test_without_bfloat16_a_run_computes_in_float32(monkeypatch):
    x = torch.randn(4, 4)
    for able, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(machine, "fast_in_bfloat16", lambda able=able: able)
        with recipes.BASE.autocast():
            assert (x @ x).dtype == dtype
    with dataclasses.replace(recipes.BASE, precision="float32").autocast():
        assert (x @ x).dtype == torch.float32


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


def test_the_jobs_are_what_the_protocol_says():
    base = recipes.BASE
    assert base.steps * base.batch_size >= 6e6
    for share, steps in recipes.SHORTER.items():
        assert steps * 100 == share * base.steps
    for steps, step in zip(recipes.SHORTER.values(), recipes.KEEP, strict=True):
        shorter = dataclasses.replace(base, steps=steps)
        assert not shorter.decaying(step) and shorter.decaying(step + 1)
        assert shorter.lr_at(step) == base.lr
    jobs = recipes.JOBS
    seeds = [jobs[f"mini_s_seed{seed}"].recipe for seed in range(3)]
    assert all(r.steps * r.batch_size >= 2e6 for r in seeds)
    assert len({dataclasses.replace(r, seed=0) for r in seeds}) == 1 == len({*seeds}) - 2
    assert jobs["mini"].recipe == jobs["mini_s"].recipe == jobs["mini_xs"].recipe
    family = [jobs[f"mini_{x}"].recipe for x in ("clip_more", "few", "many", "mae", "dino")]
    assert len({(r.steps * r.batch_size, r.pool * r.shard, r.seed) for r in family}) == 1


@pytest.mark.slow
def test_levels_are_those_of_the_edited_models():
    """Fine-tuning learns, coefficients are applied, and the control is kept."""
    torch.manual_seed(0)
    found = levels.Levels(clip.build("mini_xs"), train=512, val=100, control=40)
    vector = found.finetune("LandCover", lr=1e-3, steps=120, batch=32, seed=0)
    again = found.finetune("LandCover", lr=1e-3, steps=120, batch=32, seed=0)
    assert all(torch.equal(vector[k], again[k]) for k in vector)
    before, after = (found.accuracy(found.at(vector, a), "LandCover") for a in (0.0, 1.0))
    assert after > before + 10
    result = levels.measure(found, lr=1e-3, steps=3, batch=16, step=0.25)
    assert result["means"]["alone"] == pytest.approx(
        sum(result["tasks"]["alone"].values()) / 8, abs=0.1
    )
    assert result["control kept"] >= levels.KEPT * result["control"] - 0.01


def test_a_view_is_another_for_each_picture_and_never_mirrored():
    torch.manual_seed(0)
    ramp = (torch.arange(32) * 8).to(torch.uint8).expand(3, 32, 32)  # brighter to the right
    seen = views.view(ramp.expand(40, 3, 32, 32), 16, (0.3, 0.6), solarised=0.0)
    assert seen.shape == (40, 3, 16, 16) and seen.min() >= 0 and seen.max() <= 1
    assert len(torch.unique(seen.flatten(1), dim=0)) == 40
    left, right = seen[..., :4].mean((1, 2, 3)), seen[..., -4:].mean((1, 2, 3))
    assert (left < right).all()


def test_a_crop_covers_the_share_it_is_asked_for():
    torch.manual_seed(0)
    x = torch.linspace(0, 1, 32).expand(200, 1, 32, 32)
    cut = views.crop(x, 32, (0.25, 0.25))
    widths = cut[:, 0, 0, -1] - cut[:, 0, 0, 0]
    assert 0.35 < widths.min() and widths.max() < 0.65  # half a side, times the root of 3:4 to 4:3
    whole = views.crop(x, 32, (1.0, 1.0))
    assert (whole - x).abs().max() < 0.16  # but for its shape


def test_contrastive_loss_takes_equal_captions_as_one():
    """Two equal captions with equal images: the best loss is log 2, the entropy of the target."""
    same = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    tokens = torch.tensor([[7, 8], [7, 8]])
    loss = objectives.contrastive_loss(same, same, tokens, torch.tensor(100.0))
    assert loss.item() == pytest.approx(torch.log(torch.tensor(2.0)).item())


def test_the_learning_rate_is_flat_then_falls_to_zero():
    recipe = loop.Recipe(steps=100, warmup=10, lr=1.0, decay_share=0.2)
    rates = [recipe.lr_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[10:80] == [1.0] * 70
    assert rates[90] == pytest.approx(0.5)
    assert not recipe.decaying(80)
    assert recipe.decaying(81)


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
        with pytest.raises(TasklabError, match=f"{name} is not pre-trained yet"):
            install.install(tmp_path, name, "here")
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


def test_a_model_that_does_not_ship_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path))
    with pytest.raises(TasklabError, match="'mini_30' do not ship.*pretraining.queue"):
        loading.load("mini_30")
