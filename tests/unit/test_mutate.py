"""The command that plants faults: which it plants, and that tests without a check let them live."""

import ast
import os

import pytest

from tests import mutate

SOURCE = '''
"""Sums to 1."""
LEAST = 3


def half(x: int = 2) -> float:
    """Return 1 of 2."""
    if x < 0 and x != -1:
        raise ValueError(f"{x + 1} is below 0")
    return min(x, LEAST) / 2 + sum([0.5, 1]) - 1.5


class Box:
    def side(self, flag=True):
        return 1 if flag else 4
'''


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(SOURCE, "utf-8")
    (tmp_path / "test_toy.py").write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport toy\n\n\n"
        "def test_half():\n    assert toy.half(2) == 1 and toy.half(8) == 1.5\n\n\n"
        "def test_nothing():\n    toy.Box().side()\n",
        "utf-8",
    )
    return path


def test_faults_are_of_one_line_and_of_what_is_computed(toy):
    every = list(mutate.faults(toy))
    lines = SOURCE.splitlines()
    for fault in every:
        changed = fault.source().decode().splitlines()
        ast.parse(fault.source())
        assert [n for n, (a, b) in enumerate(zip(lines, changed, strict=True), 1) if a != b] == [
            fault.line
        ]
        assert fault.diff().splitlines()[1:] == ["-" + lines[fault.line - 1],
                                                 "+" + changed[fault.line - 1]]  # fmt: skip
    assert {fault.line for fault in every} == {3, 6, 8, 10, 14, 15}
    texts = {fault.source().decode().splitlines()[9].strip() for fault in every if fault.line == 10}
    assert {
        "return max(x, LEAST) / 2 + sum([0.5, 1]) - 1.5",
        "return min(LEAST, x) / 2 + sum([0.5, 1]) - 1.5",
        "return min(x, LEAST) * 2 + sum([0.5, 1]) - 1.5",
        "return min(x, LEAST) / 2 - sum([0.5, 1]) - 1.5",
        "return min(x, LEAST) / 2 + sum([0.5, 1]) - 3.0",
    } <= texts


def test_a_fault_meets_the_tests_that_reach_its_function(toy):
    every = list(mutate.faults(toy))
    half, side = (next(f for f in every if f.line == line) for line in (10, 15))
    bodies = [body.start for body in mutate.functions(toy)]
    assert bodies == [6, 14]
    tests = {"b": (2.0, [[str(toy), 6]]), "a": (1.0, [[str(toy), 6], [str(toy), 14]])}
    assert mutate.reaching(half, tests, 9) == ["a", "b"] and mutate.reaching(half, tests, 2) == [
        "a"
    ]
    assert mutate.reaching(side, tests, 9) == ["a"]
    constant = next(f for f in every if f.line == 3)
    assert mutate.reaching(constant, tests, 9) == ["a", "b"]


def test_a_fault_is_noticed_where_a_test_asserts_the_value(toy):
    def status(fault):
        tests = [str(toy.with_name("test_toy.py"))]
        return mutate.forked(60, lambda: os._exit(mutate.run(tests, fault, os.devnull)))

    every = list(mutate.faults(toy))
    assert status(None) == 0
    assert status(next(f for f in every if f.line == 10 and f.text == "max")) == 1
    assert status(next(f for f in every if f.line == 15)) == 0  # nothing is asserted there
    assert toy.read_text("utf-8") == SOURCE
