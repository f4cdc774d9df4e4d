"""Which word belongs to which folder, in whatever form words are given."""

import numpy as np
import pandas as pd
import pytest

from tasklab.tasks.suites import Task
from tasklab.tasks.wording import by_order, templates_for, words_for
from tests.helpers import refuses

LETTERS = ("a", "b", "c")
NUMBERS = tuple(sorted(map(str, range(1, 13))))  # 1, 10, 11, 12, 2, ...


@pytest.mark.parametrize(
    "names",
    [
        NUMBERS, ("10", "2", "9"), ("-1", "-2"), ("0.25", "0.5", "1e-3"),
        ("class1", "class10", "class2"), ("Banana", "apple", "cherry"), ("zoo", "\xe9cole"),
    ],
)  # fmt: skip
def test_a_list_is_refused_where_orders_differ(names):
    words = [f"word {'xyzuvwklmnop'[n] * 3}" for n in range(len(names))]
    refuses("in alphabetical order; .* Give a mapping", words_for, names, words, "here")
    assert words_for(names, dict(zip(names, words, strict=True)), "here") == tuple(words)


@pytest.mark.parametrize("names", [tuple("0123456789"), ("01", "02", "10"), ("2", "9", "10")])
def test_a_list_is_taken_where_there_is_one_order(names):
    """The last names are those of a data set with an order of its own."""
    words = [f"word {'xyzuvwklmn'[n] * 3}" for n in range(len(names))]
    assert words_for(names, words, "here") == tuple(words)


@pytest.mark.parametrize(
    "classes",
    [
        ["ant", "bee", "cat"],
        {"c": "cat", "a": "ant", "b": "bee"},  # folders
        {2: "cat", 0: "ant", 1: "bee"},  # labels
        {"2": "cat", "0": "ant", "1": "bee"},
        {"cat": 2, "ant": 0, "bee": 1},
        {"cat": "c", "ant": "a", "bee": "b"},
        iter(["ant", "bee", "cat"]),
        pd.Series(["cat", "ant", "bee"], ["c", "a", "b"]),
        pd.Series(["ant", "bee", "cat"]),
        {np.int64(2): "cat", np.int64(0): "ant", np.int64(1): "bee"},
    ],
)
def test_every_form_names_folder_a_ant(classes):
    assert words_for(LETTERS, classes, "here") == ("ant", "bee", "cat")


def test_numbers_and_names_mean_their_folders():
    words = {n: f"word {n}" for n in range(12, 0, -1)}
    found = words_for(NUMBERS, words, "here")
    assert found == tuple(f"word {name}" for name in NUMBERS)
    assert words_for(("01", "02"), {2: "two", 1: "one"}, "here") == ("one", "two")
    assert words_for(None, {1: "dog", 0: "cat"}, "here") == ("cat", "dog")
    refuses("'3' and unknown are 0", words_for, ("1", "2", "3"), {0: "a", 1: "b", 2: "c"}, "here")
    words = ("rain", "a May day")
    assert by_order(("April", "May"), list(words), words) == ["April = rain"]
    assert not by_order(("April", "May"), {"April": "rain", "May": "a May day"}, words)
    assert not by_order(("1", "2"), list(words), words) and not by_order(None, words, words)
    folders = ("bird", "cat", "hot_dog")
    assert words_for(folders, ["hot dog", "Cat", "bird"], "here") == ("bird", "Cat", "hot dog")
    assert words_for(folders, {"cat": 1, "hot dog": 0, "bird": 2}, "x")[2] == "hot dog"


@pytest.mark.parametrize("labels", [(0, 1), (1, 0)])
def test_labels_of_the_folders_themselves_are_no_words(labels):
    pairs = dict(zip(("ant", "ice_cream"), labels, strict=True))  # torchvision's `class_to_idx`
    other = {label: name for name, label in pairs.items()}
    for classes in (pairs, other):
        assert words_for(("ant", "ice_cream"), classes, "here") == ("ant", "ice cream")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("birds", "cats", "dogs"), ["a cat", "a dog", "a bird"]),
        (("0", "1", "2"), ["digit 1", "digit 2", "digit 3"]),
        (("cat", "dog"), ["dog", "animal"]),
    ],
)
def test_words_that_read_like_another_folder_are_refused(names, words):
    refuses("and it reads like", words_for, names, words, "here")


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        ({"ant", "bee", "cat"}, "is a set, which has no order"),
        (frozenset("xyz"), "is a set, which has no order"),
        ({"a": "ant", "b": "bee"}, "it lacks 'c'"),
        ({"a": "ant", "b": "bee", "d": "dog"}, "it lacks 'c' and unknown are 'd'"),
        ({"a": "ant", "b": "bee", "c": 3}, "each of classes must be a name, not 3"),
        ({}, "it lacks 'a', 'b', 'c'"),
        (["ant", "bee"], "has 3 classes .*, not 2"),
    ],
)
def test_what_names_no_class_is_refused(classes, says):
    refuses(says, words_for, LETTERS, classes, "here")


@pytest.mark.parametrize(
    "pair",
    [("Cat", "cat"), ("a  b", "a b"), ("caf\xe9", "cafe\u0301"), ("R&amp;B", "r&b"), ("x", "x ")],
)
def test_prompts_that_tokenizers_read_alike_are_refused(pair):
    refuses("prompts", Task, name="t", classes=(*pair, "dog"), templates=("{}",), stand_in_for="")


def prompts(templates, names=("ant", "big_bee"), words=("ant", "big bee")):
    made = templates_for(names, words, templates, "here")
    return Task(name="x", classes=words, templates=made, stand_in_for="").prompts()


def test_a_function_writes_the_prompt_of_each_class():
    def rule(word):
        return f"a photo of {'an' if word[0] in 'aeiou' else 'a'} {word}."

    assert prompts(rule) == ["a photo of an ant.", "a photo of a big bee."]
    assert prompts(["{}!", rule])[:2] == ["ant!", "a photo of an ant."]
    assert templates_for(None, ("ant", "bee"), [lambda c: f"one {c}."], "x") == ("one {}.",)
    refuses("fails for the class 'ant': KeyError: 'ant'", prompts, {"a": 1}.__getitem__)
    refuses("returns 3 for the class 'ant'", prompts, [lambda word: len(word)])


def test_prompts_by_class():
    given = {"big_bee": "a bee", "ant": ["an ant", "ants of a {}"]}
    assert prompts(given) == ["an ant", "ants of a ant", "a bee", "a bee"]
    assert prompts({"Big bee": ["a bee"], "ant": ["an ant"]}) == ["an ant", "a bee"]
    three = {"ant": ["1", "2", "3"], "big_bee": ["4", "5"]}
    assert prompts(three) == [*"123123", *"454545"]  # each as often as others of its class
    refuses("no prompts of big_bee", prompts, {"ant": ["x"]})
    refuses("prompts of 'cat' belong to none", prompts, given | {"cat": "x"})
    refuses("prompts of 'big bee' are given twice", prompts, given | {"big bee": "x"})
    refuses("each of templates of 'ant' must be a name, not 3", prompts, given | {"ant": [3]})
    refuses("13 to 17 prompts a class", prompts, {"ant": [*"x" * 13], "big_bee": [*"y" * 17]})
