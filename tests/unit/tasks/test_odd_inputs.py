"""What a user may write by mistake, or a program by accident: one sentence, at once."""

import math

import huggingface_hub.constants
import pytest

from tasklab.tasks import drawn, own, small
from tasklab.tasks.images.loader import DecodedImages
from tasklab.tasks.suites import Suite, Task, suite
from tests.helpers import refuses
from tests.layouts import images


class Unspeakable:
    """An object that cannot be written."""

    def __repr__(self):
        raise ValueError


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    root = tmp_path_factory.mktemp("own") / "pets"
    images(root / "cat", root / "dog", count=6)
    return root


def refused(call, *words):
    text = refuses("", call)
    assert text.endswith(".") and "\n" not in text and len(text) < 800, text
    assert all(word in text for word in words), text


def odd(values):
    return pytest.mark.parametrize("value", values, ids=[type(value).__name__ for value in values])


NOTHING = [None, 3, 1.5, True, b"x", [], {}, ("a",), Unspeakable(), print, math.nan, 10**5000]
NO_PATHS = ["", " ", "a\0b", "\ud800", "x" * 5000, "y/" * 3000, "~nosuchuser", "~nosuchuser/x"]
NO_NAMES = ["", " ", ".", "..", "a/b", "a\\b", "a\nb", "a\0", "\ud800", "x" * 300, "é" * 150]
TEMPLATES = [
    *("{} {x}", "{x}", "{0}", "{!r}", "{:d}", "{:>5000000000}", "{.x}", "{[0]}", "{}{}", "", " "),
    *("{", "}", "{}}", "{{}}", "no place", "{}\0", "{}\n", "{}" + "x" * 10**6, [], [""], ["{}", 3]),
    *([None], 3, b"{}", Unspeakable()),
]
CLASSES = [
    *(["a"], ["a", "a"], ["a", " a "], ["a", ""], ["a", " "], ["a", None], ["a", 1], [1, 2], 3, []),
    *("ab", ["a", "b", "c"], ["a\0", "b"], ["a\n", "b"], ["x" * 10**6, "b"], b"ab", Unspeakable()),
]


@odd([*NOTHING, *NO_PATHS])
def test_paths(value, pets):
    refused(lambda: own.from_folder(value), "path")
    if value is not None:
        refused(lambda: DecodedImages(suite=suite("mini"), root=value), "data_root")


@odd([*NOTHING[1:], *NO_NAMES])
def test_names_of_tasks(value, pets):
    refused(lambda: own.from_folder(pets, name=value), "cannot name a task")
    refused(lambda: own.from_hub("me/pets", name=value), "cannot name a task")
    refused(lambda: Task(name=value, classes=("a", "b"), templates=("{}",), stand_in_for=""))


@odd(TEMPLATES)
def test_templates(value, pets):
    refused(lambda: own.from_folder(pets, templates=value), "template")


@odd(CLASSES)
def test_classes(value, pets):
    refused(lambda: own.from_folder(pets, classes=value), "class")
    if value != ["a", "b", "c"]:
        refused(lambda: Task(name="x", classes=value, templates=("{}",), stand_in_for=""), "class")


def test_braces_that_are_meant(pets):
    assert own.from_folder(pets, templates="{{}} {}").templates[0].format("cat") == "{} cat"
    assert own.from_folder(pets, classes=["{}", "{x}"]).classes == ("{}", "{x}")


@odd([*NOTHING, "", "a", "a/b/c", "../x", "a/b\n", "a/" + "x" * 99])
def test_data_sets_of_the_hub(value, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    refused(lambda: own.from_hub(value), "owner/name")
    if value is not None and value not in ("a", "a/b/c", "a/" + "x" * 99):
        for field in ("config", "revision", "image", "label"):
            refused(lambda field=field: own.from_hub("me/x", **{field: value}), f"{field}=")


@odd([*NOTHING, "", "Mini", "mini\0"])
def test_suites_and_their_tasks(value):
    refused(lambda: suite(value), "unknown suite")
    refused(lambda: suite("mini")[value], "unknown task")
    refused(lambda: Suite.from_tasks(value), "a suite is made of tasks")
    refused(lambda: drawn.images_of(value), "images are those of a suite")
    refused(lambda: drawn.DrawnImages(suite("mini")).load("Signs", value), "unknown split")
    if value is not None:
        refused(lambda: Suite.from_tasks(suite("mini").tasks[0], control=value), "made of tasks")
        for name in ("jobs", "side"):
            if value not in (3, True):
                refused(lambda name=name: DecodedImages(suite=suite("mini"), **{name: value}), name)
    if value not in (3, True):
        refused(lambda: small.classes(value), "index")


@odd([*NOTHING[2:3], *NOTHING[4:], 0, -1, 501, "7"])
def test_numbers_of_images(value):
    told = "Signs/val has 500 images: n must be from 1 to 500"
    refused(lambda: drawn.DrawnImages(suite("mini")).load("Signs", "val", n=value), told)
