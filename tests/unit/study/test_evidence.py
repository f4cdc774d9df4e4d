"""Recorded parts as one table."""

from tasklab.records import combine, tidy
from tasklab.records.table import nothing
from tasklab.study import results
from tests.helpers import refuses


def part(values, model="mini", experiment="addition"):
    return tidy([
        {"experiment": experiment, "model": model, "method": "nonlinear", "metric": "absolute",
         "task": task, "n_tasks": 8, "seed": 0, "alpha": alpha, "value": value, "n": 500}
        for task, (alpha, value) in values.items()
    ])  # fmt: skip


def test_parts_that_share_or_lack_records():
    # Machines round otherwise: the second one's value and chosen coefficient may differ.
    first = part({"Signs": (0.3, 70.0), "Scenes": (0.3, 80.0)})
    second = part({"Signs": (0.3, 71.0), "Scenes": (0.35, 81.0), "Places": (0.35, 60.0)})
    third = part({"Signs": (0.4, 50.0)}, model="mini_3")
    refuses("recorded twice", combine, first, second)
    whole = results._of_the_first([first, second, third])
    found = {(row.model, row.task): row.value for row in whole.itertuples()}
    assert len(whole) == 4 and list(whole) == list(first)
    assert found == {
        **{("mini", "Signs"): 70.0, ("mini", "Scenes"): 80.0, ("mini", "Places"): 60.0},
        ("mini_3", "Signs"): 50.0,
    }
    rows = [part({"Signs": (alpha, 70.0)}) for alpha in (0.3, 0.5)]
    assert len(results._of_the_first([combine(*rows), part({"Signs": (0.9, 1.0)})])) == 2
    first, second = (
        part({"Signs": (0.3, 70.0)}),
        part({"Signs": (0.3, 71.0), "Places": (0.3, 60.0)}),
    )
    whole = results.joined(first, nothing(), second)
    assert dict(zip(whole["task"], whole["value"], strict=True)) == {"Places": 60.0, "Signs": 70.0}
    assert results.joined(nothing()).empty
