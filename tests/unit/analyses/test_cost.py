"""Costs: counts against closed forms, equal gradients, ratios within a round, refusals."""

import functools

import pytest
import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from torch import nn
from torch.func import functional_call

from tasklab.analyses import cost
from tasklab.analyses.meters import flops, peak_bytes
from tasklab.models.heads import Head
from tasklab.models.loading import Encoder
from tasklab.tuning.methods import trainable
from tests.helpers import refuses

BATCH, WIDTH, LAYERS = 5, 7, 4
CLASSES, IMAGES, SIZE = 3, 8, 16


class Functional:
    """An encoder of the kind that `gradients` takes, with its parameters and a task vector."""

    def __init__(self, module, x):
        self.module, self.x = module.double().eval().requires_grad_(False), x.double()
        self.params = {name: p.detach().clone() for name, p in self.module.named_parameters()}
        self.tau = {name: 0.1 * torch.randn_like(p) for name, p in self.params.items()}

    def __call__(self, params, x):
        return functional_call(self.module, dict(params), (x,))

    def held(self, variant):
        if cost.VARIANTS[variant] == "linearized":
            return self.tau
        return {name: self.params[name] + self.tau[name] for name in self.tau}

    def gradients(self, variant):
        held = self.held(variant)
        return cost.gradients(variant, self, self.params, held, self.x, lambda f: f.sin().sum())


def mlp(bias=False):
    torch.manual_seed(0)
    layers = [f() for _ in range(LAYERS) for f in (lambda: nn.Linear(WIDTH, WIDTH, bias), nn.Tanh)]
    return Functional(nn.Sequential(*layers), torch.randn(BATCH, WIDTH))


def tower():
    torch.manual_seed(0)
    vision = CLIPVisionCfg(layers=2, width=32, head_width=16, patch_size=8, image_size=SIZE)
    text = CLIPTextCfg(context_length=4, vocab_size=8, width=8, heads=1, layers=1)
    return CLIP(16, vision, text).visual.eval().requires_grad_(False)


@functools.cache
def small():
    module = tower()
    encoder = Encoder.of(module, name="mini", init="random", image_size=SIZE)
    images = torch.randint(0, 256, (IMAGES, 3, SIZE, SIZE), dtype=torch.uint8)
    return encoder, Head(torch.randn(CLASSES, 16)), images, torch.arange(IMAGES) % CLASSES


# --- Products of matrices ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("variant", "of_a_step"),
    [  # the first layer's input has neither a gradient nor a tangent
        ("standard", 3 * LAYERS - 1),
        ("ours", 5 * LAYERS - 2),
        ("listing", 5 * LAYERS - 1),  # makes a tangent of zeros for it
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_training_steps(variant, of_a_step, bias):
    model, product = mlp(bias), 2 * BATCH * WIDTH**2
    assert flops(lambda: model.gradients(variant)) == of_a_step * product


# --- The variants compute the same ---------------------------------------------------------------
def vision():
    return Functional(tower(), torch.randn(BATCH, 3, SIZE, SIZE))


@pytest.mark.parametrize("make", [mlp, vision])
def test_ours_and_the_listing_agree(make):
    model = make()
    ours, listing, other = (model.gradients(v) for v in ("ours", "listing", "standard"))
    assert list(ours) == list(listing) == list(model.params)
    torch.testing.assert_close(ours, listing, rtol=1e-9, atol=1e-12)
    assert any((ours[name] - other[name]).abs().max() > 1e-3 for name in ours)  # tau is not small


def test_steps_are_autograds_at_theta():
    model = mlp(bias=True)
    for name, p in model.module.named_parameters():
        p.data.add_(model.tau[name])
        p.requires_grad_()
    value = model.module(model.x)
    value.sin().sum().backward()
    found = model.gradients("standard")
    for name, p in model.module.named_parameters():
        torch.testing.assert_close(found[name], p.grad)
    whole = model.gradients("standard")
    held = {"2.weight": model.params["2.weight"] + model.tau["2.weight"]}
    rest = {name: model.params[name] + model.tau[name] for name in model.params}
    part = cost.gradients("attention", model, rest, held, model.x, lambda f: f.sin().sum())
    assert list(part) == ["2.weight"]
    torch.testing.assert_close(part["2.weight"], whole["2.weight"])


# --- Time and memory -----------------------------------------------------------------------------
def test_ratios_are_taken_within_a_round():
    # The machine slows down tenfold in one round: medians of the seconds alone would tell 5.
    taken = {"standard": [(1, 1), (10, 1), (1, 1)], "ours": [(2, 3), (20, 3), (5, 3)]}
    found = cost._summary(taken)
    assert found["ours"]["time_ratio"] == pytest.approx((2, 2, 3.5))
    assert found["ours"]["seconds"] == pytest.approx((5, 3.5, 12.5))
    assert found["ours"]["cpu_seconds"] == (3, 3, 3)
    assert found["standard"]["time_ratio"] == (1, 1, 1)
    model = vision()
    peaks = {v: peak_bytes(lambda v=v: model.gradients(v)) for v in ("ours", "listing")}
    assert peaks["listing"] > 1.3 * peaks["ours"]


# --- The table -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def table():
    return cost.measure(*small(), rounds=2)


def value(table, metric, variant="standard"):
    (found,) = table.query("metric == @metric and variant == @variant")["value"]
    return found


def test_the_table_is_complete(table):
    assert not table["value"].isna().any()
    assert not table.duplicated(["variant", "metric"]).any()
    assert set(table["variant"]) == set(cost.VARIANTS)
    assert (table["low"] <= table["value"]).all() and (table["value"] <= table["high"]).all()
    assert set(table["n"]) == {2}
    assert set(table.query("variant == 'listing'")["method"]) == {"linearized"}
    encoder = small()[0]
    for variant, method in cost.VARIANTS.items():
        names = trainable(encoder.params, method, "mini")
        count = sum(encoder.params[name].numel() for name in names)
        assert value(table, "trainable", variant) == count


def test_what_is_held_between_steps(monkeypatch):
    """Weights, tau where the model is linearized, and AdamW's two moments and step counts."""
    monkeypatch.setattr(cost, "peak_bytes", lambda *_: 0)
    found, plain = (cost.measure(*small(), rounds=1, optimiser=on) for on in (True, False))
    encoder = small()[0]
    whole = sum(p.numel() for p in encoder.params.values())
    for variant, copies in (("standard", 1), ("ours", 2), ("listing", 2), ("attention", 1)):
        names = trainable(encoder.params, cost.VARIANTS[variant], "mini")
        moved = sum(encoder.params[name].numel() for name in names)
        held = copies * whole + 2 * moved + len(names)
        assert value(found, "peak_memory", variant) * 2**20 == pytest.approx(4 * held)
        if variant != "attention":
            assert value(plain, "peak_memory", variant) * 2**20 == pytest.approx(4 * copies * whole)


def test_flops_of_the_methods(monkeypatch):
    """Training attention alone leaves out the products for weights that it does not train."""
    steps = {}
    monkeypatch.setattr(cost, "turns", lambda given, rounds: steps.update(given) or {})
    monkeypatch.setattr(cost, "_summary", lambda _: dict.fromkeys(steps, {}))
    encoder, head, images, labels = small()
    cost.measure(encoder, head, images[:4], labels[:4])
    counted = {variant: flops(step) for variant, step in steps.items()}
    assert counted["ours"] / counted["standard"] == pytest.approx(5 / 3, abs=0.06)
    images, tokens, width, layers, pixels = 4, 5, 32, 2, 3 * 8 * 8
    mlp_weights = layers * 8 * width**2 * images * tokens
    patches, projection = images * (tokens - 1) * width * pixels, images * width * 16
    below = images * tokens * 3 * width**2  # nothing to train below the first q, k, v
    left_out = 2 * (mlp_weights + patches + projection + below)
    assert counted["attention"] == counted["attention_bias"] == counted["standard"] - left_out
    assert counted["attention_mlp"] == counted["attention"] + 2 * mlp_weights


def test_nothing_is_trained_and_gradients_reach_the_optimiser(monkeypatch):
    moved, grads = [], []
    plain = torch.optim.AdamW.step

    def step(self, *args):
        tensors = self.param_groups[0]["params"]
        before = [p.detach().clone() for p in tensors]
        grads.append(max(p.grad.abs().max().item() for p in tensors))
        plain(self, *args)
        moved.append(max((p - q).abs().max().item() for p, q in zip(tensors, before, strict=True)))

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    encoder, *rest = small()
    before = {name: p.clone() for name, p in encoder.params.items()}
    found = cost.measure(encoder, *rest, variants=["attention", "ours"], rounds=1)
    assert "time_ratio" not in set(found["metric"])  # of no standard step
    assert max(moved) == 0 and all(torch.equal(before[k], encoder.params[k]) for k in before)
    assert sorted(grads)[1] == 0 < sorted(grads)[2]  # two make the state, the others are real


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variants": ["standart"]}, "unknown variant 'standart'"),
        ({"variants": []}, "at least one variant"),
        ({"rounds": 0}, "rounds must be at least 1, not 0"),
        ({"images": torch.zeros(0, 3, SIZE, SIZE, dtype=torch.uint8)}, "0 images needs a label"),
        ({"labels": torch.full((IMAGES,), CLASSES)}, "label from 0 to 2"),
        ({"labels": torch.zeros(IMAGES - 1, dtype=torch.long)}, "8 images needs a label"),
    ],
)
def test_refusals(options, message):
    encoder, head, images, labels = small()
    options = {"images": images, "labels": labels, **options}
    refuses(message, cost.measure, encoder, head, **options)
