"""Pre-training: recipes, views and losses."""

import dataclasses

import pytest
import torch

from pretraining import loop, objectives, recipes, views
from tasklab import machine
from tasklab.models import loading
from tests.helpers import refuses


def test_without_bfloat16_a_run_computes_in_float32(monkeypatch):
    x = torch.randn(4, 4)
    for able, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(machine, "fast_in_bfloat16", lambda able=able: able)
        with recipes.BASE.autocast(x.device):
            assert (x @ x).dtype == dtype
    with dataclasses.replace(recipes.BASE, precision="float32").autocast(x.device):
        assert (x @ x).dtype == torch.float32


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


def test_views_crops_and_rates():
    torch.manual_seed(0)
    ramp = (torch.arange(32) * 8).to(torch.uint8).expand(3, 32, 32)  # brighter to the right
    seen = views.view(ramp.expand(40, 3, 32, 32), 16, (0.3, 0.6), solarised=0.0)
    assert seen.shape == (40, 3, 16, 16) and seen.min() >= 0 and seen.max() <= 1
    assert len(torch.unique(seen.flatten(1), dim=0)) == 40
    left, right = seen[..., :4].mean((1, 2, 3)), seen[..., -4:].mean((1, 2, 3))
    assert (left < right).all()
    torch.manual_seed(0)
    x = torch.linspace(0, 1, 32).expand(200, 1, 32, 32)
    cut = views.crop(x, 32, (0.25, 0.25))
    widths = cut[:, 0, 0, -1] - cut[:, 0, 0, 0]
    assert 0.35 < widths.min() and widths.max() < 0.65  # half a side, times the root of 3:4 to 4:3
    whole = views.crop(x, 32, (1.0, 1.0))
    assert (whole - x).abs().max() < 0.16  # but for its shape
    # Two equal captions with equal images: the best loss is log 2, the entropy of the target.
    same = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    tokens = torch.tensor([[7, 8], [7, 8]])
    loss = objectives.contrastive_loss(same, same, tokens, torch.tensor(100.0))
    assert loss.item() == pytest.approx(torch.log(torch.tensor(2.0)).item())
    recipe = loop.Recipe(steps=100, warmup=10, lr=1.0, decay_share=0.2)
    rates = [recipe.lr_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[10:80] == [1.0] * 70
    assert rates[90] == pytest.approx(0.5)
    assert not recipe.decaying(80)
    assert recipe.decaying(81)


def test_a_model_that_does_not_ship_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TASKLAB_DATA", str(tmp_path))
    refuses("'mini_30' do not ship.*pretraining.queue", loading.load, "mini_30")
