"""Merged vectors in both models, on a rehearsal: they are those that `merging` chose."""

import pytest

from tasklab.analyses import editing
from tasklab.bench.merges import FULL, REHEARSAL
from tasklab.evidence.experiments import Lab, merged, merging, merging_cost
from tasklab.evidence.records.table import read, write
from tasklab.tasks.suites import suite
from tests.helpers import refuses

TASKS = ("Signs", "Places")
FEW = ("average", "arithmetic", "ties", "regmean", "fisher", "best_span", "least_logits")


@pytest.fixture(scope="module")
def lab():
    return Lab(model="mini_xs", steps=1, tasks=TASKS, progress=False)


@pytest.fixture(scope="module")
def table(lab):
    return merged(lab, ["nonlinear", "posthoc"], FEW)


def test_every_merge_is_in_both_models(table, tmp_path):
    counts = table.groupby(["method", "merge", "edited"], dropna=False)["metric"].value_counts()
    by = counts.unstack(fill_value=0)
    inside = by.loc[by.index.get_level_values("edited").notna()]
    assert len(inside) == 2 * len(FEW) * 2
    of_tasks = ["absolute", "normalised", "xi_classifier", "xi_representation", "distance", "coef"]
    assert (inside[of_tasks] == 2).all(axis=None)
    whole = table[table["task"] == "all"]
    assert set(whole["metric"]) == {"norm", "objective", "excess"}
    assert len(whole) == 3 * 2 * len(FEW)
    excess = table[table["metric"] == "excess"].set_index(["method", "merge"])["value"]
    for method in ("nonlinear", "posthoc"):
        assert excess[method, "average"] >= -1e-6 and excess[method, "arithmetic"] >= -1e-6
    objective = table[table["metric"] == "objective"].set_index(["method", "merge"])["value"]
    span = objective - excess
    assert span.groupby("method").std().max() < 1e-6  # what it is compared with is one number
    path = write(tmp_path / "merged.csv.xz", table, {})
    assert len(read(path)[0]) == len(table)


def test_the_edited_model_and_the_same_vector_in_the_other(lab, table):
    keys = ["method", "merge", "task"]
    there = merging(lab, ["nonlinear", "posthoc"], FEW)
    there = there[there["metric"] == "absolute"].set_index(keys)
    for method, edited in (("nonlinear", "network"), ("posthoc", "tangent")):
        here = table[(table["edited"] == edited) & (table["metric"] == "absolute")]
        here = here[here["method"] == method].set_index(keys)
        chosen = there.loc[here.index]
        assert len(here) == 2 * len(FEW)
        assert here["value"].tolist() == pytest.approx(chosen["value"].tolist())
        assert here["alpha"].tolist() == chosen["alpha"].tolist()
    from tasklab.analyses import merging as methods

    rows = table[(table["merge"] == "average") & (table["method"] == "nonlinear")]
    row = rows[(rows["edited"] == "tangent") & (rows["metric"] == "normalised")].iloc[0]
    vectors = lab.vectors("nonlinear", 0)
    mean = methods.average(vectors)
    alone = editing.single_task(lab.evaluator, vectors, "test", linear=True)
    got = lab.evaluator.evaluate(mean, row["task"], "test", row["alpha"], linear=True)
    expected = 100 * got / max(alone[TASKS.index(row["task"])], 1e-9)
    assert row["value"] == pytest.approx(expected)
    length = rows[rows["metric"] == "norm"]["value"].item()
    lengths = [vector.norm() for vector in vectors.values()]
    assert length == pytest.approx(row["alpha"] * mean.norm() * 2 / sum(lengths))


def test_costs_groups_and_names(lab):
    table = merging_cost(lab, ["nonlinear"], FEW[:-1]).set_index(["merge", "metric"])["value"]
    assert (table >= 0).all() and (table.xs("seconds", level="metric") > 0).all()
    assert table["average", "passed"] == table["ties", "passed"] == 0
    assert table["regmean", "passed"] == 2 * REHEARSAL["grams"]
    assert table["fisher", "passed"] == 4 * REHEARSAL["diagonals"]
    assert 0 < table["average", "memory_ratio"] <= 2
    images = sum(lab.evaluator.count(task, "val") for task in TASKS)
    assert table["average", "searched"] == table["ties", "searched"] == REHEARSAL["looks"] * images
    assert FULL.keys() == REHEARSAL.keys()
    names = (*suite("mini").names[:2], *TASKS)
    small = Lab(model="mini_xs", steps=1, tasks=tuple(dict.fromkeys(names)), progress=False)
    table = merged(small, ["nonlinear"], ["average"], n_tasks=[2])
    assert table["subset"].nunique() == len(small.suite.names) // 2
    refuses("did you mean 'average'", merged, lab, ["nonlinear"], ["averge"])
