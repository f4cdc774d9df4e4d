"""Labs that share a store, and the heads and vectors that experiments ask for, made up here."""

import pytest
import torch

from tasklab.analyses.evaluation import Evaluator
from tasklab.analyses.pair_errors import pair_errors
from tasklab.bench.merges import SPAN, Bench
from tasklab.evidence import experiments
from tasklab.evidence.experiments import Lab, merging
from tasklab.evidence.experiments.runner import Trial
from tasklab.taskvector import TaskVector
from tasklab.tuning import finetune, probes
from tasklab.tuning.runs import Run
from tests.vectors import noise

PAIR = ("Vehicles", "Textures")
FOUR = (*PAIR, "LandCover", "Signs")


@pytest.fixture(autouse=True)
def trained(monkeypatch):
    asked = []

    def made_up(trainer, config, store=None):
        asked.append(config.task)
        vector = noise(trainer.clip.encoder.params, config.seed + len(config.task), 0.01)
        head = object() if config.head == "trained" else None
        return Run(vector, {"losses": [1.0], "seconds": 1.0}, head)

    monkeypatch.setattr(finetune.Trainer, "__call__", made_up)
    return asked


def lab_of(folder, model="mini_xs", **more):
    return Lab(model, steps=1, progress=False, store_root=folder, **more)


@pytest.mark.parametrize(
    ("experiment", "more"),
    [
        (experiments.addition, {}),
        (merging, {"merges": ["average"]}),
        (experiments.merged, {"merges": ["average"]}),
        (experiments.merging_cost, {"merges": ["average"]}),
    ],
)
def test_the_subset_is_that_of_the_lab_that_asks(tmp_path, experiment, more):
    """A lab of two tasks has all of them; of four tasks the same two are a subset."""
    first = experiment(lab_of(tmp_path, tasks=PAIR), ["nonlinear"], n_tasks=[2], **more)
    assert set(first["subset"]) == {""}
    among = experiment(lab_of(tmp_path, tasks=FOUR), ["nonlinear"], n_tasks=[2], **more)
    assert set(among["subset"]) <= {"Vehicles+Textures", "LandCover+Signs"}
    both = among[among["subset"] == "Vehicles+Textures"]
    assert both["value"].tolist() == first["value"].tolist() and (among["n_tasks"] == 2).all()
    again = experiment(lab_of(tmp_path, tasks=PAIR), ["nonlinear"], n_tasks=[2], **more)
    assert set(again["subset"]) == {""}


def test_averages_of_probed_models_are_classified_by_their_probe(tmp_path, monkeypatch):
    nothing = Run(TaskVector({}), {})
    monkeypatch.setattr(finetune.Trainer, "__call__", lambda *_, **__: nothing)
    lab = lab_of(tmp_path, model="mini_sup_few", head="probe", tasks=PAIR)
    probed = experiments.probing(lab)
    probed = probed[(probed["split"] == "test") & (probed["task"] == "Textures")]
    table = experiments.averaging(lab, task="Textures", count=6)
    for metric in ("alone", "averaged", "ensemble"):
        values = table.loc[table["metric"] == metric, "value"]
        assert set(values) == set(probed["value"]), metric


def test_a_trial_loads_the_heads_of_its_own_tasks(tmp_path, trained, monkeypatch):
    fitted, fit = [], probes.fit

    def told(probe, clip, suite, task, store):
        fitted.append(task)
        return fit(probe, clip, suite, task, store)

    monkeypatch.setattr(probes, "fit", told)
    lab = lab_of(tmp_path, head="probe", tasks=PAIR)
    trial = Trial(lab=lab, experiment="x", method="nonlinear", seed=0, tasks=PAIR[:1])
    head = trial.evaluator.head(PAIR[0])
    assert fitted == [PAIR[0]] and not trained  # a probe comes before its vector
    how = lab.run(PAIR[0], "nonlinear", 0).probe
    assert torch.equal(head.weight, fit(how, lab.clip, lab.suite, PAIR[0], lab.store).head.weight)
    together = lab_of(tmp_path, head="trained", tasks=PAIR)
    monkeypatch.setattr(Evaluator, "with_heads", lambda self, own: own)
    trial = Trial(lab=together, experiment="x", method="nonlinear", seed=0, tasks=PAIR[1:])
    assert list(trial.evaluator) == trained == [PAIR[1]]
    assert set(lab.evaluator_of("nonlinear", 0)) == set(PAIR)


def test_the_best_merge_on_the_span_is_solved_once(tmp_path, monkeypatch):
    solved, merged = [], Bench.merged

    def told(bench, name, *more):
        solved.append(name)
        return merged(bench, name, *more)

    monkeypatch.setattr(Bench, "merged", told)
    few = ["average", "arithmetic"]
    table = experiments.merged(lab_of(tmp_path, tasks=PAIR), ["nonlinear"], few)
    assert solved.count(SPAN) == 1
    assert (table[table["metric"] == "excess"]["value"] >= -1e-6).all()


def test_pairs_in_the_linearized_model_need_no_preprocessed_images(tmp_path, monkeypatch):
    lab = lab_of(tmp_path, tasks=PAIR)
    monkeypatch.setattr(Evaluator, "preprocessed", None)
    vectors = lab.vectors("posthoc", 0)
    assert len(list(pair_errors(lab.evaluator, vectors, [0.5], 4, linear=True))) == 2


def test_one_method_may_be_given_by_its_name(tmp_path):
    lab = lab_of(tmp_path, head="probe", tasks=PAIR)
    table = experiments.subsets(lab, "linearized", most=1)
    assert set(table["method"]) == {"linearized", "probe"}
    curves = experiments.exact_alpha(lab, "linearized")
    assert set(curves["method"]) == {"linearized"}
    tried = experiments.learning_rates(lab, "probe", rates=[1e-3], task=PAIR[0])
    assert set(tried["method"]) == {"probe"}
