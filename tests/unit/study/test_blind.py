"""The blind test: sealed predictions, their model, and their grades."""

import math
import sys

import numpy as np
import pandas as pd
import pytest

from benchmarks import blind as making
from tasklab.evidence import study
from tasklab.evidence.study import blind


def test_sealed_predictions_are_of_every_quantity():
    told = blind.sealed()
    assert told.groupby("model")["quantity"].apply(set).to_dict() == {
        model: set(blind.QUANTITIES) for model in making.TARGETS
    }
    assert (told["low"] < told["effect"]).all() and (told["effect"] < told["high"]).all()


def test_printed_effects_are_differences_of_the_papers():
    told = blind.sealed().drop_duplicates("quantity").set_index("quantity")["printed"]
    assert told["tangent-1-absolute"] == pytest.approx(76.5 - 71.4)
    assert told["tangent-2-target"] == pytest.approx(24.0 - 10.9)
    assert told["merge-tsv_m"] == pytest.approx(85.9 - 70.8)
    for quantity, value in told.items():
        now = making.printed(quantity)
        assert (math.isnan(now) and math.isnan(value)) or now == pytest.approx(value)


def test_an_effect_is_the_mean_over_tasks_and_seeds():
    records = study.recorded("tangent", "icons_replicas")[0]
    found = blind.effects(records, ["icons_s_seed1"]).set_index("quantity")
    rows = records[(records["model"] == "icons_s_seed1") & (records["experiment"] == "addition")]
    rows = rows[(rows["metric"] == "absolute") & (rows["split"] == "test")]
    mean = rows.groupby("method")["value"].mean()
    expected = mean["linearized"] - mean["nonlinear"]
    assert found.loc["tangent-1-absolute", "effect"] == pytest.approx(expected)
    assert found.loc["tangent-1-absolute", "seeds"] == 3
    box = records[(records["model"] == "icons_s_seed1") & (records["method"] == "attention")]
    box = box[box["metric"] == "xi_classifier_box"]["value"].mean()
    assert found.loc["error-attention", "effect"] == pytest.approx(box)


def test_grades_compare_with_the_interval_the_sign_and_the_paper():
    first = blind.sealed().query("model == 'icons'").set_index("quantity")
    row = first.loc["tangent-1-absolute"]
    inside, outside = row["high"] - 0.1, row["low"] - 0.1
    assert row["effect"] > 0 > outside
    for value, is_inside, sign in ((inside, True, True), (outside, False, False)):
        found = pd.DataFrame(
            {"quantity": ["tangent-1-absolute"], "model": ["icons"], "effect": [value],
             "seeds": [5]}
        )  # fmt: skip
        (grade,) = blind.graded(found).itertuples()
        assert (grade.inside, grade.sign) == (is_inside, sign)
        assert grade.off == pytest.approx(abs(value - row["effect"]))
        assert grade.printed_off == pytest.approx(abs(value - row["printed"]))


def test_effects_are_crossed_by_world_and_size():
    effects = {"mini": 8.0, "mini_s_seed0": 5.0, "mini_s_seed1": 7.0, "icons_s": 1.0, "icons": 2.0}
    rows = [("merge-ties", model, effect) for model, effect in effects.items()]
    rows += [("merge-wudi", "mini", 3.0)]  # which the others lack
    found = pd.DataFrame(rows, columns=["quantity", "model", "effect"])
    (row,) = blind.crossed(found).reset_index().to_dict("records")
    assert row == {
        "quantity": "merge-ties", "drawn images, small": 6.0, "drawn images, large": 8.0,
        "drawings, small": 1.0, "drawings, large": 2.0, "size": 1.0, "world": 6.0,
    }  # fmt: skip


def _table(values):
    return pd.DataFrame(
        [("q", model, value, 1.0) for model, value in values.items()],
        columns=["quantity", "model", "effect", "variance"],
    )


def test_without_spread_a_prediction_is_the_mean():
    table = _table({"mini": 2.0, "icons_s": 4.0, "mini_3": 9.0})
    nothing = np.full(4, 1e-9)
    guess, low, high = making.predict(table, making.TARGETS["icons"], nothing)
    assert guess == pytest.approx(5.0)
    half = 2.306 * math.sqrt(1 / 3 + 1)  # of the mean of three, and its own noise
    assert (low, high) == pytest.approx((5 - half, 5 + half), abs=0.01)


def test_a_world_that_is_known_is_predicted_by_its_own_models():
    table = _table({"mini": 10.0, "mini_s_seed0": 10.0, "icons_s": 0.0, "icons_s_seed1": 0.0})
    worlds = np.array([1e-9, 1e-9, 50.0, 1e-9])
    own, *_ = making.predict(table, making.TARGETS["icons"], worlds)
    new, low, high = making.predict(table, making.TARGETS["minilm"], worlds)
    assert own == pytest.approx(0.0, abs=0.1) and new == pytest.approx(5.0)
    assert high - low > 200  # two worlds do not tell what a third one does


def test_predictions_are_never_replaced(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["blind.py", "--seal"])
    before = making.SEALED.read_bytes()
    with pytest.raises(SystemExit, match="never replaced"):
        making.main()
    assert making.SEALED.read_bytes() == before
