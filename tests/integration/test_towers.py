"""Sizes of the full-size towers are those of the networks, built without memory."""

import pytest

from tasklab.models.zoo import REGISTRY, spec
from tests.unit.doctor.test_readiness import products

FULL_SIZE = [name for name, entry in REGISTRY.items() if not entry.shipped]


@pytest.mark.parametrize("name", FULL_SIZE)
def test_parameters_are_those_of_the_models(name):
    import torch

    from tasklab.models import loading

    entry = spec(name)
    with torch.device("meta"):
        model = loading.build(entry)
    own = model.visual if entry.kind == "clip" and entry.text else model
    count = sum(p.numel() for p in own.parameters())
    tower = entry.tower
    assert tower.parameters == count
    if not entry.reads_text:  # which asks for values
        side = 256 if name == "convnext" else 224
        with torch.device("meta"):
            expected = pytest.approx(tower.products, rel=0.01)
            assert products(own, torch.zeros(1, 3, side, side)) == expected
    if own is not model:
        assert tower.text == sum(p.numel() for p in model.parameters()) - count
