"""Figures of disentanglement and coefficients: the right marks, readable text, nothing cut off."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle

from tasklab.errors import TasklabError
from tasklab.evidence.figures import disentanglement
from tasklab.evidence.figures.style import METHOD_LABEL
from tests.helpers import refuses
from tests.marks import marked, texts
from tests.rows import crossed

TASKS = ("Signs", "Places", "Scenes", "Textures", "Handwritten")
PAIRS = ("Textures+Scenes", "Vehicles+Places", "Handwritten+Numbers")


def maps(methods=("nonlinear", "posthoc"), pairs=PAIRS, reach=3, points=7):
    alphas, metrics = np.linspace(-reach, reach, points), ("xi_classifier", "xi_representation")
    df = crossed(method=methods, task=pairs, metric=metrics, seed=(0, 1), alpha1=alphas,
                 alpha2=alphas)  # fmt: skip
    return df.assign(n=64, value=df["alpha1"].abs() + 10 * df["alpha2"].abs() + df["seed"])


def curves(methods=("linearized", "posthoc")):
    rows: list[dict[str, Any]] = []
    steps = {"Signs": [(0.0, 60.0), (1 / 3, 90.0)], "Places": [(0.0, 70.0), (2 / 3, 50.0)]}
    for method, split, task in itertools.product(methods, ("validation", "test"), steps):
        common = {"method": method, "split": split, "task": task, "seed": 0}
        value = lambda a, task=task: [v for x, v in steps[task] if x <= a][-1]  # noqa: E731
        marks = {"normalised_exact": [x for x, _ in steps[task]], "normalised_grid": [0, 0.5, 1],
                 "chosen_exact": [0.49], "chosen_grid": [0.5]}  # fmt: skip
        rows += [{**common, "metric": metric, "alpha": a, "value": value(a)}
                 for metric, alphas in marks.items() for a in alphas]  # fmt: skip
    return pd.DataFrame(rows)


def choices(methods=("nonlinear", "posthoc", "linearized"), seeds=2):
    df = crossed(method=methods, seed=range(seeds), split=("validation", "test"), task=TASKS,
                 metric=("normalised_shared", "normalised_own"))  # fmt: skip
    own, gain = df["metric"] == "normalised_own", df["split"].map({"validation": 3, "test": -0.5})
    alpha = (0.1 + 0.2 * df["task"].map(TASKS.index)).where(own, 0.3)
    return df.assign(alpha=alpha, value=80.0 + gain.where(own, 0))


THREE = ("nonlinear", "posthoc", "linearized")
DRAWN = {
    "heatmaps": lambda: disentanglement.heatmaps(maps()),
    "three methods": lambda: disentanglement.heatmaps(maps(THREE, PAIRS[:2]), "xi_representation"),
    "one pair": lambda: disentanglement.heatmaps(maps(THREE, PAIRS[:1])),
    "one map": lambda: disentanglement.heatmaps(maps(("nonlinear",), PAIRS[:1])),
    "by model": lambda: disentanglement.heatmaps(by_model(), across="model"),
    "exact_curve": lambda: disentanglement.exact_curve(curves()),
    "per_task": lambda: disentanglement.per_task_coefficients(choices()),
    "one method": lambda: disentanglement.per_task_coefficients(choices(("linearized",), 1)),
}


def test_heatmaps_put_alpha_1_across_and_average_seeds():
    figure = disentanglement.heatmaps(maps(points=7))
    panel = figure.axes[0]
    mesh = panel.collections[0]
    table = mesh.get_array().reshape(7, 7)  # rows are alpha_2
    assert table[0, 3] == pytest.approx(30 + 0.5) and table[3, 0] == pytest.approx(3 + 0.5)
    assert (mesh.norm.vmin, mesh.norm.vmax) == (0, 200)
    assert panel.get_xlabel().endswith("(Textures)") and panel.get_ylabel().endswith("(Scenes)")
    assert panel.get_xticks().tolist() == panel.get_yticks().tolist() == [-3, 0, 3]
    assert [t.get_text() for t in panel.get_xticklabels()] == ["−3", "0", "3"]
    box = next(p for p in panel.patches if isinstance(p, Rectangle))
    assert (box.get_xy(), box.get_width(), box.get_height()) == ((0, 0), 1, 1)
    # cells (0, 0), (0, 1), (1, 0), (1, 1): 0, 10, 1, 11, and half a seed
    assert panel.get_title() == "non-linear\nsquare: 6.0 %"
    assert scale_of(figure).get_xlabel().endswith("4 cells")


def test_columns_are_models_with_their_names():
    figure = disentanglement.heatmaps(maps(pairs=[r"$\frac$+b$"]))
    labels = [text.get_text() for text in texts(figure)]
    assert [x for x in labels if r"\$\frac\$" in x] and [x for x in labels if r"b\$" in x]
    figure = disentanglement.heatmaps(by_model(), across="model")
    assert [axes.get_title().split("\n")[1] for axes in figure.axes[:3]] == [
        "smallest CLIP", "CLIP", "c"]  # fmt: skip
    refuses("one pair", lambda: disentanglement.heatmaps(maps(), across="seed"))
    rows = by_model()
    lacks = (rows["model"] == MODELS[0]) & (rows["method"] == "posthoc")
    rows["method"] = rows["method"].mask(lacks, "linearized")  # which comes after, not before
    panels = [a for a in disentanglement.heatmaps(rows, across="model").axes if a.get_title()]
    names = [axes.get_title().split("\n")[1] for axes in panels]
    assert names == [*names[:3], *names[:3]] and len(set(names)) == 3


def scale_of(figure):
    return figure.axes[-1]


MODELS = ("mini_xs", "mini", "c")


def by_model():
    parts = [maps(("nonlinear", "posthoc"), PAIRS[:1]).assign(model=m) for m in MODELS]
    return pd.concat(parts, ignore_index=True)


def test_scales_are_shared_and_boxes_told_apart():
    figure = disentanglement.heatmaps(maps(), "xi_representation")
    meshes = [axes.collections[0] for axes in figure.axes[:6]]
    assert {mesh.norm.vmax for mesh in meshes} == {33.5}  # |-3| + 10 |-3| + 1/2
    light, dark = (sum(meshes[0].cmap(x)[:3]) for x in (0.0, 1.0))
    assert light > 2.5 > dark
    tops = {}
    for factor in (1, 5, 20):  # of a mean of 6 % in the box, and of 33.5 % at the corner
        df = maps().assign(value=lambda t, f=factor: t["value"] * f)
        bar, norm = (
            scale_of(figure := disentanglement.heatmaps(df)),
            figure.axes[0].collections[0].norm,
        )
        tops[factor] = norm.vmax, bar._colorbar.extend
        assert norm(norm.vmax / 4) == pytest.approx(0.5)  # of square roots
    assert tops == {1: (200, "neither"), 5: (200, "neither"), 20: (200, "max")}
    figure = disentanglement.heatmaps(maps(points=7), box=(-1, 1))
    assert scale_of(figure).get_xlabel().endswith("9 cells")
    # |a| and 10 |a| are 2/3 and 20/3 on average over -1, 0, 1, and half a seed
    assert "7.8 %" in figure.axes[0].get_title()


def test_exact_curves_have_steps():
    figure = disentanglement.exact_curve(curves(("linearized",)))
    step, grid, *chosen = figure.axes[0].lines
    assert step.get_drawstyle() == "steps-post"
    assert step.get_xdata().tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert step.get_ydata().tolist() == [65, 80, 70, 70]
    assert grid.get_ydata().tolist() == [65, 80, 70]
    assert [line.get_xdata()[0] for line in chosen] == [0.5, 0.49]
    assert [line.get_ydata()[0] for line in chosen] == [80, 80]
    _, near = disentanglement.exact_curve(curves(("linearized",))).axes[:2]
    low, high = near.get_ylim()  # the mean is 80 from 1/3 to 2/3
    assert low < 80 < high and near.get_xlim() == pytest.approx((0.41, 0.58))


def test_own_coefficients_are_drawn_and_missing_records_say_so():
    figure = disentanglement.per_task_coefficients(choices(("posthoc",)))
    left, right = figure.axes[:2]
    expected = [(i, pytest.approx(0.1 + 0.2 * i)) for i in range(5)]
    assert marked(left) == expected
    assert [t.get_text() for t in left.get_yticklabels()] == list(TASKS)
    assert any(line.get_xdata() == pytest.approx([0.3, 0.3]) for line in left.lines)  # shared
    (_, validation), (_, test) = marked(right)
    assert (validation, test) == (pytest.approx(3), pytest.approx(-0.5))
    assert right.get_yticklabels()[0].get_text().replace("\n", " ") == METHOD_LABEL["posthoc"]
    with pytest.raises(TasklabError, match="no records of 'xi_classifier'"):
        disentanglement.heatmaps(maps().query("metric == 'xi_representation'"))
    refuses("xi_representation", lambda: disentanglement.heatmaps(maps(), "xi"))
    with pytest.raises(TasklabError, match="normalised_exact test"):
        disentanglement.exact_curve(curves().query("split == 'validation'"), "test")
    refuses("one seed", disentanglement.exact_curve, pd.concat([curves(), curves().assign(seed=1)]))
    refuses("normalised_own", lambda: disentanglement.per_task_coefficients(curves()))
