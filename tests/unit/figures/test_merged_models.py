"""Figures of merged models: numbers in two models, curves over rates, what merges take."""

import itertools
import re

import pandas as pd
import pytest

from tasklab.evidence import figures
from tasklab.evidence.records.matched import gaps_at_equal_accuracy, merges_at_equal_accuracy
from tasklab.evidence.records.table import nothing, tidy
from tasklab.tuning.methods import TABLE
from tests.rows import row

MERGES = ("arithmetic", "wudi")
# Rate -> accuracy alone: linearized vectors learn less at any rate.
ALONE = {"nonlinear": {1e-4: 60.0, 2e-4: 80.0, 4e-4: 90.0}, "linearized": {2e-4: 70.0, 4e-4: 80.0}}


def models():
    values = {"absolute": 70.0, "xi_classifier": 20.0, "distance": 0.1, "coef": 1.0}
    return tidy(
        row("merged", metric, value - (edited == "tangent") * value / 10,
            n_tasks=n, merge=merge, edited=edited, seed=seed)
        for metric, value in values.items()
        for edited in ("network", "tangent")
        for merge in MERGES
        for n in (2, 8)
        for seed in (0, 1)
    )  # fmt: skip


def rates(seeds=(0,), alone_of=ALONE):
    rows = []
    for method, by_rate in alone_of.items():
        for lr, alone in by_rate.items():
            for seed in seeds:
                common = {"method": method, "lr": lr, "seed": seed}
                rows.append(row("merging_rates", "single", alone + seed, **common))
                # Half of what is learnt, less with more tasks; more if linearized, and with seeds.
                for merge, n in itertools.product(MERGES, (2, 8)):
                    value = alone / 2 + (6 + seed) * (method == "linearized") + 10 * (n == 2)
                    more = common | {"merge": merge, "n_tasks": n}
                    rows.append(row("merging_rates", "absolute", value, **more))
    return tidy(rows)


def test_three_panels_have_both_models():
    figure = figures.merge_models(models())
    assert [axes.get_xlabel().split("\n")[0] for axes in figure.axes] == [
        "test accuracy", "disentanglement", "distance"]  # fmt: skip
    lines = [line for line in figure.axes[0].lines if line.get_markersize() == 6]
    found = [line.get_xdata().tolist() for line in lines if len(line.get_xdata()) == len(MERGES)]
    assert found == [pytest.approx([70.0, 70.0]), pytest.approx([63.0, 63.0])]


def test_rates_are_read_where_a_way_ends():
    found = merges_at_equal_accuracy(rates(seeds=(0, 1)))
    assert found["alone"].unique().tolist() == [80.0, 81.0]
    values = found.groupby(["method", "n_tasks", "seed"])["value"].mean()
    assert values["linearized", 8, 0] == 46.0 and values["nonlinear", 8, 0] == 40.0
    assert values["nonlinear", 8, 1] == 40.0  # its own 81 is at the second rate
    assert values["linearized", 2, 0] == 56.0 and values["nonlinear", 2, 0] == 50.0
    gaps = gaps_at_equal_accuracy(rates(seeds=(0, 1)))
    assert set(gaps["method"]) == {"linearized"}
    of_wudi = gaps[gaps["merge"] == "wudi"].set_index(["n_tasks", "seed"])["gap"]
    assert of_wudi.to_dict() == {(2, 0): 6, (2, 1): 7, (8, 0): 6, (8, 1): 7}
    short = rates().query("method == 'linearized' or lr > 3e-4")  # does not reach down
    assert set(merges_at_equal_accuracy(short)["method"]) == {"linearized"}
    assert merges_at_equal_accuracy(nothing()).empty
    turning = {"nonlinear": {1e-4: 60.0, 1e-3: 72.0, 1e-2: 66.0},
               "linearized": {1e-4: 55.0, 1e-3: 65.0, 1e-2: 70.0}}  # fmt: skip
    found = merges_at_equal_accuracy(rates(alone_of=turning)).query("n_tasks == 8")
    assert found["alone"].unique().tolist() == [66.0]  # not the 70 below the best of both
    values = found.groupby("method")["value"].unique().explode()
    assert values.to_dict() == pytest.approx({"nonlinear": 33.0, "linearized": 39.0})


def test_rows_and_points_are_numbers_of_tasks():
    table = figures.merge_rates_table(rates(seeds=(0, 1)))
    assert table.columns.tolist() == ["tasks", "merge", "alone", "non-linear", "linearized"]
    assert table[["tasks", "merge"]].to_numpy().tolist() == [
        [2, "Task arithmetic"], [2, "WUDI"], [8, "Task arithmetic"], [8, "WUDI"]]  # fmt: skip
    assert table["alone"].tolist() == [80.5] * 4
    assert table["non-linear"].tolist() == [50, 50, 40, 40]
    assert table["linearized"].tolist() == ["+6.5 (0.1 to 12.9)"] * 4  # 12.7 times 0.5 on each side
    assert figures.merge_rates_table(rates())["linearized"].tolist() == ["+6.0"] * 4  # one seed
    (axes,) = figures.merge_even(rates(seeds=(0, 1))).axes
    drawn = [line.get_xdata().tolist() for line in axes.lines if line.get_marker() in ("o", "s")]
    assert sorted(x for line in drawn for x in line) == [6.5] * 4
    assert axes.get_title() == "linearized"
    table = rates()
    others = table[table["method"] == "linearized"].assign(method="attention")
    wudi = (table["merge"] == "wudi") & (table["n_tasks"] == 2) & (table["method"] == "linearized")
    table.loc[wudi, "value"] -= 40
    left, right = figures.merge_even(tidy(pd.concat([table, others]).to_dict("records"))).axes
    assert left.get_xlim()[0] == pytest.approx(right.get_xlim()[0]) and right.get_xlim()[0] > -5
    assert [arrow.get_text() for arrow in left.texts] == ["−34.0"] and not right.texts


def strengths():
    own = TABLE["ortho_reg"].weight
    sums = {0.0: 60.0, own: 64.0, 10 * own: 62.0}
    rows = []
    for at, (penalty, value) in enumerate(sums.items()):
        for seed in (0, 1):
            common = {"method": "ortho_reg", "seed": seed, "penalty": penalty}
            for split, shift in (("validation", 0.0), ("test", 10.0 * at)):
                both = common | {"split": split}
                rows.append(row("penalty_strength", "single", 90.0 - at, **both))
                rows.append(row("penalty_strength", "absolute", value + shift + seed, **both))
    return tidy(rows)


def test_strengths_are_chosen_on_validation_images():
    table = figures.strength_table(strengths())
    assert table["method"].tolist() == ["ortho_reg"] * 3
    assert table["chosen"].tolist() == [False, True, False]  # on test images the last is best
    assert table["sum"].tolist() == [60.5, 74.5, 82.5] and table["alone"].tolist() == [90, 89, 88]
    assert figures.strength_table(nothing()).columns.tolist() == table.columns.tolist()
    figure = figures.penalty_strengths(strengths())
    left, right = figure.axes
    assert [text.get_text() for text in right.get_xticklabels()] == ["0", "1", "10"]
    assert [axes.get_ylabel().split()[0] for axes in (left, right)] == ["single-task", "accuracy"]
    curve = next(line for line in right.lines if len(line.get_xdata()) == 3)
    assert curve.get_ydata().tolist() == [60.5, 74.5, 82.5]
    (marked,) = (line for line in right.lines if line.get_markersize() == 10)
    assert (marked.get_xdata().tolist(), marked.get_ydata().tolist()) == ([1], [74.5])
    gone = row("penalty_strength", "diverged_at", 39.0, method="ortho_reg", split="validation")
    table = pd.concat([strengths(), tidy([gone | {"penalty": 100 * TABLE["ortho_reg"].weight}])])
    assert figures.strength_table(table)["factor"].tolist() == [0, 1, 10]
    for axes in figures.penalty_strengths(table).axes:
        (cross,) = (line for line in axes.lines if line.get_marker() == "x")
        assert cross.get_xdata().tolist() == [3] and cross.get_ydata()[0] == axes.get_ylim()[0]


def test_costs_are_a_table():
    values = {"seconds": 1.5, "memory_ratio": 1.2, "peak_memory": 9.0, "passed": 64.0}
    values["searched"] = 7680.0
    rows = [
        row("merging_cost", metric, value, task="all", merge=merge, n_tasks=8)
        for metric, value in values.items()
        for merge in MERGES
    ]
    rows = tidy(rows)
    rows = rows[rows["metric"] != "peak_memory"]
    table = figures.tabulate(rows, "merge", "metric")
    assert list(table)[1:] == [
        "seconds",
        "memory / the vectors'",
        "images passed",
        "images searched",
    ]
    assert [kind.kind for kind in table.dtypes][1:] == ["f", "f", "i", "i"]
    assert table["merge"].tolist() == ["Task arithmetic", "WUDI"]
    assert table.iloc[0].tolist()[1:] == [1.5, 1.2, 64, 7680]
    assert figures.tabulate(nothing(), "merge", "metric").empty
    assert figures.merge_rates_table(nothing()).empty


def test_a_choice_without_labels_has_its_cost_and_interval_over_tasks():
    tasks, rows = {"Signs": 0.0, "Places": 1.0, "Scenes": 5.0}, []
    merges = {"ties": (70.0, 0.9), "tsv_m": (80.0, 0.5)}  # accuracy, E; labels take TSV-M as well
    for merge, (reached, loss) in merges.items():
        common = {"merge": merge, "n_tasks": 8}
        of_all = common | {"task": "all", "split": "validation"}
        rows.append(row("merge_loss", "absolute", reached, chosen_by="labels", **of_all))
        signs = {"features": 1, "normalised": 1, "logits": -1}
        rows += [
            row("merge_loss", "relative_loss", sign * loss, chosen_by=by, **of_all)
            for by, sign in signs.items()
        ]
        for task, lost in tasks.items():
            at = common | {"task": task, "split": "test"}
            rows.append(row("merging", "absolute", reached, **at))
            rows += [
                row("merge_loss", "absolute", reached - lost, chosen_by=by, **at) for by in signs
            ]
    table = figures.merge_choice_table(tidy(rows)).set_index("chosen by")
    half = 4.3027 * (7 / 3) ** 0.5  # Student's quantile of three tasks, and the standard error
    assert table.loc["features", "test accuracy"] == 78 and table.loc["logits", "merge"] == "TIES"
    for by, cost in (("features", 2.0), ("features, tasks alike", 2.0), ("logits", 12.0)):
        found = re.findall(r"-?[\d.]+", table.loc[by, "below labels"].replace("−", "-"))
        expected = pytest.approx([cost, cost - half, cost + half], abs=0.051)
        assert [float(x) for x in found] == expected
    assert table.loc["labels", "below labels"] == "–"
