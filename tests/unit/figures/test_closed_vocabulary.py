"""Figures and tables of schemes: what is drawn is what is recorded."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_hex

from tasklab.evidence import figures
from tasklab.evidence.figures.schemes import SCHEMES, looks, role
from tasklab.evidence.records.schema import EXPERIMENTS
from tasklab.evidence.records.table import tidy
from tasklab.models import zoo
from tests import rows as rows_of
from tests.helpers import refuses
from tests.marks import marked

FAMILY = zoo.family("mini")
MODELS = (FAMILY["mae"], FAMILY["sup_few"])
TASKS = ("A", "B")
GRID = (0.0, 0.05, 0.1, 0.5, 1.0)


def row(experiment, method, metric, value, **more):
    closed = "vocabulary" in EXPERIMENTS[experiment].columns
    own = {"model": MODELS[0], "task": "A"} | ({"vocabulary": "closed"} if closed else {})
    return rows_of.row(experiment, metric, value, method=method, **own | more)


def records(seeds=(0,)):
    rows = []
    curves = {MODELS[0]: lambda x: 90 - 80 * x, MODELS[1]: lambda x: 80 + 40 * x - 100 * x**2}
    for (model, curve), seed, task in itertools.product(curves.items(), seeds, TASKS):
        more = {"model": model, "seed": seed, "task": task}
        rows.append(row("single", "probe", "single", curve(0), **more))
        for method in ("nonlinear", "full"):
            lower = 30 if method == "full" else 0
            rows.append(row("single", method, "single", 92.0 + seed, **more))
            for metric in ("absolute", "normalised"):
                sums = {"n_tasks": 2, "alpha": 0.1} | more
                rows.append(row("addition", method, metric, curve(0.1) - lower, **sums))
                for x in GRID:
                    at = {"n_tasks": 2, "alpha": x, "split": "validation"} | more
                    rows.append(row("sweep", method, metric, max(0, curve(x) - lower), **at))
            if task == "A":
                at = {"model": model, "seed": seed, "task": "all", "n_tasks": 2, "alpha": 0.1}
                rows.append(row("addition", method, "lambda", 0.1, **at))
        rows.append(row("addition", "probe", "absolute", curve(0), n_tasks=2, alpha=0.0, **more))
    return tidy(rows)


def test_roles_have_looks_and_models_names():
    assert len({colour for _, colour, _ in SCHEMES.values()}) == len(SCHEMES)
    assert len({marker for _, _, marker in SCHEMES.values()}) == len(SCHEMES)
    assert set(SCHEMES) <= set(zoo.FAMILIES[1])
    assert role(FAMILY["mae"]) == "mae" and role("mini") == "mini"
    df = records()
    assert list(looks(df)) == [MODELS[1], MODELS[0]]  # in the paper's order
    other = looks(df.assign(model="mini_t5"))
    assert other["mini_t5"][0] == "T5"
    assert figures.scheme("timm/resnet50.a1_in1k") == "timm/resnet50.a1_in1k"


def test_curves_and_regimes_have_their_lines():
    figure = figures.lambda_curves(records(seeds=(0, 1)))
    whole, near = figure.axes
    drawn = {to_hex(line.get_color()): line for line in whole.lines[::-1]}
    line = drawn[SCHEMES["mae"][1].lower()]
    assert line.get_xdata().tolist() == list(GRID)
    assert line.get_ydata().tolist() == pytest.approx([90 - 80 * x for x in GRID])
    hollow = [line for line in whole.lines if line.get_markerfacecolor() == "white"]
    assert sorted(line.get_ydata()[0] for line in hollow) == [80.0, 90.0]  # probing alone
    gains = [line.get_ydata() for line in near.lines if len(line.get_xdata()) == 3]
    assert sorted(float(g[-1]) for g in gains) == pytest.approx([-8.0, 3.0])
    others = records().replace({"method": {"nonlinear": "attention"}})
    refuses("nothing to draw", figures.lambda_curves, others)
    figure = figures.regimes(records(seeds=(0, 1)))
    (axes,) = figure.axes
    joined = [line for line in axes.lines if line.get_marker() in ("", "None")]
    ends = sorted(tuple(float(x) for x in line.get_xdata()) for line in joined)
    # The sum's accuracy and that of single tasks, 92 and 93 with two seeds.
    joins = [pair for pair in ends if pair[1] - pair[0] > 2]
    np.testing.assert_allclose(joins, [(52, 92.5), (53, 92.5), (82, 92.5), (83, 92.5)])
    spread = [pair for pair in ends if 0 < pair[1] - pair[0] < 2]
    np.testing.assert_allclose(spread, [(92.5 - np.sqrt(0.5), 92.5 + np.sqrt(0.5))] * 4)
    assert len(figure.legends[0].get_texts()) == 5
    refuses("'full'", lambda: figures.regimes(records().query("method != 'full'")))


def means(column):
    return [tuple(side and side[0] for side in cell) for cell in column]


def test_tables_have_ours_beside_the_papers():
    table = figures.beside_paper(records(seeds=(0, 1))).data
    assert table["pre-training"].tolist() == [SCHEMES["sup_few"][0], SCHEMES["mae"][0]]
    assert means(table["probing"]) == [(80.0, 72.1), (90.0, 62.8)]
    assert [theirs[-1] for _, theirs in table["sum, at λ"]] == [0.05, 0.05]
    mean, spread = table["single task"][0][0]
    assert mean == 92.5 and spread == pytest.approx(np.sqrt(0.5))
    text = figures.beside_paper(records(seeds=(0, 1))).to_html()
    assert "92.5 ± 0.7\n(90.0)" in text and " at 0.05)" in text and "nan" not in text.lower()
    whole = figures.beside_paper(records(seeds=(0, 1)), whole=True).to_html()
    assert "92 (90)" in whole and "±" not in whole and " at " not in whole
    texts = figures.texts_beside_paper(records(seeds=(0, 1)))
    assert texts["single task"][0] == "92.5 ± 0.7 (90.0)"
    assert texts["sum, at λ"].str.endswith(" at 0.05)").all()
    third = figures.beside_paper(records(), "3", method="full").data
    assert [theirs for _, theirs in means(third["normalised"])] == [46.5, 26.9]
    own = figures.beside_paper(records().assign(model="timm/resnet50"))
    assert "(" not in own.to_html().partition("</style>")[2]
    df = records()
    df = df[df["model"] == MODELS[0]].assign(model="mini_s", vocabulary="open")
    df["method"] = df["method"].replace("probe", "pretrained")
    table = figures.beside_paper(tidy(df), "4").data
    assert table["fine-tuned"].tolist() == ["encoder", "encoder and head"]
    assert [theirs for _, theirs in means(table["zero-shot"])] == [54.42] * 2
    assert [ours for ours, _ in means(table["sum, at λ"])] == pytest.approx([82.0, 52.0])
    assert table["normalised"][0][1] is None
    refuses("nothing to show", lambda: figures.beside_paper(records(), "4"))


def test_maps_tell_the_mean_of_their_box():
    grid = np.linspace(-2, 2, 5)
    rows = [
        row("disentanglement", "nonlinear", "xi_classifier", float(scale * (abs(a) + abs(b))),
            model=model, task="A+B", alpha1=a, alpha2=b)
        for model, scale in zip(MODELS, (1, 2), strict=True)
        for a, b in itertools.product(grid, repeat=2)
    ]  # fmt: skip
    figure = figures.scheme_maps(tidy(rows))
    titles = [axes.get_title() for axes in figure.axes[:2]]
    assert titles[0].replace("\n", " ").startswith(SCHEMES["sup_few"][0]) and "2.7 %" in titles[0]
    assert "1.3 %" in titles[1] and figure.axes[-1].get_xlabel().endswith("9 cells")
    wider = figures.scheme_maps(tidy(rows), box=(-2, 2))
    assert "4.8 %" in wider.axes[0].get_title()
    assert wider.axes[-1].get_xlabel().endswith("25 cells")


def test_subsets_show_means_and_what_they_gain():
    rows = []
    for k in (1, 2):
        for i, subset in enumerate(itertools.combinations("ABC", k)):
            at = {"task": "all", "subset": "+".join(subset), "n_tasks": k, "alpha": 0.1}
            rows.append(row("subsets", "nonlinear", "normalised", 100.0 - 10 * k - i, **at))
            rows.append(row("subsets", "nonlinear", "absolute", 70.0 - 10 * k - i, **at))
            rows.append(row("subsets", "probe", "absolute", 40.0, **at | {"alpha": 0.0}))
    left, right = figures.subset_curves(tidy(rows)).axes
    mean = next(line for line in left.lines if len(line.get_xdata()) == 2)
    assert mean.get_ydata().tolist() == [89.0, 79.0]
    assert right.lines[0].get_ydata().tolist() == [19.0, 9.0]
    band = right.collections[0].get_paths()[0].vertices
    at_two = band[band[:, 0] == 2, 1]
    assert [at_two.min(), at_two.max()] == pytest.approx([8.0, 10.0])  # a deviation over subsets


def test_rates_and_linearity_are_marked():
    rows = [
        row("learning_rate", "nonlinear", "single", value, lr=lr, split="validation")
        for lr, value in ((1e-4, 50.0), (1e-3, 60.0))
    ]
    rows.append(row("learning_rate", "nonlinear", "diverged_at", 3.0, lr=1e-1, split="validation"))
    rows.append(row("learning_rate", "probe", "exact", 41.0, lr=float("nan"), split="validation"))
    rows.append(row("learning_rate", "probe", "single", 40.0, lr=0.1, split="validation"))
    probe, tuned = figures.learning_rate(tidy(rows)).axes
    at = {line.get_marker(): line.get_xdata().tolist() for line in tuned.lines}
    assert at["x"] == [0.1] and [1e-3] in [line.get_xdata().tolist() for line in tuned.lines]
    assert [41.0, 41.0] in [list(line.get_ydata()) for line in probe.lines]
    df = records()
    rows = [
        row("ctl", "nonlinear", "distance", value, model=model, task=task, alpha=0.5, block=0)
        for (model, value), task in itertools.product(zip(MODELS, (0.1, 0.2), strict=True), TASKS)
    ]
    left, right = figures.linearity_against_addition(tidy(rows), df).axes
    points = {float(x): float(y) for x, y in left.collections[0].get_offsets()}
    assert points == pytest.approx({0.1: 82.0, 0.2: 83.0})
    gains = {float(x): float(y) for x, y in right.collections[0].get_offsets()}
    assert gains == pytest.approx({0.1: -8.0, 0.2: 3.0})


def test_gains_have_a_price():
    values = {"seconds_features": 2.0, "seconds_probe": 1.0, "seconds_finetune": 27.0}
    rows = [
        row("closed_cost", "nonlinear" if name.endswith("tune") else "probe", name, value, task=t)
        for (name, value), t in itertools.product(values.items(), TASKS)
    ]
    rows.append(row("closed_cost", "nonlinear", "seconds_subsets", 99.0, task="all"))
    (found,) = figures.price(tidy(rows), records()).to_dict("records")
    assert found["pre-training"] == SCHEMES["mae"][0] == figures.scheme(MODELS[0])
    assert (found["probing (s)"], found["addition (s)"], found["times"]) == (6.0, 60.0, 10.0)
    assert found["gain (points)"] == pytest.approx(-8.0)
    rows = [
        row("subsets", "full", "absolute", 50.0, task="all", subset=name, n_tasks=1)
        for name in TASKS
    ]
    for metric, value in (("tried", 9.0), ("seconds_subsets", 30.0)):
        rows.append(row("closed_cost", "full", metric, value, task="all"))
    (found,) = figures.subset_cost(tidy(rows)).to_dict("records")
    assert (found["groups"], found["coefficients tried"], found["seconds"]) == (2, 9.0, 30.0)
    figure = figures.ways_after_probing(records(seeds=(0, 1)), ["nonlinear", "full"])
    left, right = figure.axes
    # In the paper's order, supervised first; of each the non-linear sum above the other.
    assert [x for _, x in marked(left)] == pytest.approx([3.0, -27.0, -8.0, -38.0])
    names = [t.get_text().replace("\n", " ") for t in left.get_yticklabels()]
    assert names == [SCHEMES["sup_few"][0], SCHEMES["mae"][0]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        figures.METHOD_LABEL["nonlinear"], figures.METHOD_LABEL["full"],
    ]  # fmt: skip
    assert {x for _, x in marked(right)} == {0.1}
