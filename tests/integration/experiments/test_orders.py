"""What is in a store changes no number: tasks, pairs, seeds and merges in any order."""

import functools
import importlib
import zlib

import pandas as pd
import pytest
import torch

from tasklab.analyses import cost as analysis
from tasklab.bench import contest
from tasklab.evidence import experiments
from tasklab.evidence.experiments import Lab, merging, runner
from tasklab.evidence.experiments.registry import REGISTRY, discover
from tasklab.models import heads, loading
from tasklab.storage.store import Store
from tasklab.tuning import finetune
from tasklab.tuning.runs import Run
from tests.vectors import noise

TASKS = ("Vehicles", "Textures", "LandCover")  # in the suite's order
TURNED = ("LandCover", "Vehicles", "Textures")
EXPERIMENTS = {
    name: functools.partial(getattr(experiments, name), **options)
    for name, options in {
        "single": {"methods": ["nonlinear", "tau_jp"]},  # others' images in the suite's order
        "addition": {"methods": ["posthoc"], "n_tasks": [3]},
        "own_coefficients": {"methods": ["posthoc"]},
        "exact_alpha": {"methods": ["posthoc"]},
        "exact_negation": {"methods": ["posthoc"]},
        "negation": {"methods": ["nonlinear"]},
        "disentanglement": {"methods": ["posthoc"], "n_pairs": 3},
        "search_box": {"methods": ["posthoc"], "n_pairs": 3},
        "localization": {"n_pairs": 3},
        "cross_task": {"methods": ["nonlinear"], "alphas": [0.5]},
        "cross_task_sum": {"methods": ["nonlinear"], "sizes": [2]},
        "cross_task_addition": {"methods": ["nonlinear"]},
        "cross_task_negation": {"methods": ["nonlinear"]},
        "averaging": {"count": 5},
        "stitched_addition": {"methods": ["nonlinear"], "n_pairs": 3, "coefficients": [0.5]},
        "stitched_negation": {"methods": ["nonlinear"], "coefficients": [0.5]},
        "pair_errors": {"methods": ["nonlinear"], "coefficients": [0.5]},
        "cosines": {"methods": ["nonlinear"]},
        "alignment": {"methods": ["nonlinear"]},
        "linear_gaps": {"methods": ["nonlinear"], "scales": [1.0]},
        "gradients": {"methods": ["nonlinear"]},
        "merging": {"methods": ["posthoc"], "merges": ["dare", "least_logits"]},
        "merging_rates": {"methods": ["nonlinear"], "merges": ["dare"], "rates": [1e-5]},
        "merge_loss": {"methods": ["nonlinear"], "merges": ["dare", "least_logits"]},
        "merged": {"methods": ["posthoc"], "merges": ["dare"]},
        "recommended": {"methods": ["nonlinear"], "merges": ["dare"]},
        "two_fold": {"methods": ["posthoc"], "n_tasks": [3]},
        "joint": {"methods": ["nonlinear"]},
        "penalty_strengths": {"methods": ["tau_jp"], "factors": [1.0]},
        "learning_rates": {"methods": ["probe", "nonlinear"], "rates": [1e-3]},
        "rate_search": {"methods": ["nonlinear"], "rates": [1e-3], "prolong": False},
        "budgets": {"methods": ["nonlinear"], "rates": None, "lengths": [1]},
        "crossing": {"methods": ["nonlinear"], "merges": ["ties"], "kernels": False},
        "probing": {},
        "closed_addition": {"methods": ["nonlinear", "full"]},
        "subsets": {"methods": ["nonlinear", "full"], "most": 1},
    }.items()
}
# Seconds; and networks of their own, whose tasks are no lab's.
OTHERS = {"step_cost", "closed_cost", "merging_cost"}
OTHERS |= {"theorem", "scratch_linearity", "segments", "emergence"}
CLOSED = {"probing", "closed_addition", "subsets"}
TIMES = ("seconds_sweep", "seconds_subsets", "seconds_finetune", "solving")


@pytest.fixture(autouse=True)
def trained(monkeypatch):

    def made_up(trainer, config, store=None):
        vector = noise(trainer.clip.encoder.params, zlib.crc32(repr(config).encode()))
        task, head = trainer.tasks[config.task], None
        if config.head == "trained":
            head = heads.start("trained", trainer.clip, task, config.seed)
        return Run(vector, {"losses": [1.0], "seconds": 1.0, "parameters": 1}, head)

    monkeypatch.setattr(finetune.Trainer, "__call__", made_up)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return tmp_path_factory.mktemp("filled"), tmp_path_factory.mktemp("empty")


def lab_of(folder, tasks=TASKS, model="mini_xs", **more):
    return Lab(model, steps=1, progress=False, store_root=folder, tasks=tasks, **more)


def test_each_experiment_is_looked_at():
    discover()
    assert {*EXPERIMENTS} | OTHERS == {*REGISTRY}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_filled_store_gives_what_an_empty_one_gives(stores, name):
    probed = {"model": "mini_sup_few", "head": "probe"} if name in CLOSED else {}
    filled, empty = stores

    def measured(lab):
        table = EXPERIMENTS[name](lab)
        return table[~table["metric"].isin(TIMES)].reset_index(drop=True)

    usual = measured(lab_of(filled, **probed))
    turned = measured(lab_of(filled, TURNED, **probed))
    pd.testing.assert_frame_equal(turned, measured(lab_of(empty, TURNED, **probed)))
    pd.testing.assert_frame_equal(measured(lab_of(empty, **probed)), usual)


def test_seeds_and_merges_in_any_order_are_the_same_records(stores):
    names, (filled, empty), keys = (
        ["dare", "arithmetic"],
        stores,
        ["merge", "seed", "task", "metric"],
    )
    usual = merging(lab_of(filled, seeds=(0, 1)), ["posthoc"], names)
    turned = merging(lab_of(empty, seeds=(1, 0)), ["posthoc"], names[::-1])
    both = [t.sort_values(keys).reset_index(drop=True) for t in (usual, turned)]
    pd.testing.assert_frame_equal(*both, check_like=True)
    dare = usual[(usual["merge"] == "dare") & (usual["metric"] == "objective")]
    assert dare["value"].nunique() == 2  # seeds differ


@pytest.mark.parametrize("compared", [False, True])
def test_a_checkpoint_with_another_text_tower_has_records_of_its_own(tmp_path, compared):
    network, files = loading.both_towers("mini_xs").state_dict(), {}
    turned = {"text_projection": network["text_projection"].roll(1, 1)}
    for name, tensors in {"same": network, "other": network | turned}.items():
        files[name] = tmp_path / f"{name}.pt"
        torch.save(tensors, files[name])

    def measured(store, **base):
        lab = lab_of(tmp_path / store, **base)
        if not compared:
            return experiments.single(lab, [])["value"].tolist()
        vectors = {task: noise(lab.clip.encoder.params, n, 0.2) for n, task in enumerate(TASKS)}
        found = contest.contest(lab, vectors, "nonlinear", ["average"])
        return [found.start.mean, found.merges[0].mean]

    usual, other = measured("filled"), measured("empty", base=files["other"])
    kind = contest.KIND if compared else runner.KIND
    kept = list(Store(tmp_path / "filled").configs(kind))
    assert measured("filled", base=files["same"]) == usual
    assert list(Store(tmp_path / "filled").configs(kind)) == kept  # keys are as they were
    assert measured("filled", base=files["other"]) == other != usual


def test_what_was_kept_under_another_order_is_measured_anew(tmp_path):
    """Before keys had the order, labs with tasks in any order kept records under this one."""
    lab = lab_of(tmp_path)
    trial = runner.Trial(lab=lab, experiment="x", method="pretrained", seed=0)

    def records(order, value):
        return lambda _: [trial.row(task=t, metric="absolute", value=value) for t in order]

    former = records(TURNED, 1.0)
    runner._stored(lab, runner._config(trial, former), lambda: former(trial))
    for _ in range(2):  # the second time from the store
        assert {row["value"] for row in runner.kept(trial, records(TASKS, 2.0))} == {2.0}
    assert len(list(Store(tmp_path).configs("records"))) == 2


def test_the_first_of_the_tasks_is_part_of_the_key_of_costs(tmp_path, monkeypatch):
    row = {"method": "nonlinear", "variant": "standard", "metric": "seconds", "n": 3}
    told = pd.DataFrame([{**row, "value": 1.0, "low": 1.0, "high": 1.0}])
    monkeypatch.setattr(analysis, "measure", lambda *_, **__: told)
    for tasks in (TASKS, TURNED):
        experiments.step_cost(lab_of(tmp_path, tasks), ["standard"])
    kept = [config.get("task") for config in Store(tmp_path).configs("cost")]
    assert None in kept and len(kept) == 2  # what was timed stays as it was
    assert any("LandCover/train" in task for task in kept if task)


def test_what_a_merge_costs_is_kept_for_one_order_of_tasks(tmp_path, monkeypatch):
    def told(bench, name):
        return [bench.trial.row(metric="seconds", value=1.0, task="+".join(bench.tasks))]

    costs = importlib.import_module(experiments.merging_cost.__module__)
    monkeypatch.setattr(costs, "_cost", told)
    asked = {"methods": ["posthoc"], "merges": ["dare"], "n_tasks": [3]}
    for tasks in (TASKS, TURNED):
        measured = experiments.merging_cost(lab_of(tmp_path, tasks), **asked)
        assert set(measured["task"]) == {"+".join(tasks)}
