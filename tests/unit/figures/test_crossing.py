"""The cross-examination as a table and as correlations."""

import itertools

import numpy as np
import pandas as pd
import pytest

from tasklab.evidence import figures
from tasklab.evidence.figures.labels import METRIC_LABEL
from tasklab.evidence.records.foretelling import foretold
from tasklab.evidence.records.schema import EXPERIMENTS, LEADING_MERGES
from tasklab.evidence.records.table import nothing, tidy

TASKS = [f"task {i}" for i in range(6)]


def records():
    rows = []
    for model, method in (("mini", "nonlinear"), ("mini", "linearized"), ("mini_few", "nonlinear")):
        common = {"experiment": "crossing", "model": model, "method": method, "seed": 0}

        def add(task, metric, value, common=common):
            n = 1 + ("+" in task)
            rows.append({**common, "task": task, "metric": metric, "value": value, "n_tasks": n})

        for i, task in enumerate(TASKS):
            add(task, "norm", float((7 * i) % 5))
            add(task, "single", 90.0 + i)
            add(task, "lost_sum", 10.0 + i)
            if model == "mini":
                for merge in LEADING_MERGES:
                    add(task, f"lost_{merge}", float((7 * i) % 5) + i / 10)
        for (i, one), (j, other) in itertools.combinations(enumerate(TASKS), 2):
            add(f"{one}+{other}", "distance", float(i * 3 + j))
            add(f"{one}+{other}", "lost", float(2 * (i * 3 + j)))
    return tidy(rows)


def crossed(df):
    return figures.tabulate(figures.with_encoder(df), "metric", "way").set_index("metric")


def test_the_table_has_a_column_for_each_method_and_encoder():
    assert set(METRIC_LABEL) == set(EXPERIMENTS["crossing"].metrics)
    table = crossed(records())
    ways = ["non-linear", "linearized", "supervised, fewer classes"]
    assert table.columns.tolist() == ways
    by = table["non-linear"]
    assert by["single-task accuracy"] == 92.5 and by["loss in the sum of all"] == 12.5
    merged = table.loc["loss in the merge: TIES"]
    assert merged["non-linear"] == pytest.approx(10 / 6 + 0.25)
    assert figures.tabulate(nothing(), "metric", "way").empty
    assert np.isnan(table.loc["loss in the merge: TIES", "supervised, fewer classes"])
    other = records().replace({"model": {"mini_few": "mini_convnext"}})
    assert crossed(other).columns[-1] == "ConvNeXt"
    rows = records()
    start = {"method": "pretrained", "metric": "share", "value": 3.0}
    several = {"method": "linearized", "metric": "trainable", "value": 2e6}
    one = rows[(rows["metric"] == "norm") & (rows["model"] == "mini")].iloc[:1]
    table = crossed(pd.concat([rows, one.assign(**start), one.assign(**several)]))
    assert table.loc["localization of the kernel"].tolist()[:2] == [3.0, 3.0]
    assert table.loc["trained parameters", "linearized"] == 2.0


def test_correlations_have_intervals():
    pair, whole = figures.merging_foretold(records()).axes
    known = foretold("lost").set_index("metric")
    labels = [text.get_text() for text in pair.get_yticklabels()]
    assert {"distance from linearity", "single-task accuracy", "norm of the vector"} <= set(labels)
    at = labels.index("distance from linearity")
    lines = [line.get_xydata() for line in pair.lines if line.get_markersize() == 6]
    points = [float(x) for xy in lines for x, y in xy if round(float(y)) == at and x == x]
    assert points == [pytest.approx(known["value"]["distance"])]
    assert whole.get_xlim() == (-1.05, 1.05)
    few = records()
    few = few[~few["metric"].isin(["lost", "lost_sum"])]
    assert figures.once_recorded(figures.merging_foretold, few) is None
