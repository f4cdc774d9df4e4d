"""What another make of processor adds to an interval."""

import dataclasses

import pytest
from scipy import stats

from tasklab.records import machines
from tasklab.records.judgement import verdict
from tasklab.records.schema import MAKE
from tests import rows
from tests.rows import CLAIM

SD, FREEDOM = machines.SPREAD["absolute"]


def two_methods(differences, makes=None):
    table = rows.two_methods(differences, n=None)
    return table if makes is None else table.assign(**{MAKE: table["method"].map(makes)})


def test_the_machine_widens_the_interval():
    differences, one = {0: 1.0, 1: 1.2, 2: 0.9}, dict.fromkeys(("nonlinear", "linearized"), "AMD")
    alone, both = (verdict(CLAIM, two_methods(differences, makes)) for makes in (None, one))
    halves = [(found.interval.high - found.interval.low) / 2 for found in (alone, both)]
    added = 2 * (SD * stats.t.ppf(0.975, FREEDOM)) ** 2  # both sides
    assert halves[1] ** 2 - halves[0] ** 2 == pytest.approx(added)
    assert alone.sources == ("seeds",) and both.sources == ("seeds", "machine")
    assert alone.outcome == "holds" and both.interval.effect == alone.interval.effect
    small = two_methods({0: SD, 1: 1.001 * SD, 2: 0.999 * SD})
    assert verdict(CLAIM, small).outcome == "holds"
    assert verdict(CLAIM, small.assign(**{MAKE: "AMD"})).outcome == "undecided"
    table = two_methods({0: 1.0, 1: 2.0}, dict.fromkeys(("nonlinear", "linearized"), "AMD"))
    assert machines.source(CLAIM, table).variance == pytest.approx(2 * SD**2)
    one = dataclasses.replace(CLAIM, right="pretrained", factor=3.0)
    assert machines.source(one, table).variance == pytest.approx(SD**2)
    half = dataclasses.replace(CLAIM, factor=0.5)
    assert machines.source(half, table).variance == pytest.approx(1.25 * SD**2)
    growing = table.assign(leverage=0.3)
    assert machines.source(CLAIM, growing).variance == pytest.approx(0.6 * SD**2)
    assert machines.source(dataclasses.replace(CLAIM, metric="lambda"), table) is None


def test_sides_of_different_makes_are_counted():
    makes = {"nonlinear": "AMD", "linearized": "Intel"}
    found = verdict(CLAIM, two_methods({0: 3.0, 1: 3.1, 2: 3.2}, makes))
    assert found.mixed == 3
    assert verdict(CLAIM, two_methods({0: 3.0, 1: 3.1})).mixed == 0
    assert found.outcome == "holds" and found.sources == ("seeds", "machine")


def test_sides_of_different_makes_decide_nothing_that_was_not_measured(monkeypatch):
    sure, alike = {0: 30.0, 1: 30.1, 2: 30.2}, dict.fromkeys(("nonlinear", "linearized"), "AMD")
    makes = alike | {"linearized": "Intel"}
    assert verdict(CLAIM, two_methods(sure, makes)).outcome == "holds"
    monkeypatch.setattr(machines, "_SCOPES", {})
    assert verdict(CLAIM, two_methods(sure, alike)).outcome == "holds"
    assert verdict(CLAIM, two_methods(sure, makes)).outcome == "undecided"


@pytest.mark.parametrize(
    ("machine", "make"),
    [
        ({"cpu": "Intel(R) Xeon(R) Processor", "gpu": None}, "Intel"),
        ({"cpu": "EPYC", "make": "AuthenticAMD"}, "AMD"),
        ({"cpu": "AMD EPYC", "gpu": "NVIDIA H100"}, "NVIDIA H100"),
        ({"cpu": "Neoverse"}, "Neoverse"),
    ],
)
def test_makes(machine, make):
    assert machines.make_of(machine) == make
