"""The table of chapters names what exists, and needs no torch."""

from __future__ import annotations

import pytest

from tasklab import chapters
from tasklab.chapters import CHAPTERS
from tasklab.errors import TasklabError
from tasklab.models.zoo import FAMILIES
from tasklab.study import parts
from tasklab.tuning.methods import EDITS


@pytest.mark.parametrize("name", CHAPTERS)
def test_it_names_what_exists(name):
    entry = CHAPTERS[name]
    assert set(entry.methods) <= set(EDITS)
    for roles in FAMILIES:
        assert {*entry.needs("quick"), *entry.needs("full")} <= set(roles)
    assert entry.parts == tuple(parts.PARTS[name])
    assert entry.parts[0] == "editing"


def test_the_full_preset_needs_no_less():
    for entry in CHAPTERS.values():
        assert set(entry.needs("quick")) <= set(entry.needs("full"))
    assert CHAPTERS.keys() == parts.PARTS.keys()


def test_a_chapter_on_attention_refuses_a_model_without():
    for model in ("convnext", "mini_convnext"):
        with pytest.raises(TasklabError, match=f"attention, which model '{model}' does not have"):
            chapters.check("linear_layers", model)
        chapters.check("tangent", model)
    for model in ("mini", "vitb32", "vitb16_in1k", "timm/resnet50.a1_in1k"):
        chapters.check("linear_layers", model)
    with pytest.raises(TasklabError, match="unknown chapter 'tangnet': did you mean 'tangent'"):
        chapters.check("tangnet", "mini")
