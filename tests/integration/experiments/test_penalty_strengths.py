"""Strengths of penalties: each is measured, none is the way of fine-tuning without it."""

import pytest

from tasklab.evidence.experiments import Lab, addition, penalty_strengths
from tasklab.evidence.experiments.registry import find
from tasklab.tuning.finetune import DivergedError
from tasklab.tuning.methods import TABLE
from tests.helpers import refuses

WEIGHT = TABLE["ortho_reg"].weight


@pytest.fixture(scope="module")
def lab():
    return Lab(model="mini_xs", steps=2, tasks=("Signs", "Places"), progress=False)


def test_no_strength_is_the_way_without_and_one_is_the_usual_run(lab):
    runs = list(find("penalty_strengths").runs(lab, ["ortho_reg"], factors=(1.0, 50.0)))
    told = [(run.recipe.task, run.recipe.method, run.recipe.penalty) for run in runs]
    assert told == [
        ("Signs", "nonlinear", None), ("Places", "nonlinear", None),
        ("Signs", "ortho_reg", WEIGHT), ("Places", "ortho_reg", WEIGHT),
        ("Signs", "ortho_reg", 50 * WEIGHT), ("Places", "ortho_reg", 50 * WEIGHT),
    ]  # fmt: skip
    assert runs[0].identity == lab.identity("Signs", "nonlinear", 0)
    assert runs[2].identity == lab.identity("Signs", "ortho_reg", 0)
    assert runs[4].recipe.penalty == 50 * WEIGHT and runs[4].identity != runs[2].identity
    refuses("nonlinear.* tau_jp", penalty_strengths, lab, ["nonlinear"])
    refuses("each of factors must be above 0", penalty_strengths, lab, ["ortho_reg"], [0])


def test_every_strength_has_accuracies_alone_and_of_the_sum_on_both_splits(lab):
    table = penalty_strengths(lab, ["ortho_reg"], (1.0, 1e9))
    assert set(table["penalty"]) == {0.0, WEIGHT, 1e9 * WEIGHT}
    counts = table.groupby(["penalty", "metric", "split"]).size()
    assert len(counts) == 3 * 2 * 2 and (counts == 2).all()
    assert all(
        run.kept for run in find("penalty_strengths").runs(lab, ["ortho_reg"], factors=(1.0, 1e9))
    )
    sums = addition(lab, ["nonlinear"], n_tasks=(2,))
    usual = sums[(sums["experiment"] == "addition") & (sums["metric"] == "absolute")]
    none = table[(table["penalty"] == 0) & (table["split"] == "test")]
    none = none[none["metric"] == "absolute"]
    assert none["value"].tolist() == usual["value"].tolist()
    assert none["alpha"].tolist() == usual["alpha"].tolist()


def test_a_strength_at_which_a_run_diverges_is_told_and_the_others_are_measured(monkeypatch):
    lab = Lab(model="mini_xs", steps=3, tasks=("Signs", "Places"), progress=False)
    trained = type(lab.trainer).__call__

    def tried(trainer, config, store=None):
        if config.task == "Places" and (config.penalty or 0) > 5 * WEIGHT:
            raise DivergedError("fine-tuning on Places diverges at step 1", 1)
        return trained(trainer, config, store)

    monkeypatch.setattr(type(lab.trainer), "__call__", tried)
    table = penalty_strengths(lab, ["ortho_reg"], (1.0, 10.0))
    (gone,) = table[table["metric"] == "diverged_at"].to_dict("records")
    assert (gone["task"], gone["value"], gone["penalty"]) == ("Places", 1.0, 10 * WEIGHT)
    rest = table[table["metric"] != "diverged_at"]
    assert set(rest["penalty"]) == {0.0, WEIGHT} and len(rest) == 2 * 2 * 2 * 2
