"""TAK and DELTA against what their authors' code computes, frozen by `freeze_public.py`.

That code normalises features first; so does the model here. Three of its scales are others: it
divides B by the number of tokens, averages blocks of normalisations over all tasks' images where
these are sums of tasks' means here, and in EK-FAC sums them over images.
"""

import json
from pathlib import Path

import pytest
import torch

from tasklab.tuning import distillation, kronecker, penalties, steps
from tasklab.tuning.recipe import FineTune
from tests.unit.tuning import freeze_public as small
from tests.vectors import plain

FROZEN = json.loads(Path(__file__).with_name("public.json").read_text())["numbers"]
TOKENS = 2


def encoder():
    return plain(small.Small(unit=True), image_size=2)


def gradient(name, key, like):
    return like.new_tensor(FROZEN[name]["gradient"][key]).reshape(like.shape)


def compare(factors, known):
    """Compare with frozen penalties of mlp, proj and ln, each a sum of some times a scale."""
    delta = small.change(10)
    value, gradients = penalties.curved(delta, factors)
    expected = sum(
        scale * FROZEN[name]["value"][kind][0] for kind in known for name, scale in known[kind]
    )
    assert float(value) == pytest.approx(expected, rel=1e-9)
    assert gradients.keys() == delta.keys()
    for key, x in gradients.items():
        (kind,) = (kind for kind in known if kind in key.replace("c_proj", ""))
        expected = sum(scale * gradient(name, key, x) for name, scale in known[kind])
        torch.testing.assert_close(x, expected, rtol=1e-8, atol=1e-10)


def test_tak_is_that_of_its_authors():
    factors = kronecker.factors(encoder(), [small.images(task) for task in range(2)], draws=None)
    alone = [("tak of 0", 1), ("tak of 1", 1)]
    compare(factors, {"mlp": [("tak", TOKENS)], "proj": [("tak", 1)], "ln": alone})


def test_ek_fac_is_that_of_its_authors():
    x = small.images(1)
    factors = kronecker.corrected(encoder(), x, draws=None)
    one = [("ek_fac", 1)]
    compare(factors, {"mlp": one, "proj": one, "ln": [("ek_fac", 1 / len(x))]})


def problem():
    config, model = FineTune(task="LandCover", method="delta", penalty=0.0), encoder()
    origin = {n: x.detach() for n, x in model.params.items()}
    head = lambda f: f @ small.noise(90, 3, 4).T.to(f)  # noqa: E731
    return model, steps.Problem(config, head, origin, small.change(10), {})


def close(a, value, gradients):
    name = f"delta at {a}"
    assert value.item() == pytest.approx(FROZEN[name]["value"]["student"][0], rel=1e-6)
    assert gradients.keys() == FROZEN[name]["gradient"].keys()
    for key, x in gradients.items():
        torch.testing.assert_close(x, gradient(name, key, x), rtol=1e-5, atol=1e-7)


def test_a_step_of_delta_is_that_of_its_authors(monkeypatch):
    model, own = problem()
    monkeypatch.setattr(distillation, "coefficient", lambda seed, step: 1.0)
    teacher = {distillation.PREFIX + n: t for n, t in small.change(30).items()}
    one = distillation.Distilled(own, model, None, teacher, 0)
    close(1.0, *one("a step", small.images(1), torch.arange(7) % 3, None))


def test_the_distance_of_delta_along_its_path_is_that_of_its_authors():
    model, own = problem()
    args = model, model, small.change(30), 0.6, small.images(1), torch.arange(7) % 3
    value, found = distillation.distance(own, *args)
    close(0.6, value, {n: x for n, x in found.items() if n in own.delta})
