"""Of no records every figure is awaited, or says so."""

import inspect

import pytest

from tasklab.evidence import figures
from tasklab.evidence.records.table import nothing
from tests.helpers import refuses


def draws_records(name):
    drawn = getattr(figures, name)
    if not hasattr(drawn, "__wrapped__"):  # no figure
        return False
    needed = [p.name for p in inspect.signature(drawn).parameters.values() if p.default is p.empty]
    return needed == ["df"] and name != "ring"  # which is of a toy


@pytest.mark.parametrize("name", [*filter(draws_records, figures.__all__)])
def test_no_records_are_awaited_or_an_error(name):
    figure, empty = getattr(figures, name), nothing()
    assert figure(empty) is None
    assert figure(empty[empty["n_tasks"] == 8].assign(more=1)) is None
    empty.attrs = {}
    refuses("nothing to draw", figure, empty)
    assert figures.once_recorded(figure, empty) is None
