"""Figures of `plots.theory`: the right marks from synthetic tables, and readable text."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgb

from tasklab.evidence.figures import curvature as figures
from tasklab.evidence.figures.style import COLOURS
from tests.helpers import refuses
from tests.marks import shown
from tests.rows import crossed

METHODS = ("nonlinear", "linearized")


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    rows = []
    for group, curvature in (("Textures", 4.0), ("Scenes", 20.0)):
        for one, other in itertools.combinations("abcd", 2):
            distance = rng.uniform(1, 9)
            bound = curvature * distance / 8
            rows.append(
                (one, other, group, bound / rng.uniform(5, 500), curvature, distance, bound)
            )
    columns = ["one", "other", "group", "value", "curvature", "distance", "bound"]
    return pd.DataFrame(rows, columns=columns)


@pytest.fixture
def fits():
    rows = [("bound", 0.9, 0.8, 0.95), ("curvature", np.nan, np.nan, np.nan),
            ("distance", 0.5, 0.25, 0.75)]  # fmt: skip
    return pd.DataFrame(rows, columns=["predictor", "value", "low", "high"])


@pytest.fixture
def sums():
    scale = {"distance": 1e-3, "base_merged": 0.1, "first": 0.2, "coef": 1.0}
    df = crossed(method=METHODS, n_tasks=range(2, 9), block=(0, None), metric=scale)
    grown = 1 + df["n_tasks"] * (2 + df["method"].map(METHODS.index)) / 10
    value = df["metric"].map(scale) * grown * np.where(df["block"].isna(), 1, 9)
    df = df.assign(value=value, low=0.5 * value, high=2 * value, alpha=0.2)
    return df.astype({"block": "Int64"})


def triples_of(methods):
    rng = np.random.default_rng(0)
    rows = [
        (method, *names, p, v, 2 * p, 2 * v)
        for method in methods
        for names in itertools.permutations("abcd", 3)
        for p, v in (10 ** rng.uniform(-3, -1, 2),)
    ]
    names = ["predicted", "value", "relative_predicted", "relative"]
    triples = pd.DataFrame(rows, columns=["method", "one", "middle", "other", *names])
    told = {"rank": -0.5, "low": -0.7, "high": 0.2, "rank_unlinked": 0.1, "held": 12,
            "violations": 0.25, "violations_unlinked": 0.5}  # fmt: skip
    return triples, pd.DataFrame([{"method": method, **told} for method in methods])


def dots(axes):
    return np.asarray(axes.collections[0].get_offsets())


def test_each_predictor_has_a_panel_with_all_pairs(pairs, fits):
    figure = figures.gap_against_bound(pairs, fits)
    panels = shown(figure)
    share = (pairs["value"] / pairs["bound"]).median()
    assert [axes.get_title() for axes in panels] == [
        f"R² 0.90 [0.80, 0.95]\nmedian δ / bound: {share:.2g}",
        "R² undefined: one value",
        "R² 0.50 [0.25, 0.75]",
    ]
    for axes, name in zip(panels, ("bound", "curvature", "distance"), strict=True):
        assert axes.get_xscale() == axes.get_yscale() == "log"
        np.testing.assert_allclose(dots(axes), pairs[[name, "value"]])
        colours = [to_hex(colour) for colour in axes.collections[0].get_facecolors()]
        assert len(dict(zip(pairs["group"], colours, strict=True))) == len(set(colours)) == 2
    assert [len(axes.lines) for axes in panels] == [1, 0, 0]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["Textures", "Scenes"]


def test_lines_groups_and_lengths_are_told_apart(pairs, fits):
    reached = pairs.assign(value=pairs["bound"])
    axes = figures.gap_against_bound(reached, fits).axes[0]
    line = axes.lines[-1]
    np.testing.assert_allclose(line.get_xdata(), line.get_ydata())
    inside = (axes.get_xlim()[0], axes.get_ylim()[0])
    assert max(inside) == pytest.approx(line.get_xdata()[0])
    # Far below the bound there is nothing to show of it, and the axes stay where they are.
    axes = figures.gap_against_bound(pairs.assign(value=1e-6 * pairs["bound"]), fits).axes[0]
    assert not axes.lines and axes.get_ylim()[1] < 1e-3
    looks = figures.group_looks([str(i) for i in range(30)])
    assert len({look[1:] for look in looks.values()}) == 30
    figure = figures.gap_against_bound(pairs.drop(columns="group"), fits)
    assert not figure.legends
    assert len(dots(shown(figure)[1])) == len(pairs)
    lengths = {"Textures": "10 epochs", "Scenes": "5 epochs"}
    seeds = [f"{lengths[group]}, seed {i % 3}" for i, group in enumerate(pairs["group"])]
    figure = figures.gap_against_bound(pairs.assign(group=seeds), fits)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["5 epochs", "10 epochs"]
    looks = figures.group_looks(["10 epochs", "0 epochs", "5 epochs"])
    expected = sorted((sum(to_rgb(look[1])) for look in looks.values()), reverse=True)
    assert [sum(to_rgb(look[1])) for look in looks.values()] == expected


def test_the_form_has_means_quartiles_and_a_baseline(sums):
    figure = figures.sum_form(sums)
    left, right = shown(figure)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:2] == ["non-linear", "linearized"]
    for axes, metric in ((left, "distance"), (right, "coef")):
        for method, line in zip(METHODS, axes.lines, strict=False):
            rows = sums[(sums["method"] == method) & (sums["metric"] == metric)]
            rows = rows[rows["block"].isna()]
            assert list(line.get_xdata()) == list(range(2, 9))
            np.testing.assert_allclose(line.get_ydata(), rows.groupby("n_tasks")["value"].mean())
            assert to_rgb(line.get_color()) == to_rgb(COLOURS[method])
    base, start = left.lines[2:6:2]
    assert (base.get_linestyle(), start.get_linestyle()) == ("--", ":")
    np.testing.assert_allclose(start.get_ydata(), 2 * base.get_ydata())
    np.testing.assert_allclose(base.get_ydata()[0], 0.1 * (1 + 2 * 2 / 10))
    band = left.collections[0].get_paths()[0].vertices
    at_two = band[band[:, 0] == 2, 1]
    np.testing.assert_allclose([at_two.min(), at_two.max()], [1e-3 * 0.7, 1e-3 * 2.8])
    assert len(right.collections) == 2


def test_triples_are_dots_and_numbers_stand_above():
    triples, summary = triples_of(METHODS)
    figure = figures.transitivity(triples, summary, 0.05)
    left, right = shown(figure)
    for axes, (x, y) in zip(
        (left, right), (("predicted", "value"), ("relative_predicted", "relative")), strict=True
    ):
        np.testing.assert_allclose(dots(axes), triples[[x, y]])
        colours = [to_hex(colour) for colour in axes.collections[0].get_facecolors()]
        assert colours == [COLOURS[method].lower() for method in triples["method"]]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0] == "non-linear\nρ −0.50 [−0.70, 0.20]\nunlinked ρ 0.10"
    assert left.get_title() == "rank correlation ρ [95 %]"
    assert "linearized: 25% of 12 [50%]" in right.get_title()
    corner = right.collections[1].get_paths()[0].vertices
    assert corner[:, 0].max() == corner[:, 1].min() == 0.05
    assert len(left.collections) == 1


def test_triples_without_method_baseline_or_threshold():
    triples, summary = triples_of(["nonlinear"])
    alone, summary = triples.drop(columns="method"), summary.drop(columns="method")
    left, right = shown(figures.transitivity(alone, summary))
    assert "\nρ −0.50 [−0.70" in left.get_title() and not right.get_title()
    assert len(right.collections) == 1
    without = alone.drop(columns=["relative", "relative_predicted"])
    assert len(shown(figures.transitivity(without, summary, 0.5))) == 1
    nothing = summary.assign(held=0, violations=np.nan)
    some = triples_of(METHODS)
    held = some[1]["held"].where(some[1]["method"] == "nonlinear", 0)
    title = figures.transitivity(some[0], some[1].assign(held=held), 0.5).axes[1].get_title()
    assert title.endswith("non-linear: 25% of 12 [50%]\nothers: no premises hold")
    assert "no premises hold" in figures.transitivity(alone, nothing, 0.5).axes[1].get_title()


def test_wrong_tables_are_said(pairs, fits):
    triples, summary = triples_of(METHODS)
    refuses("nothing to draw", figures.gap_against_bound, pairs[:0], fits)
    refuses("nothing to draw", figures.transitivity, triples[:0], summary)
    refuses("no curvature, distance", figures.gap_against_bound, pairs, fits[:1])
    refuses("choose a layer", lambda: figures.transitivity(triples, pd.concat([summary, summary])))
