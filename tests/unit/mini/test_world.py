"""The drawn world: deterministic, balanced, disjoint, and readable by the small CLIP."""

import re

import pytest
import torch

from pretraining import classes, stream
from pretraining.install import EXTRA, SHIPPED
from pretraining.recipes import JOBS
from tasklab import mini
from tasklab.mini import catalog, sampling, styles
from tasklab.mini.captions import KINDS
from tasklab.mini.catalog import SHAPES, TASKS, with_articles
from tasklab.mini.clip import CONTEXT
from tasklab.mini.draw import Rng
from tasklab.mini.text import TEXT_TASKS, write
from tasklab.tasks.suites import suite
from tests.helpers import refuses

NAMES = [task["name"] for task in TASKS]
FORBIDDEN = re.compile(r"\b[aA] [aeiou]|\ban [^aeiou ]")


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_balanced_and_splits_share_none(name):
    classes = len(TASKS[NAMES.index(name)]["classes"])
    images, labels = mini.sample(name, "val", 4 * classes)
    again, same = mini.sample(name, "val", 4 * classes)
    assert images.shape == (4 * classes, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert torch.equal(images, again)
    assert torch.equal(labels, same)
    assert torch.bincount(labels, minlength=classes).tolist() == [4] * classes
    assert len(torch.unique(images.flatten(1), dim=0)) == len(images)
    parts = [mini.sample(name, split, 40)[0].flatten(1) for split in sampling.SPLITS]
    together = torch.cat(parts)
    assert len(torch.unique(together, dim=0)) == len(together)


def test_handwritten_splits_share_no_source_and_classes_no_name():
    digits, labels = sampling.written_digits()
    rows = torch.cat([torch.arange(1797)[part] for part in sampling._SHEETS.values()])
    assert rows.tolist() == list(range(1797)) and len(labels) == 1797
    assert len(torch.unique(digits.flatten(1), dim=0)) == 1797
    world = (*suite("mini").tasks, suite("mini").control)
    texts = [text for task in world for text in task.prompts()]
    texts += stream.draw(0, 0, 300).captions
    for task in TEXT_TASKS:
        texts += write(task["name"], "val", 100)[0]
    assert [text for text in texts if FORBIDDEN.search(text)] == []
    expected = "an airport and a bridge , an orange"
    assert with_articles("a airport and a bridge , a orange") == expected
    tasks = {name for task in TASKS if not task.get("control") for name in task["classes"]}
    for names in classes.CLASSES.values():
        assert len(set(names)) == len(names)
        assert not set(names) & tasks
    assert set(classes.FEW) & set(SHAPES) == set(SHAPES)  # the control's classes are among the few


def test_names_prompts_and_sizes_are_the_protocols():
    refuses("did you mean 'Textures'", mini.sample, "Texture", "val", 8)
    refuses("did you mean 'test'", mini.sample, "Textures", "tests", 8)
    for task in TASKS:
        for name in task["classes"]:
            for form in task["templates"]:
                assert len(form.format(name).split()) + 2 <= CONTEXT
    assert catalog.SIZES == {"train": 3000, "val": 500, "test": 1000}
    assert catalog.CONTROL_SIZES == {"val": 2000, "test": 2000}
    assert {*SHIPPED} | EXTRA == {*JOBS} and not {*SHIPPED} & EXTRA


@pytest.mark.parametrize("kind", KINDS)
def test_captions_are_in_the_vocabulary(kind):
    captions = stream.draw_kind(kind, 100, Rng(5)).captions
    words = {word for caption in captions for word in caption.split()}
    tokens = mini.tokenize(sorted(words))
    assert ((tokens > 0).sum(1) == 3).all()  # begin, one token, end


@pytest.mark.parametrize("name", styles.FILTERS)
def test_a_filter_changes_a_picture_and_tells_pictures_apart(name):
    images = mini.sample("Places", "train", 30)[0].float() / 255
    seen = styles.FILTERS[name](images)
    assert seen.shape == images.shape
    assert (seen.clamp(0, 1) - images).abs().mean() > 0.02
    assert len(torch.unique(seen.flatten(1), dim=0)) == 30
