"""Recommended coefficients against chosen ones, on records made by hand."""

import pandas as pd
import pytest

from tasklab.evidence.records import recommended


def records(values, *, subset="A+B", model="m"):
    """Return records on test images of {(experiment, merge): ((accuracy of A, of B), alpha)}."""
    return pd.DataFrame([
        {"experiment": e, "merge": merge, "model": model, "method": "nonlinear", "seed": 0,
         "value": v, "n_tasks": 2, "subset": subset, "task": task, "alpha": alpha,
         "metric": "absolute", "split": "test"}
        for (e, merge), (accuracies, alpha) in values.items()
        for task, v in zip("AB", accuracies, strict=True)
    ])  # fmt: skip


SETS = {
    "A+B": {("merging", "ties"): ((80.0, 70.0), 0.5), ("recommended", "ties"): ((79.0, 69.5), 0.4),
            ("recommended", "none"): ((50.0, 50.0), 0.0), ("merging", "regmean"): ((90, 90), 1.0)},
    "A+C": {("merging", "ties"): ((60.0, 60.0), 0.3), ("recommended", "ties"): ((50.0, 48.0), 0.4),
            ("recommended", "none"): ((50.0, 50.0), 0.0)},
}  # fmt: skip


@pytest.fixture
def table():
    return pd.concat([records(values, subset=name) for name, values in SETS.items()])


def test_a_setting_loses_what_the_chosen_coefficient_has_more(table):
    found = recommended.settings(table).set_index("subset")
    assert list(found["merge"]) == ["ties", "ties"]  # what nobody recommends is left out
    assert found["lost"].to_dict() == {"A+B": 0.75, "A+C": 11.0}
    assert found["gain"].to_dict() == {"A+B": 24.25, "A+C": -1.0}
    assert set(found["alpha"]) == {0.4}


def test_other_splits_and_metrics_are_left_out(table):
    more = table.assign(split="validation", value=0.0)
    same = recommended.settings(pd.concat([table, more, table.assign(metric="objective", value=0)]))
    pd.testing.assert_frame_equal(same, recommended.settings(table))


def test_they_are_counted_by_model_merge_and_number(table):
    other = table[table["subset"] == "A+B"].assign(model="n")
    found = recommended.summary(recommended.settings(pd.concat([table, other]))).set_index("model")
    assert list(found.loc["m", ["near", "lost", "worst", "harmed", "settings"]]) == [
        50.0, 5.875, 11.0, 1, 2
    ]  # fmt: skip
    assert list(found.loc["n", ["near", "lost", "worst", "harmed", "settings"]]) == [
        100.0, 0.75, 0.75, 0, 1
    ]  # fmt: skip


@pytest.mark.parametrize(("lost", "near"), [(1.0, 100.0), (1.25, 0.0)])
def test_a_setting_that_loses_a_point_is_near_and_one_that_loses_more_is_not(lost, near):
    there = {("merging", "ties"): ((80.0, 80.0), 0.5), ("recommended", "none"): ((50.0, 50.0), 0.0),
             ("recommended", "ties"): ((80.0 - lost, 80.0 - lost), 0.4)}  # fmt: skip
    (found,) = recommended.summary(recommended.settings(records(there)))["near"]
    assert found == near
