"""The small encoders of one architecture, pre-trained in different ways: recipes and weights."""

import dataclasses
import sys

import pytest
import torch
import torch.nn.functional as F

from pretraining import objectives, queue
from pretraining.recipes import JOBS
from tasklab import mini
from tasklab.errors import TasklabError
from tasklab.mini import clip, vit
from tasklab.models import loading, zoo
from tasklab.tuning import methods
from tests.helpers import refuses

SCHEMES = ("sup_few", "sup_many", "mae", "dino", "clip_less", "clip_more", "sup_large")
FAMILY = tuple(zoo.FAMILIES[0][role] for role in (*SCHEMES, "clip_large"))
RANDOM_PROBE = 18.0  # mean of 8, %, of the same towers with random weights


def tiny(name, **change):
    usual = {"steps": 5, "batch_size": 8, "shard": 16, "pool": 2, "warmup": 1}
    return dataclasses.replace(JOBS[name].recipe, **{"precision": "float32", **usual, **change})


def learning(name, folder, **change):
    return queue.objective(JOBS[name].model, tiny(name, **change), folder)


def test_the_family_differs_in_what_is_learnt_alone():
    for roles in zoo.FAMILIES:
        schemes = [roles[role] for role in (*SCHEMES, "clip_large")]
        assert len(set(schemes)) == len(schemes) and set(schemes) <= set(zoo.CLOSED_MODELS)
    for name, entry in zoo.REGISTRY.items():
        # which have no family
        apart = "_seed" in name or entry.extra or entry.world == "icons" or entry.kind == "bert"
        assert name in zoo.family(name).values() or apart
    for entry in zoo.REGISTRY.values():
        rates = {methods.TABLE[name].rates or name for name in methods.METHODS}
        assert set(entry.rates) == (rates if zoo.small(entry.name) else set())
    # The same tower, the same pictures, as many of them; fewer distinct ones for `less`.
    names = ("mini_few", "mini_many", "mini_mae", "mini_dino", "mini_clip_more")
    seen = {
        (r.steps * r.batch_size, r.pool * r.shard, r.seed)
        for r in (JOBS[name].recipe for name in names)
    }
    assert len(seen) == 1
    less, more = JOBS["mini_clip_less"].recipe, JOBS["mini_clip_more"].recipe
    assert dataclasses.replace(less, pool=more.pool) == more and less.pool * 10 < more.pool
    assert clip.VISION["mini_clip_less"] == clip.VISION["mini_clip_more"] == clip.VISION["mini_s"]
    assert JOBS["mini_few"].recipe == JOBS["mini_many"].recipe == JOBS["mini_sup_few"].recipe
    assert vit.TOWERS["mini_few"] == vit.TOWERS["mini_many"] == vit.TOWERS["mini_mae"]
    assert vit.TOWERS["mini_few"] == vit.TOWERS["mini_dino"] != vit.TOWERS["mini_sup_few"]
    assert objectives.TOWERS_ONLY == ("mini_clip_less", "mini_clip_more")
    for name in objectives.TOWERS_ONLY:
        kept = loading._tensors(loading.spec(name), mini.weights_path(name))
        assert set(kept) == set(mini.build(name).visual.state_dict())


def test_the_masked_autoencoders_tower_has_its_librarys_features(tmp_path):
    torch.manual_seed(0)
    task = learning("mini_mae", tmp_path)
    model = task.model().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # biases are zero at the start
        x = torch.randn(3, 3, 32, 32)
        model.config.mask_ratio = 0.0
        noise = torch.arange(16.0).expand(3, -1)  # keeps the patches in order
        theirs = model.vit(pixel_values=x, noise=noise).last_hidden_state[:, 0]
        ours = task.shipped(model).eval()(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_only_masked_patches_count_in_the_masked_autoencoders_loss(tmp_path):
    torch.manual_seed(0)
    task = learning("mini_mae", tmp_path)
    model = task.model()
    images = task.shard(0)[0][:4]
    torch.manual_seed(1)
    loss = task.loss(model, images, 0)
    torch.manual_seed(1)
    out = model(pixel_values=mini.clip.normalise(images))
    assert out.mask.mean() == task.settings["mask_ratio"]
    target = model.patchify(mini.clip.normalise(images))
    if task.settings["norm_pix_loss"]:
        spread = (target.var(-1, keepdim=True) + 1e-6).sqrt()
        target = (target - target.mean(-1, keepdim=True)) / spread
    error = (out.logits - target).square().mean(-1)
    torch.testing.assert_close(loss, error[out.mask == 1].mean())


def test_dinos_loss_is_the_papers(tmp_path):
    """The mean over pairs of different views of the cross-entropy between teacher and student."""
    torch.manual_seed(0)
    task = learning("mini_dino", tmp_path)
    model = task.model().double()
    model.loss.center.normal_()
    views = [torch.randn(3, 3, s, s, dtype=torch.float64) for s in (32, 32, 16, 16, 16)]
    centre = model.loss.center[0, 0].clone()
    terms, outputs = [], []
    for i, a in enumerate(views[:2]):
        told = model.teacher["head"](model.teacher["tower"](a))
        outputs.append(told)
        for j, b in enumerate(views):
            if i != j:
                said = model.student["head"](model.student["tower"](b))
                target = F.softmax((told - centre) / 0.04, dim=-1)
                terms.append(-(target * F.log_softmax(said / 0.1, dim=-1)).sum(-1).mean())
    loss = model(views, 2)
    torch.testing.assert_close(loss, torch.stack(terms).mean())
    expected = 0.9 * centre + 0.1 * torch.cat(outputs).mean(0)
    torch.testing.assert_close(model.loss.center[0, 0], expected)
    loss.backward()
    assert all(p.grad is None for p in model.teacher.parameters())


def test_dinos_teacher_follows_the_student_and_is_what_ships(tmp_path):
    torch.manual_seed(0)
    task = learning("mini_dino", tmp_path, steps=10)
    model = task.model()
    images = task.shard(0)[0][:8]
    name = "blocks.0.attn.qkv.weight"
    task.loss(model, images, 0)
    with torch.no_grad():
        model.student["tower"].get_parameter(name).add_(1.0)
    before = model.teacher["tower"].get_parameter(name).clone()
    task.after_step(model)
    moved = model.teacher["tower"].get_parameter(name)
    share = 1 - task.settings["teacher_momentum"]
    torch.testing.assert_close(moved - before, torch.full_like(before, share), rtol=1e-3, atol=1e-6)
    assert torch.equal(task.shipped(model).get_parameter(name), moved)
    task.loss(model, images, 9)
    assert task.momentum == pytest.approx(1.0)


def test_without_lightly_dino_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "lightly", None)
    refuses(r"tasklab\[pretrain\]", lambda: learning("mini_dino", tmp_path).model())


@pytest.mark.parametrize("name", FAMILY)
def test_the_shipped_encoders_have_no_text_tower(name):
    shipped = loading.load(name)
    encoder = shipped.encoder
    assert shipped.text is None
    width = 192 if name in ("mini_sup_few", "mini_clip_large") else 128
    assert len(encoder.blocks) == (6 if width == 192 else 4)
    x = encoder.preprocess(torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8))
    features = encoder(encoder.params, x)
    assert features.shape == (2, 128 if "clip" in name else width)
    random = loading.load(name, init="random", seed=1).encoder
    assert not torch.allclose(random({}, x), features, atol=1e-2)
    with pytest.raises(TasklabError, match="no text tower"):
        from tasklab.models import heads
        from tasklab.tasks import suites

        heads.zero_shot(shipped, suites.suite("mini")["Signs"])


def test_towers_are_small_and_know_more_than_random_weights():
    for settings in ({}, {"init": "random", "seed": 2}):
        names = ("mini_clip_large", "mini")
        ours, theirs = (loading.load(name, **settings).encoder for name in names)
        assert ours.weights_hash == theirs.weights_hash
    files = {mini.weights_path(name) for name in FAMILY if not zoo.REGISTRY[name].shares}
    assert sum(path.stat().st_size for path in files) <= 16_000_000
    for name in FAMILY:
        if zoo.REGISTRY[name].shares or name == "mini_sup_few":
            continue  # their cards say how well they classify in another way
        card = mini.card(name)
        (probe,) = (value for key, value in card.items() if key.startswith("linear probe"))
        assert probe["mean of 8"] > RANDOM_PROBE + 10, name
