"""Figures over rates, lengths and pre-training: what is drawn is the mean of the records."""

import pytest

from tasklab import figures
from tasklab.figures.style import NothingToDrawError
from tasklab.records.table import nothing, tidy

METHODS = ("nonlinear", "linearized")


def budget(rates=(1e-4, 2e-4), lengths=(60, 240)):
    rows = []
    for method in METHODS:
        runs = [(lr, 240) for lr in rates] + [(rates[-1], n) for n in lengths if n != 240]
        for lr, steps in runs:
            alone = 50 + 1e5 * lr + steps / 10 + 5 * (method == "linearized")
            values = {"single": alone, "absolute": alone - 9, "target": 120 - alone, "norm": 0.1}
            for task, shift in (("Signs", 1), ("Places", -1)):
                for metric, value in values.items():
                    rows.append({
                        "experiment": "budget", "model": "mini", "method": method, "task": task,
                        "seed": 0, "metric": metric, "value": value + shift, "n": 100, "lr": lr,
                        "steps": steps,
                    })  # fmt: skip
            rows.append({**rows[-1], "task": "Signs+Places", "metric": "xi_classifier_box",
                         "value": alone / 10})  # fmt: skip
    return tidy(rows)


def drawn(axes):
    return {line.get_color(): line.get_xydata().tolist() for line in axes.lines}


@pytest.mark.parametrize(("over", "first"), [("lr", 84.0), ("steps", 76.0)])
def test_methods_are_curves_over_their_accuracy_alone(over, first):
    sums, negated, errors, lengths = figures.budget_curves(budget(), over).axes
    nonlinear = drawn(sums)[figures.COLOURS["nonlinear"]]
    assert sum(nonlinear, []) == pytest.approx([first, first - 9, 94.0, 85.0])
    assert drawn(negated)[figures.COLOURS["nonlinear"]][1] == pytest.approx([94.0, 26.0])
    assert drawn(errors)[figures.COLOURS["nonlinear"]][1] == pytest.approx([94.0, 9.4])
    assert len(drawn(lengths)) == 2 and "norm" in lengths.get_ylabel()


def test_rates_of_equal_accuracy_and_of_nothing():
    rows = budget(rates=(1e-4, 1.5e-4, 2e-4))
    same = (rows["metric"] == "single") & (rows["lr"] > 1e-4)
    rows.loc[same, "value"] = 90.0
    sums = figures.budget_curves(rows).axes[0]
    assert len(drawn(sums)[figures.COLOURS["nonlinear"]]) == 3
    for figure in (figures.budget_curves, figures.growth, figures.rate_search):
        assert figures.once_recorded(figure, nothing()) is None
    one = tidy([{"experiment": "single", "metric": "single", "method": "nonlinear",
                 "model": "mini", "task": "Signs", "seed": 0, "value": 1.0, "n": 9}])  # fmt: skip
    with pytest.raises(NothingToDrawError, match="one length"):
        figures.growth(one)


def test_growth_is_over_the_samples_seen():
    common = {"experiment": "single", "metric": "single", "method": "nonlinear", "task": "Signs"}
    rows = [
        {**common, "model": model, "seed": seed, "value": value + seed, "n": 100}
        for model, value in (("mini_3", 60.0), ("mini_30", 70.0), ("mini", 80.0), ("mini_s", 5.0))
        for seed in (0, 2)
    ]
    (axes,) = figures.growth(tidy(rows)).axes
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[3.0, 61.0], [30.0, 71.0], [100.0, 81.0]]
    assert axes.get_xscale() == "log" and axes.get_ylabel() == "single-task accuracy (%)"
    common = {"experiment": "search_box", "metric": "xi_classifier_box", "method": "nonlinear"}
    rows = [
        {**common, "model": model, "task": task, "seed": 0, "value": value, "n": 100}
        for model, values in (("mini_3", (40.0, 60.0)), ("mini", (10.0, 20.0)))
        for task, value in zip(("a+b", "c+d"), values, strict=True)
    ]
    (axes,) = figures.growth(tidy(rows)).axes
    assert axes.lines[0].get_xydata().tolist() == [[3.0, 50.0], [100.0, 15.0]]


def test_the_chosen_rate_is_the_best_mean_over_tasks():
    values = {(1e-4, "a"): 50.0, (1e-4, "b"): 60.0, (2e-4, "a"): 70.0, (2e-4, "b"): 50.0}
    common = {"experiment": "rate_search", "split": "validation", "metric": "single"}
    rows = [
        {**common, "model": "mini", "method": "nonlinear", "task": task, "seed": 0, "value": value,
         "n": 500, "lr": lr}
        for (lr, task), value in values.items()
    ]  # fmt: skip
    (axes,) = figures.rate_search(tidy(rows)).axes
    curve, best = axes.lines
    assert curve.get_xydata().tolist() == [[1e-4, 55.0], [2e-4, 60.0]]
    assert best.get_xydata().tolist() == [[2e-4, 60.0]] and axes.get_xscale() == "log"
    assert best.get_markerfacecolor() == "none"  # what lies below it is seen
    assert best.get_markersize() > curve.get_markersize()
    lost = {**rows[-1], "metric": "diverged_at", "value": 7.0}
    (axes,) = figures.rate_search(tidy([*rows, lost])).axes
    assert axes.lines[-1].get_xydata().tolist() == [[1e-4, 55.0]]
    several = tidy([{**row, "model": model} for row in rows for model in ("mini_mae", "mini_few")])
    titles = [axes.get_title() for axes in figures.rate_search(several).axes]
    assert titles == ["masked autoencoder", "supervised, fewer classes"]
    others = tidy([{**row, "model": model} for row in rows for model in ("mini", "mini_t5")])
    titles = [axes.get_title() for axes in figures.rate_search(others).axes]
    assert titles == ["CLIP", "T5"]
