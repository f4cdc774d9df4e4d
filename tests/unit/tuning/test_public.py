"""TAK and DELTA against what their authors' code computes, frozen by `freeze_public.py`.

That code normalises features. The published methods are compared as they are; the variants with
equal weights, on a model that normalises by itself, with three of its scales taken off: the code
divides B by the number of tokens, averages blocks of normalisations over all tasks' images where
the variants sum tasks' means, and in EK-FAC sums them over images.
"""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tasklab.tuning import distillation, kronecker, methods, penalties, steps
from tasklab.tuning.recipe import FineTune
from tests.unit.tuning import freeze_public as small
from tests.vectors import plain

FROZEN = json.loads(Path(__file__).with_name("public.json").read_text())["numbers"]
TOKENS = 2


def encoder(unit=True):
    return plain(small.Small(unit=unit), image_size=2)


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


def weighted(name, own):
    return {"mlp": [(name, 1)], "proj": [(name, own.projection)], "ln": [(name, own.blocks)]}


def test_published_tak_and_delta_weigh_the_factors_of_their_authors():
    tak, delta = (methods.TABLE[name].published for name in ("tak", "delta"))
    each = [small.images(task) for task in range(2)]
    found = kronecker.factors(encoder(unit=False), each, draws=None, published=tak)
    compare(found, weighted("tak", tak))
    found = kronecker.corrected(encoder(unit=False), each[1], draws=None, published=delta)
    compare(found, weighted("ek_fac", delta))


def test_tak_is_that_of_its_authors():
    factors = kronecker.factors(encoder(), [small.images(task) for task in range(2)], draws=None)
    alone = [("tak of 0", 1), ("tak of 1", 1)]
    compare(factors, {"mlp": [("tak", TOKENS)], "proj": [("tak", 1)], "ln": alone})


def test_ek_fac_is_that_of_its_authors():
    x = small.images(1)
    factors = kronecker.corrected(encoder(), x, draws=None)
    one = [("ek_fac", 1)]
    compare(factors, {"mlp": one, "proj": one, "ln": [("ek_fac", 1 / len(x))]})


def problem(method="delta_even", *, unit=True):
    config, model = FineTune(task="LandCover", method=method, penalty=0.0), encoder(unit)
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
    monkeypatch.setattr(distillation, "coefficient", lambda config, step: 1.0)
    teacher = {distillation.PREFIX + n: t for n, t in small.change(30).items()}
    one = distillation.Distilled(own, model, None, teacher, 0)
    close(1.0, *one("a step", small.images(1), torch.arange(7) % 3, None))


def test_a_step_of_published_delta_is_that_of_its_authors(monkeypatch):
    entry = dataclasses.replace(methods.TABLE["delta"], teacher=10.0)  # as frozen
    monkeypatch.setattr(distillation, "TABLE", {**methods.TABLE, "delta": entry})
    monkeypatch.setattr(distillation, "coefficient", lambda config, step: 1.0)
    model, own = problem("delta", unit=False)
    teacher = {distillation.PREFIX + n: t for n, t in small.change(30).items()}
    unit = own._replace(head=lambda f: own.head(F.normalize(f, dim=-1)))
    # the frozen student normalises its features, and the teacher's head none of the linearized ones
    for its_head, taught in ((unit, False), (own, True)):
        one = distillation.Distilled(its_head, model, None, teacher, 0)
        value, found = one("a step", small.images(1), torch.arange(7) % 3, None)
        for key, x in found.items():
            if key.startswith(distillation.PREFIX) == taught:
                known = gradient("delta at 1.0", key, x)
                torch.testing.assert_close(x, known, rtol=1e-5, atol=1e-7)
        expected = FROZEN["delta at 1.0"]["value"]["student"][0]
        assert taught or value.item() == pytest.approx(expected, rel=1e-6)


def test_the_distance_of_delta_along_its_path_is_that_of_its_authors():
    model, own = problem()
    args = model, model, small.change(30), 0.6, small.images(1), torch.arange(7) % 3
    value, found = distillation.distance(own, *args)
    close(0.6, value, {n: x for n, x in found.items() if n in own.delta})
