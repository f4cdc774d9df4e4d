"""The order in which `compare --fast` tries merges: fitted to what is recorded, and tested."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tasklab.analyses.merging import METHODS, order


@pytest.fixture
def orders(script):
    return script("orders")


def test_the_file_has_the_mean_gains_and_the_odds_of_what_is_recorded(orders):
    gains, kept = orders.gains(), json.loads(Path(orders.FILE).read_text("utf-8"))
    means = orders.means(gains)
    assert kept["order"] == pytest.approx(means.to_dict(), abs=6e-3)
    assert list(kept["order"].values()) == sorted(kept["order"].values(), reverse=True)
    assert kept["odds"] == orders.odds(gains, "model", "constant")
    better = orders.odds(gains, "model", "predicted")
    assert better["lost"] >= kept["odds"]["lost"], "take the predicted order"


def test_the_first_are_those_of_largest_gain_in_the_order_given():
    ranks = list(order._read()["order"])
    found = order.first(METHODS)
    assert set(found) == set(ranks[:3])
    assert list(found) == sorted(found, key=list(METHODS).index)
    assert order.first([*METHODS, "mine"], ["mine"])[-1] == "mine"
    assert "mine" not in order.first([*METHODS, "mine"])


def test_what_is_left_out_is_not_known(orders):
    rows = pd.DataFrame({
        "model": ["a", "b"], "setting": ["a", "b"], "weight": 1.0, "number": [0.0, 0.0],
        "arithmetic": 0.0, "ties": [9.0, -5.0], "tsv_m": [1.0, 3.0], "iso_c": [0.5, 1.0],
        "lines": [0.4, 0.5],
    })  # fmt: skip
    found = orders.left_out(rows, "model", ()).set_index("setting")
    assert not found.loc["b", "best"] or found.loc["b", "lost"] == 0
    # without `a`, TIES is the last one; without `b`, the first
    assert (found.loc["a", "lost"], found.loc["b", "lost"]) == (8.0, 0.0)
    assert found.loc["a", "rightly"] < found.loc["b", "rightly"]


def test_a_slope_is_found_where_there_is_one(orders):
    x = np.linspace(-2, 2, 9)
    rows = pd.DataFrame({"number": x, "weight": 1.0, "arithmetic": 0.0, "ties": 3 * x})
    guess = orders.guesses(rows, rows, ("number",))["ties"]
    assert guess.iloc[-1] > 5
    assert orders.guesses(rows, rows, ())["ties"].abs().max() == pytest.approx(0, abs=1e-12)
