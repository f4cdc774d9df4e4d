"""What merges lose in three metrics, on a rehearsal; and what is chosen by it."""

import pytest

from tasklab.analyses.merging import METHODS, best, merge
from tasklab.evidence import figures
from tasklab.evidence.experiments import Lab, merge_loss, merging
from tasklab.evidence.records.table import combine

TASKS = ("Signs", "Places")
FEW = ("arithmetic", "ties", "least_logits")


@pytest.fixture(scope="module")
def lab():
    return Lab(model="mini_xs", steps=3, tasks=TASKS, progress=False)


@pytest.fixture(scope="module")
def table(lab):
    return merge_loss(lab, ["linearized"], FEW)


def test_the_loss_is_the_least_of_all_options_and_coefficients(lab, table):
    vectors, evaluator = lab.vectors("linearized", 0), lab.evaluator
    own = [evaluator.tangent_features(v, task, "val") for task, v in vectors.items()]
    heads = [evaluator.head(task) for task in TASKS]
    rows = table[table["metric"] == "relative_loss"].set_index(["merge", "chosen_by"])
    assert set(rows.index) == {(name, by) for name in FEW for by in best.METRICS}
    for name in best.METRICS:
        by, row = best.metrics(name, own, heads), rows.loc[("ties", name)]
        jtau = [one.jtau for one in own]
        losses = {}
        for keep in METHODS["ties"].values:
            moved = best.tangents(evaluator, merge("ties", vectors, keep=keep), TASKS)
            for scale in (0.98, 1.0, 1.02):
                scaled = [row["alpha"] * scale * x for x in moved]
                losses[keep, scale] = best.relative(scaled, jtau, by)
        assert min(losses, key=losses.get) == (row["option"], 1.0)
        assert row["value"] == pytest.approx(min(losses.values()), rel=1e-5)
    reached = table[(table["merge"] == "arithmetic") & (table["split"] == "test")]
    for row in reached[reached["metric"] == "absolute"].to_dict("records"):
        tau = merge("arithmetic", vectors, alpha=row["alpha"])
        assert row["value"] == evaluator.evaluate(tau, row["task"], "test", linear=True)


def test_the_choice_and_minimum_are_of_least_loss(lab, table):
    steps = table[table["step"].notna()].set_index(["metric", "step"])["value"]
    assert steps["solved", 1] < steps["solved", 0] < 1 and steps["residual", 0] == 1
    lost = table[table["metric"] == "relative_loss"].set_index(["merge", "chosen_by"])["value"]
    assert lost["least_logits", "logits"] < lost["arithmetic", "logits"]
    both = combine(table, merging(lab, ["linearized"], FEW[:2]))
    chosen = figures.merge_choice_table(both).set_index("chosen by")
    lost = table[table["metric"] == "relative_loss"].set_index(["merge", "chosen_by"])["value"]
    name = min(FEW[:2], key=lambda name: lost[name, "logits"])
    tested = table[(table["merge"] == name) & (table["chosen_by"] == "logits")]
    tested = tested[(tested["metric"] == "absolute") & (tested["split"] == "test")]
    assert chosen["merge"]["logits"] == METHODS[name].title
    assert chosen["test accuracy"]["logits"] == pytest.approx(tested["value"].mean())
    assert len(figures.merge_loss(table).axes) == 1
