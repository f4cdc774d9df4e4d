"""Options without an effect: what is refused, what is pointed out, and what has an effect."""

import pytest

from tasklab.cli import idle
from tests.helpers import refuses

RUN, FILE = "Signs@nonlinear", "a.safetensors"
WHY = "no vector is a run of the store (TASK@METHOD)"


@pytest.mark.parametrize(
    ("given", "names", "more", "expected"),
    [
        ({}, [FILE], {}, ""),
        ({"model": "mini", "lr": 0.1}, [FILE], {}, f"--lr has no effect: {WHY}."),
        ({"lr": 0.1}, [FILE], {}, ""),  # of which model nobody knows yet
        ({"model": "mini", "lr": 0.1}, [RUN, FILE], {}, ""),
        ({"model": "mini", "steps": 500}, [FILE], {}, f"--steps has no effect: {WHY}."),
        ({"model": "mini", "steps": 2}, [FILE], {}, ""),  # a rehearsal, of few images
        ({"model": "mini", "data_root": "x"}, [FILE], {}, ""),
        (
            {"model": "mini", "data_root": "x", "steps": 2},
            [FILE],
            {"looks": False},
            f"--steps, --data-root have no effect: {WHY}, and this merge looks at no images.",
        ),
        ({"model": "mini", "device": "cpu"}, [FILE], {"looks": False}, ""),
        ({"model": "mini_dino", "lr": 0.1}, [FILE], {}, ""),  # its probes are of runs
        ({"model": "mini"}, [RUN, FILE], {"base": "b"}, ""),  # the file may start from it
        ({"model": "mini"}, [], {"base": "b"}, ""),
        ({"model": "mini", "seeds": 1}, [RUN], {}, ""),
    ],
)
def test_parameters_without_an_effect_are_named(given, names, more, expected, tmp_path):
    if "data_root" in given:
        given = given | {"data_root": tmp_path}
    assert idle.check(given, names, own=False, **more) == expected


def test_contradictions_are_refused():
    refuses("--base would have no effect", idle.check, {}, [RUN], own=False, base="b")
    refuses("leave --init out", idle.check, {"init": "random"}, [RUN], own=False, base="b")
    refuses("stands for several runs", idle.check, {"seeds": 2}, [RUN], own=False)
    refuses("leave --suite out", idle.check, {"suite": "mini"}, [FILE], own=True)
    refuses("minilm reads texts", idle.check, {"model": "minilm"}, [FILE], own=True)
    assert (
        idle.check({"suite": "wordnet"}, [FILE], own=False) == ""
    )  # of a model that its file names


def test_one_option_is_it_and_several_are_them():
    for given, told in (
        ({"at_once": 3}, "--at-once would have no effect: why. Leave it out."),
        ({"FILE": "x", "at_once": 3}, "FILE, --at-once would have no effect: why. Leave them out."),
    ):
        assert refuses("no effect", idle.refuse, given, "why") == told
    assert idle.refuse({"a": None, "b": False, "c": "", "d": (), "device": "cpu"}, "why") is None
    assert idle.idle({"device": "cuda"}, "why") == "--device has no effect: why."
