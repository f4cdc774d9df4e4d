"""An experiment is declared once, and everything else follows."""

import inspect
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pytest

from tasklab.evidence import experiments, figures
from tasklab.evidence.experiments import registry
from tasklab.evidence.experiments.registry import REGISTRY, experiment
from tasklab.evidence.records.schema import COMPARISONS, EXPERIMENTS, Declared, Rows
from tasklab.evidence.records.table import tidy
from tests.helpers import refuses


def test_names_units_and_modules():
    for room in (experiments, figures):
        stub = Path(room.__file__).with_suffix(".pyi").read_text("utf-8")
        assert stub == room._stub(), f"a name of {room.__name__} is new or gone: run `make stubs`"
    for name, entry in REGISTRY.items():
        assert getattr(experiments, name) is entry.call
        assert entry.summary.endswith("."), name
    units = defaultdict(set)
    for rows in EXPERIMENTS.values():
        for metric, unit in rows.metrics.items():
            units[metric].add(unit)
    assert {metric for metric, several in units.items() if len(several) > 1} == set()
    declared = Declared(lambda: None)
    declared.declare("norms", 1, "here")
    declared.declare("norms", 2, "here")  # a cell that runs again
    declared.declare("norms", 2, "there")
    refuses("'norms' of there is declared in here already", declared.declare, "norms", 3, "there")


@pytest.mark.parametrize("name", [name for name, rows in EXPERIMENTS.items() if rows.figure])
def test_a_figure_draws_the_records_alone(name):
    drawn = getattr(figures, EXPERIMENTS[name].figure)
    inspect.signature(drawn).bind(pd.DataFrame())


def test_a_declaration_is_all_that_records_and_claims_need(monkeypatch):
    for declared in (REGISTRY, EXPERIMENTS, COMPARISONS):
        for place in ("_entries", "_homes"):
            monkeypatch.setattr(declared, place, dict(getattr(declared, place)))

    @experiment(
        Rows("turns", "a turn", "angle degrees", "axis"),
        sides={"halves": lambda claim, rows, df: {"left": rows, "right": rows}},
    )
    def turns(lab, methods):
        """Turn."""

    row = {"experiment": "turns", "model": "mini", "method": "nonlinear", "task": "Signs"}
    table = tidy([{**row, "metric": "angle", "value": 90.0, "axis": "z"}])
    assert table["axis"].tolist() == ["z"]
    assert set(COMPARISONS["halves"](None, table, table)) == {"left", "right"}
    assert registry.find("turns").call is turns
    refuses("'turns', 'angel'", tidy, [{**row, "metric": "angel", "value": 90.0}])
    refuses("unknown experiment 'turn': did you mean 'turns'", registry.find, "turn")
