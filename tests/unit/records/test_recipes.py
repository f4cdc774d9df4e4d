"""The table of published recipes against the code that it speaks of."""

import functools
import re

import pytest

from tasklab.analyses.merging import registry
from tasklab.evidence.records import recipes
from tasklab.tuning import methods, penalties
from tasklab.tuning.recipe import recipe

ROWS = list(recipes.read_recipes().itertuples(index=False))
HELD = [row for row in ROWS if row.where]


def held(row):
    """Return the value in code that a row names."""
    kind, _, rest = row.where.partition(".")
    if kind == "tuning":
        return functools.reduce(getattr, rest.split("."), methods.TABLE[row.method])
    if kind == "run":
        return getattr(recipe("vitb32", "Cars", row.method, suite="paper"), rest)
    if kind == "images":
        return penalties.images(row.method)
    rule = registry.METHODS[row.method]
    return {"option": rule.options, "fixed": rule.fixed}[kind][rest] if rest else rule.values


@pytest.mark.parametrize("row", HELD, ids=lambda row: f"{row.method} {row.where}")
def test_values_are_those_of_the_code(row):
    assert repr(held(row)) == row.value


NUMBERS = [row for row in HELD if isinstance(held(row), float | int)]


@pytest.mark.parametrize("row", NUMBERS, ids=lambda row: f"{row.method} {row.where}")
def test_numbers_are_said_as_they_are(row):
    said = {float(n) for n in re.findall(r"[0-9.]+(?:e-[0-9]+)?", row.ours)}
    assert float(held(row)) in said or (row.where, row.value) == ("tuning.published.power", "0.5")


def test_every_published_method_has_its_line():
    merges = {name for name, one in registry.METHODS.items() if one.paper}
    tuned = {name for name, one in methods.TABLE.items() if one.penalty}
    assert set(recipes.lines()) == merges | tuned
    table = recipes.recipe_table()
    assert all(f"| {one} |" in table for one in ("TIES", "DELTA", "τJp, linearized"))


def test_a_line_has_the_differences_alone():
    lines = recipes.lines()
    assert lines["wudi"] == "as published."
    assert lines["average"] == (
        "published / ours: coefficient: 1 / 1, or chosen on validation images."
    )
    assert "512 of the control task" in lines["delta"] and "clipping" not in lines["delta"]
    assert "clipping: none / at norm 1" in lines["delta_even"]
