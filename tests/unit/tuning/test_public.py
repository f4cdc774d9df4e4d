"""Penalties of TAK and DELTA as their authors' code computes them, frozen by `freeze_public.py`.

That code normalises features first; so does the model here. Three of its scales are others: it
divides B by the number of tokens, averages blocks of normalisations over all tasks' images where
these are sums of tasks' means here, and in EK-FAC sums them over images.
"""

import json
from pathlib import Path

import pytest
import torch

from tasklab.tuning import kronecker, penalties
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
