"""Figures: the right marks from synthetic records, readable text, and no leftovers in pyplot."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import rgb_to_hsv, to_rgb

from tasklab.analyses import shares
from tasklab.errors import TasklabError
from tasklab.evidence import figures
from tasklab.evidence.records.schema import METHODS
from tasklab.evidence.records.table import tidy
from tests.helpers import refuses
from tests.marks import marked, texts
from tests.rows import row

TASKS = ("Signs", "Places", "Scenes", "Textures")
WAYS = ("nonlinear", "posthoc", "linearized", "attention")


def synthetic(seeds):
    rows: list[dict[str, Any]] = []

    def add(experiment, method, metric, value, **other):
        rows.append(row(experiment, metric, value, method=method, n=500, **other))

    for i, task in enumerate(TASKS):
        add("single", "pretrained", "single", 50 + i, task=task)
        add("negation", "pretrained", "control", 58.0, task=task)
    for seed, (m, method), (i, task) in itertools.product(
        range(seeds), enumerate(WAYS), enumerate(TASKS)
    ):
        run = {"task": task, "seed": seed}
        single = 80 + i - m + seed / 2
        add("single", method, "single", single, **run)
        add("negation", method, "target", 40 - m + seed, alpha=0.5, **run)
        add("negation", method, "control", 56 + seed / 10, alpha=0.5, **run)
        for metric, value in (("seconds_per_step", 0.1), ("peak_memory", 512), ("trainable", 3e6)):
            add("cost", method, metric, value + m / 10, **run)
        for n_tasks, alpha in itertools.product((2, 4, 8), (0.0, 0.25, 0.5, 1.0)):
            value = 70 + m - 20 * (alpha - 0.25) ** 2 - n_tasks + seed
            for metric, v in (("absolute", value), ("normalised", 100 * value / single)):
                add("sweep", method, metric, v, n_tasks=n_tasks, alpha=alpha, **run)
                if alpha == 0.25:
                    add("addition", method, metric, v, n_tasks=n_tasks, alpha=alpha, **run)
    return tidy(rows)


FROM_RECORDS = (
    figures.single_task, figures.per_task, figures.nonlinear_advantage, figures.alone_against_sum,
    figures.addition_curves, figures.addition_bars, figures.negation,
)  # fmt: skip


def test_points_are_means_with_the_spread_of_seeds_on_fitted_axes():
    figure = figures.addition_bars(synthetic(3))
    assert len(figure.axes) == 3 * 2  # sums of 2, 4 and 8 tasks, absolute and normalised
    upper = figure.axes[0]
    assert upper.get_ylabel() == "sum of 2 tasks"
    # 70 - 2 and one more a method; the mean of seeds 0, 1 and 2 is one more, their deviation one.
    assert marked(upper) == [(m, pytest.approx(69.0 + m)) for m in range(len(WAYS))]
    bars = [tuple(line.get_xdata()) for line in upper.lines if line.get_marker() in ("", "None")]
    assert (pytest.approx(68.0), pytest.approx(70.0)) in bars
    seeds = np.concatenate([dots.get_offsets()[:, 0] for dots in upper.collections])
    assert sorted(seeds)[:3] == pytest.approx([68.0, 69.0, 69.0])
    assert [t.get_text() for t in upper.texts] == ["69.0", "70.0", "71.0", "72.0"]
    base = [line for line in upper.lines if line.get_label() == "pre-trained"]
    assert [line.get_xdata()[0] for line in base] == [51.5]
    low, high = figure.axes[1].get_xlim()  # normalised: no reference that stretches the axis
    assert high - low < 12
    assert to_rgb(upper.lines[0].get_color()) == to_rgb(figures.COLOURS["nonlinear"])
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == ["± standard deviation of 3 seeds (dots)", "pre-trained"]


def test_intervals_are_of_test_images_and_missing_records_say_so():
    axes = figures.single_task(synthetic(1)).axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == [*TASKS, "mean"]
    low, high = (100 * end for end in shares.interval(np.array([0.8]), np.array([500])))
    bars = [tuple(line.get_xdata()) for line in axes.lines if line.get_marker() in ("", "None")]
    assert (pytest.approx(float(low)), pytest.approx(float(high))) in bars
    last = [x for y, x in marked(axes) if y > len(TASKS) - 0.5]
    assert sorted(last) == pytest.approx([78.5, 79.5, 80.5, 81.5])  # means over the tasks
    strokes = [path.vertices[0, 0] for path in axes.collections[-1].get_paths()]
    assert strokes == pytest.approx([50, 51, 52, 53, 51.5])  # the pre-trained model
    alone = synthetic(1)[lambda df: df["experiment"] == "single"]
    refuses("no records of 'negation test'", figures.negation, alone)
    with pytest.raises(TasklabError, match="no records of 'nonlinear'"):
        figures.nonlinear_advantage(alone[alone["method"] != "nonlinear"])


@pytest.mark.parametrize(
    ("init", "label"), [("pretrained", "pre-trained"), ("random", "random weights")]
)
def test_a_model_from_random_weights_is_not_called_pretrained(init, label):
    figure = figures.single_task(synthetic(1).assign(init=init))
    told = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert label in told
    assert ("pre-trained" in told) == (init == "pretrained")


def of_four(df):
    return df[~(df["n_tasks"] == 8).fillna(False).astype(bool)]


def test_curves_mark_choices_lines_and_spreads():
    lines = figures.addition_curves(of_four(synthetic(1))).axes[0].lines
    marks = [line.get_xdata()[0] for line in lines if len(line.get_xdata()) == 1]
    assert marks == [0.25] * len(WAYS)
    left = figures.addition_curves(of_four(synthetic(2))).axes[0]
    curve = left.lines[0]
    assert curve.get_xdata().tolist() == [0.0, 0.25, 0.5, 1.0]
    expected = [70 - 20 * (a - 0.25) ** 2 - 4 + 0.5 for a in (0.0, 0.25, 0.5, 1.0)]
    assert curve.get_ydata() == pytest.approx(expected)
    band = left.collections[0].get_paths()[0].vertices
    at_half = band[np.isclose(band[:, 0], 0.5), 1]
    assert np.ptp(at_half) == pytest.approx(2 * np.sqrt(0.5))  # of the seeds' two values
    (alone, *_) = figures.addition_curves(synthetic(1)).axes[0].collections
    assert not alone.get_paths()  # one seed has no spread
    control = figures.negation(synthetic(2)).axes[1]
    assert 0.95 * 58 in [line.get_xdata()[0] for line in control.lines]


ODD = r"$\frac$ of 5$"


def test_a_dollar_in_a_name_is_no_formula():
    records = synthetic(1)
    records["task"] = records["task"].replace("Signs", ODD)
    shown = [text._preprocess_math(text.get_text()) for text in texts(figures.per_task(records))]
    assert (ODD, False) in shown
    images = {ODD: np.zeros((2, 32, 32, 3), np.uint8)}
    figure = figures.contact_sheet(images, {ODD: ["$^$", "US$"]}, columns=2)
    shown = {text._preprocess_math(text.get_text()) for text in texts(figure)}
    assert shown == {(ODD, False), ("$^$", False), ("US$", False)}
    images = {task: np.zeros((10, 32, 32, 3), np.uint8) for task in TASKS}
    classes = {task: [f"class {i}" for i in range(10)] for task in TASKS}
    figure = figures.contact_sheet(images, classes, columns=5)
    assert sum(len(axes.images) for axes in figure.axes) == 10 * len(TASKS)
    assert {t.get_text() for t in texts(figure)} == {*TASKS, *classes["Signs"]}


def test_methods_are_told_apart():
    for table in (figures.COLOURS, figures.MARKERS, figures.METHOD_LABEL):
        assert set(table) == set(METHODS)
        assert len(set(table.values())) == len(table)
    # Not by shade alone, which the dark theme turns over.
    three = [to_rgb(figures.COLOURS[name]) for name in ("nonlinear", "posthoc", "linearized")]
    hues = sorted(360 * rgb_to_hsv(colour)[0] for colour in three)
    assert min(b - a for a, b in zip(hues, [*hues[1:], hues[0] + 360], strict=True)) > 50
    modules = {path.stem for path in Path(figures.__file__).parent.glob("*.py")}
    assert not modules & set(figures.__all__)  # it would hide it once it is imported


def test_a_table_has_dashes_and_the_names_of_figures():
    df = pd.DataFrame({"row": ["a", "b"], "mean": [1.25, np.nan], "seeds": [3, 1]})
    shown = figures.table(df).to_html()
    assert "1.2" in shown and ">–<" in shown and ">3<" in shown
    below = figures.table(pd.DataFrame({"gain": [-0.75, -0.01], "name": ["x-y", "a"]})).to_html()
    assert ">−0.8<" in below and ">0.0<" in below and ">x-y<" in below
    assert "nan" not in shown.lower() and "row0" not in shown.split("<tbody>")[1].split("<td")[0]
    both = pd.concat([synthetic(1).assign(model=m) for m in ("mini_t5", "mini_few")])
    rows = figures.alone_and_summed(both)
    table = figures.tabulate(rows, ["model", "method"], "quantity")
    assert list(dict.fromkeys(table["model"])) == ["T5", "supervised, fewer classes"]
    assert set(table["method"]) <= set(figures.METHOD_LABEL.values())
    assert list(table.columns) == ["model", "method", "alone", "sum", "normalised"]
    common = {"split": "test", "metric": "absolute", "experiment": "joint", "model": "mini_t5"}
    own = both[both["method"] == "linearized"].iloc[:1].assign(**common, value=7.0)
    rows = figures.alone_and_summed(pd.concat([both, own]))
    table = figures.tabulate(rows, ["model", "method"], "quantity")
    assert table.iloc[0].tolist()[:2] == ["T5", "linearized, jointly"] and table["sum"][0] == 7.0


HOSTILE = '<img src=x onerror="alert(1)">'


@pytest.mark.parametrize("where", ["cell", "list", "column", "row", "heading", "rows", "none"])
def test_markup_in_a_name_is_text_in_a_table(where):
    df = pd.DataFrame({"task": ["a", "b"], "value": [1.25, np.nan]})
    if where == "cell":
        df.loc[0, "task"] = HOSTILE
    elif where == "list":
        df["task"] = [[HOSTILE], (HOSTILE,)]
    elif where == "column":
        df = df.rename(columns={"task": HOSTILE})
    elif where == "row":
        df.index = [HOSTILE, "b"]
    elif where == "heading":
        df = df.set_axis(["x", "y"]).rename_axis(index=HOSTILE, columns=HOSTILE)
    elif where == "rows":
        df.index = pd.MultiIndex.from_tuples([(HOSTILE, 1), ("b", 2)], names=[HOSTILE, None])
    shown = figures.table(df).to_html()
    assert "<img" not in shown and ">1.2<" in shown and ">–<" in shown
    assert ("&lt;img src=x onerror=" in shown) == (where != "none")


def test_sums_stand_against_accuracy_alone_task_by_task():
    table = synthetic(2)
    axes = figures.alone_against_sum(table).axes[0]
    dots = np.concatenate([c.get_offsets() for c in axes.collections])
    assert len(dots) == len(TASKS) * len(WAYS)
    big = [line for line in axes.lines if line.get_markersize() == 12]
    means = sorted((line.get_xdata()[0], line.get_ydata()[0]) for line in big)
    rows = table[(table["split"] == "test") & (table["method"] != "pretrained")]
    alone = rows[rows["experiment"] == "single"].groupby("method")["value"].mean()
    sums = rows[(rows["experiment"] == "addition") & (rows["metric"] == "absolute")]
    sums = sums[sums["n_tasks"] == 8].groupby("method")["value"].mean()
    np.testing.assert_allclose(means, sorted(zip(alone, sums[alone.index], strict=True)))
    assert "in the sum of 8" in axes.get_ylabel()


def test_the_most_tasks_that_there_are_may_be_fewer_than_eight():
    few = of_four(synthetic(1))
    drawn, wanted = figures.per_task(few).axes[0], figures.per_task(few, n_tasks=4).axes[0]
    assert drawn.get_xlabel() == wanted.get_xlabel()
    assert len(drawn.lines) == len(wanted.lines)
