"""Figures over rates, lengths and pre-training: what is drawn is the mean of the records."""

import pytest

from tasklab.evidence import figures
from tasklab.evidence.records.table import tidy
from tests.helpers import refuses
from tests.rows import row

METHODS = ("nonlinear", "linearized")


def budget(rates=(1e-4, 2e-4), lengths=(60, 240)):
    rows = []
    for method in METHODS:
        runs = [(lr, 240) for lr in rates] + [(rates[-1], n) for n in lengths if n != 240]
        for lr, steps in runs:
            alone = 50 + 1e5 * lr + steps / 10 + 5 * (method == "linearized")
            values = {"single": alone, "absolute": alone - 9, "target": 120 - alone, "norm": 0.1}
            for task, shift in (("Signs", 1), ("Places", -1)):
                run = {"method": method, "task": task, "lr": lr, "steps": steps}
                rows += [row("budget", name, x + shift, **run) for name, x in values.items()]
            run["task"] = "Signs+Places"
            rows.append(row("budget", "xi_classifier_box", alone / 10, **run))
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


def test_rates_of_equal_accuracy_and_one_length():
    rows = budget(rates=(1e-4, 1.5e-4, 2e-4))
    same = (rows["metric"] == "single") & (rows["lr"] > 1e-4)
    rows.loc[same, "value"] = 90.0
    sums = figures.budget_curves(rows).axes[0]
    assert len(drawn(sums)[figures.COLOURS["nonlinear"]]) == 3
    refuses("one length", figures.growth, tidy([row("single", "single", 1.0)]))


def test_changes_are_from_the_usual_rate_and_steps_with_intervals_over_tasks():
    rates = [
        row("merging_rates", metric, value + (by if lr == 2e-4 else 0), task=task, merge=merge,
            lr=lr, **more)
        for task, by in (("Signs", 1.0), ("Places", 2.0), ("Scenes", 3.0))
        for lr in (2e-4, 4e-4)
        for metric, value, merge, more in (
            ("single", 90.0, None, {}), ("absolute", 70.0, "ties", {"n_tasks": 8}),
            ("absolute", 9.0, "ties", {"n_tasks": 2}),
        )
    ]  # fmt: skip
    steps = [row("budget", "absolute", 70.0 - n / 480, steps=n, n_tasks=8) for n in (240, 480)]
    table = figures.overtraining_changes(tidy([*rates, *steps])).set_index(["over", "what"])
    half = table.loc["lr", "ties"]
    assert (half["factor"], half["value"]) == (0.5, 2.0)  # the eight tasks' change
    assert 2.0 - half["low"] == pytest.approx(4.3027 / 3**0.5, abs=1e-3)
    assert table.loc["lr", "single"]["value"] == 2.0
    longer = table.loc["steps", "arithmetic"]
    assert (longer["factor"], longer["value"]) == (2.0, -0.5)
    figure = figures.overtraining(tidy([*rates, *steps]))
    assert [axes.get_title() for axes in figure.axes] == ["learning rate", "steps"]
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == ["one model a task", "Task arithmetic", "TIES"]
    assert set(figure.drawn["what"]) == {"single", "ties", "arithmetic"}
    refuses("one rate", figures.overtraining, tidy(rates[:3]))


def test_growth_is_over_the_samples_seen():
    rows = [
        row("single", "single", value + seed, model=model, seed=seed)
        for model, value in (("mini_3", 60.0), ("mini_30", 70.0), ("mini", 80.0), ("mini_s", 5.0))
        for seed in (0, 2)
    ]
    figure = figures.growth(tidy(rows))
    assert sorted(figure.drawn["value"]) == [60, 62, 70, 72, 80, 82]  # for its file
    (axes,) = figure.axes
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[3.0, 61.0], [30.0, 71.0], [100.0, 81.0]]
    assert axes.get_xscale() == "log" and axes.get_ylabel() == "single-task accuracy (%)"
    rows = [
        row("search_box", "xi_classifier_box", value, model=model, task=task)
        for model, values in (("mini_3", (40.0, 60.0)), ("mini", (10.0, 20.0)))
        for task, value in zip(("a+b", "c+d"), values, strict=True)
    ]
    (axes,) = figures.growth(tidy(rows)).axes
    assert axes.lines[0].get_xydata().tolist() == [[3.0, 50.0], [100.0, 15.0]]


def test_the_chosen_rate_is_the_best_mean_over_tasks():
    values = {(1e-4, "a"): 50.0, (1e-4, "b"): 60.0, (2e-4, "a"): 70.0, (2e-4, "b"): 50.0}
    rows = [
        row("rate_search", "single", value, split="validation", task=task, lr=lr)
        for (lr, task), value in values.items()
    ]
    (axes,) = figures.rate_search(tidy(rows)).axes
    curve, best = axes.lines
    assert curve.get_xydata().tolist() == [[1e-4, 55.0], [2e-4, 60.0]]
    assert best.get_xydata().tolist() == [[2e-4, 60.0]] and axes.get_xscale() == "log"
    assert best.get_markerfacecolor() == "none"  # what lies below it is seen
    assert best.get_markersize() > curve.get_markersize()
    lost = {**rows[-1], "metric": "diverged_at", "value": 7.0}
    (axes,) = figures.rate_search(tidy([*rows, lost])).axes
    assert axes.lines[-1].get_xydata().tolist() == [[1e-4, 55.0]]
    several = tidy([{**one, "model": name} for one in rows for name in ("mini_mae", "mini_few")])
    titles = [axes.get_title() for axes in figures.rate_search(several).axes]
    assert titles == ["masked autoencoder", "supervised, fewer classes"]
    others = tidy([{**one, "model": name} for one in rows for name in ("mini", "mini_t5")])
    titles = [axes.get_title() for axes in figures.rate_search(others).axes]
    assert titles == ["CLIP", "T5"]
