"""Figures of `plots.layers`: the right marks from synthetic tables, and readable text."""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import seaborn as sns
from matplotlib.colors import to_rgb

from tasklab.evidence.figures import layers as figures
from tasklab.evidence.figures import maps
from tasklab.evidence.figures.style import COLOURS
from tests.helpers import refuses
from tests.marks import shown
from tests.rows import crossed

TASKS = ("Signs", "Places", "Scenes", "Textures")
METHODS = ("nonlinear", "posthoc", "attention")
KINDS = {"nonlinear": tuple(figures.PROJECTIONS), "attention": ("q", "k", "v", "output")}
KINDS["posthoc"] = KINDS["nonlinear"]
PLACES = [None, 0, 1, 2]


def of_methods(all=False, **axes):
    """Return rows for the projections that a method trains, and of all parameters if asked for."""
    own = {m: (*KINDS[m], "all") if all else KINDS[m] for m in METHODS}
    df = pd.concat([crossed(method=[m], **axes, projection=own[m]) for m in METHODS])
    return df.astype({"block": "Int64"}).reset_index(drop=True)


@pytest.fixture
def cosines():
    pairs = list(itertools.combinations(TASKS, 2))
    df = of_methods(seed=(0, 1), pair=range(6), block=PLACES, all=True)
    both = pd.DataFrame([pairs[i] for i in df["pair"]], columns=["task", "other"])
    return df.join(both).assign(value=(df["pair"] - 2 + df["seed"]) / 100)


@pytest.fixture
def aligned():
    values = {"own": 0.1, "each": 0.09, "others": 0.3}
    df = of_methods(task=TASKS, part=values, block=PLACES[1:], metric=("relative", "random"))
    return df.assign(seed=0, value=df["part"].map(values))


@pytest.fixture
def interference():
    df = crossed(method=METHODS, task=TASKS, metric=figures.AXIS_LABEL, seed=[0], alpha=[0.3])
    return df.assign(value=df["task"].map(TASKS.index) + df["method"].map(METHODS.index) / 10)


@pytest.fixture
def gaps():
    df = crossed(method=METHODS[::2], task=TASKS, alpha=(0.5, 1.0), block=(None, 0, 1), seed=[0])
    value = df["alpha"] / 2 + df["task"].map(TASKS.index) / 10
    metric = np.where(df["block"].isna(), "gap_along", "gap_block")
    size = df["alpha"] * (1 + (df["method"] == "attention")) / 10
    return df.assign(value=value, metric=metric, size=size).astype({"block": "Int64"})


def matrix_of(axes):
    cells = np.ma.filled(axes.collections[0].get_array(), np.nan)
    return cells.reshape(len(TASKS), len(TASKS))


def test_matrices_are_symmetric_and_average_seeds(cosines):
    figure = figures.cosine_matrices(cosines)
    *panels, bar = shown(figure)
    assert bar.get_xlabel() == "cosine × 100"
    titles = [f"{name}\nmean |cosine| 0.0167" for name in ("non-linear", "attention weights")]
    assert [axes.get_title() for axes in panels] == titles  # -1.5, -0.5, ... 3.5
    for axes in panels:
        matrix = matrix_of(axes)
        np.testing.assert_allclose(matrix, matrix.T)
        assert np.isnan(matrix.diagonal()).all()
        np.testing.assert_allclose(matrix[0, 1:], [-1.5, -0.5, 0.5])  # 100 (i - 2 + 1/2) / 100
        low, high = axes.collections[0].get_clim()
        assert low == -high and high == pytest.approx(np.nanmax(matrix))
        words = [text.get_text() for text in axes.texts if text.get_text()]
        assert len(words) == len(TASKS) * (len(TASKS) - 1) and words[0] == "−1.5"
    axes = figures.cosine_matrices(cosines.assign(value=cosines["value"].abs())).axes[0]
    low, high = axes.collections[0].get_clim()
    assert low == 0 and high == pytest.approx(np.nanmax(matrix_of(axes)))
    light, dark = (sum(axes.collections[0].cmap(x)[:3]) for x in (0.0, 1.0))
    assert light > dark


def test_blocks_lengths_and_numbers_in_cells(cosines, gaps):
    figure = figures.cosine_by_block(cosines)
    panels = shown(figure)
    drawn = [[line for line in axes.lines if len(line.get_xdata())] for axes in panels]
    assert [len(lines) for lines in drawn] == [7, 5]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [*figures.PROJECTIONS, "all parameters"]
    line = drawn[0][0]
    assert to_rgb(line.get_color()) == to_rgb(figures.PROJECTIONS["q"][1])
    assert list(line.get_xdata()) == [1, 2, 3]
    values = [abs(i - 2 + seed) / 100 for i in range(6) for seed in (0, 1)]
    np.testing.assert_allclose(line.get_ydata(), np.mean(values))
    figure = figures.linearity(gaps)
    left, right = shown(figure)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["non-linear", "attention weights"]
    means = [line for line in left.lines if len(line.get_xdata()) == 2 and line.get_lw() == 2]
    expected = [to_rgb(COLOURS[method]) for method in ("nonlinear", "attention")]
    assert [to_rgb(line.get_color()) for line in means] == expected
    np.testing.assert_allclose(means[1].get_xdata(), [0.1, 0.2])
    np.testing.assert_allclose(means[1].get_ydata(), [0.25 + 0.15, 0.5 + 0.15])
    for line in right.lines[:2]:  # where fine-tuning ended, not half way
        assert list(line.get_xdata()) == [1, 2]
        np.testing.assert_allclose(line.get_ydata(), 0.65)
    figure, axes = plt.subplots()
    maps.numbers_in(
        axes, pd.DataFrame([[0.0, 0.5, 1.0], [None, 0.7, 0.2]]), 1.0, "z.1f", cmap="Blues", vmin=0
    )
    cells = axes.collections[0].get_facecolors()[[0, 1, 2, 4, 5]]  # one has no number
    for text, cell in zip(axes.texts, cells, strict=True):
        light = sorted(map(sns.utils.relative_luminance, (text.get_color(), cell)))
        assert (light[1] + 0.05) / (light[0] + 0.05) > 3.5, text
    plt.close(figure)


def test_alignment_has_own_and_others_for_each_method(aligned):
    panels = shown(figures.layer_alignment(aligned))
    assert [axes.get_title() for axes in panels] == list(figures.PROJECTIONS)
    drawn = [[line for line in axes.lines if len(line.get_xdata())] for axes in panels]
    assert [len(lines) for lines in drawn] == [4, 4, 4, 4, 2, 2]
    own, others = drawn[0][:2]
    assert list(own.get_ydata()) == pytest.approx([0.1] * 3)
    assert list(others.get_ydata()) == pytest.approx([0.3] * 3)
    assert to_rgb(own.get_color()) == to_rgb(others.get_color()) == to_rgb(COLOURS["nonlinear"])
    assert own.is_dashed() != others.is_dashed()


def test_scatter_has_a_dot_for_each_task_and_method(interference):
    figure = figures.alignment_against_interference(interference)
    for axes in shown(figure):
        assert len(axes.collections[0].get_offsets()) == len(TASKS) * len(METHODS)
        assert axes.get_title() == "rank correlation 1.00\n[1.00, 1.00]"
    figure = figures.alignment_against_interference(interference.assign(value=1.0))
    assert {one.get_title().partition("\n")[0] for one in figure.axes} == {
        "rank correlation undefined"
    }
    both = pd.concat([interference, interference.assign(alpha=1.0, value=-interference["value"])])
    refuses("of one coefficient, not 0.3, 1", figures.alignment_against_interference, both)
