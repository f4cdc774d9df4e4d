"""Figures of `plots.ctl` and `plots.stitching`: the right marks from synthetic tables."""

import itertools

import numpy as np
import pandas as pd
import pytest

from tasklab.evidence import figures
from tests.marks import shown
from tests.rows import crossed

PAIRS = ("Signs+Places", "Signs+Scenes", "Places+Scenes")


@pytest.fixture
def layers():
    levels = {"distance": 0.01, "base": 0.1, "coef": 1.0, "base_merged": 0.05}
    df = crossed(method=("nonlinear", "attention"), task=PAIRS, alpha=(0.25, 0.5, 0.75),
                 block=(0, 1, 2, None), metric=levels).astype({"block": "Int64"})  # fmt: skip
    v, place = df["metric"].map(levels), df["task"].map(PAIRS.index)
    return df.assign(seed=0, value=v * (place + 1), low=0.5 * v, high=2 * v)


@pytest.fixture
def stitched():
    fronts = ("own", "other", "both", "edited")
    df = pd.concat(
        crossed(subset=[p], task=p.split("+"), alpha=(0.5, 1.0), block=(0, 1), front=fronts)
        for p in PAIRS[:2]
    )
    return df.assign(value=10.0 * df["front"].map(fronts.index) + df["alpha"])


def test_a_panel_a_pair_with_base_and_each_alpha(layers):
    one = layers[layers["method"] == "nonlinear"]
    figure = figures.cross_task(one, PAIRS)
    assert [axes.get_title() for axes in shown(figure)] == [p.replace("+", "\nand ") for p in PAIRS]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["between the models", *(f"merged, {a}" for a in (0.25, 0.5, 0.75))]
    for k, axes in enumerate(shown(figure)):
        base, _, half, _ = axes.lines[:4]
        np.testing.assert_allclose(base.get_ydata(), 0.1 * (k + 1))
        np.testing.assert_allclose(half.get_ydata(), 0.01 * (k + 1))
        np.testing.assert_allclose(half.get_xdata(), [1, 2, 3, 4], atol=0.06)
        bars = np.concatenate([np.asarray(c.get_segments()) for c in axes.collections])
        spread = bars[np.isclose(bars[:, 0, 0], half.get_xdata()[0])][0]
        # Quartiles of 0.005 and 0.02 around a mean that may lie outside them.
        np.testing.assert_allclose(spread[:, 1], [0.005, max(0.02, 0.01 * (k + 1))])
        assert [tick.get_text() for tick in axes.get_xticklabels()][-0] == "out"
        assert axes.get_yscale() == "log"
    figure = figures.cross_task(one)  # all pairs in one panel
    np.testing.assert_allclose(shown(figure)[0].lines[2].get_ydata(), 0.02)


def test_methods_side_by_side(layers):
    figure = figures.cross_task_methods(layers)
    panels = shown(figure)
    assert [axes.get_title().split(":\n")[1] for axes in panels] == [
        "1 − cosine", "1 − cosine", "coefficient",
    ]  # fmt: skip
    assert {axes.get_subplotspec().rowspan.start for axes in panels} == {0}
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["non-linear", "attention weights"]
    np.testing.assert_allclose(panels[1].lines[0].get_ydata(), 0.02)
    band = panels[1].collections[0].get_paths()[0].vertices
    at_one = band[band[:, 0] == 1, 1]
    np.testing.assert_allclose([at_one.min(), at_one.max()], [0.01, 0.03])  # closest, farthest


def test_averages_beside_ensembles():
    rng = np.random.default_rng(0)
    groups = ["|".join(g) for g in itertools.combinations("abcde", 3)]
    values = rng.normal(70, 2, len(groups))
    rows = [{"metric": "averaged", "subset": g, "value": v} for g, v in zip(groups, values)]  # noqa: B905
    rows += [{"metric": "ensemble", "subset": g, "value": v + 1} for g, v in zip(groups, values)]  # noqa: B905
    rows += [{"metric": "alone", "subset": name, "value": 68.0} for name in "abcde"]
    rows.append({"metric": "distance", "subset": "", "value": 0.1, "experiment": "ctl_average"})
    df = pd.DataFrame(rows).fillna({"experiment": "averaging"}).assign(seed=0)
    (axes,) = shown(figures.averaging(df))
    (dots,) = axes.collections
    x, y = np.asarray(dots.get_offsets()).T
    np.testing.assert_allclose(y - x, 1)
    assert len(x) == len(groups)
    assert axes.get_title() == "correlation 1.00, 10 groups that share models"
    assert axes.get_xlim() == axes.get_ylim()


def test_stitched_models_have_axes_and_depths(stitched):
    figure = figures.stitched_addition(stitched[stitched["block"] == 1])
    axes = shown(figure)[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Signs (%)", "Places (%)")
    first, second, both, edited = axes.lines
    np.testing.assert_allclose(first.get_xdata(), [0.5, 1.0])  # its own task
    np.testing.assert_allclose(first.get_ydata(), [10.5, 11.0])  # the other one
    np.testing.assert_allclose(second.get_xdata(), [10.5, 11.0])
    np.testing.assert_allclose(both.get_ydata(), [20.5, 21.0])
    np.testing.assert_allclose(edited.get_ydata(), [30.5, 31.0])
    panels = shown(figures.stitched_depth(stitched[stitched["alpha"] == 1]))
    assert [axes.get_title() for axes in panels] == [p.replace("+", "\nand ") for p in PAIRS[:2]]
    np.testing.assert_allclose(panels[0].lines[2].get_ydata(), 21.0)
    assert list(panels[0].lines[2].get_xdata()) == [1, 2]


def test_stitched_negation_tells_task_from_control():
    start = {"Signs": 60.0, "Objects": 40.0}
    df = crossed(task=start, subset=["Signs"], alpha=(0.0, 1.0), front=("features", "weights"))
    figure = figures.stitched_negation(df.assign(value=df["task"].map(start) - df["alpha"]))
    (axes,) = shown(figure)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0] == "task, features subtracted" and labels[1].startswith("control, ")
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [60, 59])
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [40, 39])


@pytest.fixture
def scratch():
    common, start = {"seed": 0, "method": "nonlinear"}, {"a": 1.0, "b": 2.0, "start": 3.0}
    along = crossed(task=start, alpha=(0.0, 0.5, 1.0), metric=("loss", "accuracy"))
    along = along.assign(subset="a+b", value=along["task"].map(start) + along["alpha"], **common)
    level = {"distance": 0.01, "base": 0.5, "coef": 1.0}
    df = crossed(alpha=(0.25, 0.5, 0.75), block=(0, 1, 2), pretraining=(0, 10), metric=level)
    v = df["metric"].map(level) * (df["pretraining"] + 1).where(df["metric"] == "distance", 1)
    df = df.assign(task="a+b", ratio=0.0, value=v * (df["block"] + 1), low=v, high=4 * v, **common)
    return along, df.astype({"block": "Int64"})


def test_segments_and_emergence_of_small_networks(scratch):
    along, features = scratch
    figure = figures.segments(along, features)
    loss, accuracy, distance = shown(figure)
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told[3:] == ["features: between the models, early layers faint", "features: merged"]
    for axes in (loss, accuracy):
        ends = sorted(line.get_ydata()[-1] for line in axes.lines)
        np.testing.assert_allclose(sorted(set(np.round(ends, 6))), [2.0, 3.0, 4.0])
    assert len(shown(figures.segments(along))) == 2
    assert distance.get_xlabel() == "α"
    for axes in (loss, accuracy, distance):  # on one axis, in one row
        assert axes.get_xticks().tolist() == [0, 0.25, 0.5, 0.75, 1]
        assert axes.get_xlim() == loss.get_xlim()
        assert axes.get_subplotspec().rowspan.start == 0
    _, features = scratch
    figure = figures.emergence([("pre-training", features)], ["pretraining"])
    top, bottom = shown(figure)
    assert top.get_title() == "pre-training"
    merged = [line for line in top.lines if len(line.get_xdata()) == 2]
    assert list(merged[0].get_xdata()) == [0, 10]
    np.testing.assert_allclose(bottom.lines[0].get_ydata()[:2], 1.0)
