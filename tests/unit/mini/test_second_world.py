"""The second world: deterministic, disjoint, spelt rightly; and the first one stays as it was."""

from __future__ import annotations

import hashlib
import re

import pytest
import torch

from tasklab import mini
from tasklab.mini import stream, styles, worlds
from tasklab.mini.catalog import SHAPES, TASKS, with_articles
from tasklab.mini.first_stream import pretraining_shard
from tasklab.mini.text import TEXT_TASKS, encode, vocabulary, write

NAMES = [task["name"] for task in TASKS]
FORBIDDEN = re.compile(r"\b[aA] [aeiou]|\ban [^aeiou ]")


def digest(*parts) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.numpy().tobytes() if torch.is_tensor(part) else repr(part).encode())
    return sha.hexdigest()[:16]


def test_the_first_world_stays_as_it_was():
    """Recorded results and shipped weights rest on its pixels, captions and names."""
    assert digest(TASKS) == "d31c13684396cc2e"
    assert digest(*mini.sample("Signs", "val", 1100)) == "0b4ea1101e56b1cb"
    assert digest(*mini.sample("Scenes", "test", 1100)) == "d2b0c296f6d8cee9"
    assert digest(*pretraining_shard(0, 3, 3000)) == "8bf2caa026031a52"


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_deterministic_balanced_and_unlike_the_first_worlds(name):
    classes = len(TASKS[NAMES.index(name)]["classes"])
    images, labels = mini.sample(name, "val", 4 * classes, 2)
    again, same = mini.sample(name, "val", 4 * classes, 2)
    assert torch.equal(images, again) and torch.equal(labels, same)
    assert torch.bincount(labels, minlength=classes).tolist() == [4] * classes
    first = mini.sample(name, "val", 4 * classes, 1)[0]
    together = torch.cat([images, first]).flatten(1)
    assert len(torch.unique(together, dim=0)) == len(together)


@pytest.mark.parametrize("name", NAMES)
def test_splits_share_no_image(name):
    parts = [mini.sample(name, split, 60, 2)[0].flatten(1) for split in ("train", "val", "test")]
    assert len(torch.unique(torch.cat(parts), dim=0)) == 180


def test_every_split_is_as_large_as_the_protocol_says():
    assert [worlds.size("Signs", s, 2) for s in ("train", "val", "test")] == [3000, 500, 1000]
    assert [worlds.size("Objects", s, 2) for s in ("val", "test")] == [2000, 2000]


@pytest.mark.parametrize("name", styles.FILTERS)
def test_a_filter_changes_a_picture_and_tells_pictures_apart(name):
    images = mini.sample("Places", "train", 30, 1)[0].float() / 255
    seen = styles.FILTERS[name](images)
    assert seen.shape == images.shape
    assert (seen.clamp(0, 1) - images).abs().mean() > 0.02
    assert len(torch.unique(seen.flatten(1), dim=0)) == 30


def test_no_prompt_caption_or_text_has_a_before_a_vowel():
    texts = [text for task in TASKS for text in worlds.prompts(task, 2)]
    texts += stream.draw(0, 0, 3000).captions
    for task in TEXT_TASKS:
        texts += write(task["name"], "val", 100, 2)[0]
    assert [text for text in texts if FORBIDDEN.search(text)] == []
    assert (
        with_articles("a airport and a bridge , a orange") == "an airport and a bridge , an orange"
    )


def test_prompts_differ_from_the_first_worlds_in_articles_alone():
    for task in TASKS:
        first, second = (worlds.prompts(task, world) for world in (1, 2))
        assert [with_articles(text) for text in first] == second
        assert len(first) == len(task["classes"]) * len(task["templates"])


def test_every_word_of_the_second_text_world_is_known():
    assert set(vocabulary(2)) - set(vocabulary(1)) == {"an"}
    unknown = vocabulary(2)["<unk>"]
    for task in TEXT_TASKS:
        for text in write(task["name"], "train", 50, 2)[0]:
            assert unknown not in encode(text, 2)


def test_the_stream_is_reproducible_and_its_captions_fit():
    one, again, other = stream.draw(0, 5, 400), stream.draw(0, 5, 400), stream.draw(1, 5, 400)
    assert torch.equal(one.images, again.images) and one.captions == again.captions
    assert not torch.equal(one.images, other.images)
    tokens = mini.tokenize(one.captions)
    assert (tokens[:, -1] == 0).float().mean() > 0.9
    assert (tokens == tokens.amax(1, keepdim=True)).sum(1).eq(1).all()  # each has its end


def test_supervised_classes_are_named_and_no_class_of_the_eight_tasks():
    tasks = {name for task in TASKS if not task.get("control") for name in task["classes"]}
    for names in stream.CLASSES.values():
        assert len(set(names)) == len(names)
        assert not set(names) & tasks
    assert set(stream.FEW) & set(SHAPES) == set(SHAPES)  # the control's classes are among the few


def test_supervised_labels_name_what_is_shown():
    part = stream.draw(0, 9, 4000)
    shown = part.kind, part.noun, part.form
    few, many = stream.few(*shown), stream.many(*shown, part.tone)
    assert len(few.unique()) == len(stream.FEW)
    for i in range(len(few)):
        assert stream.MANY[many[i]].endswith(stream.FEW[few[i]])
    named = [
        (stream.FEW[f], caption)
        for f, caption in zip(few.tolist(), part.captions, strict=True)
        if stream.FEW[f].startswith("letter") and "letter" in caption
    ]
    right = sum(caption.split("letter ")[-1].startswith(name[7:]) for name, caption in named)
    assert right > 0.5 * len(named)  # the others have a form without the name, or a wrong caption
