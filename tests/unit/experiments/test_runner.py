"""The order in which an experiment is measured, and that of its records."""

from types import SimpleNamespace

import pytest

from tasklab.evidence.experiments import Lab, runner, single


@pytest.fixture
def lab():
    store = SimpleNamespace(
        made=set(),
        making=lambda kind, config: (config["method"], config["seed"]) in store.made,
        get=lambda kind, config, make: SimpleNamespace(record=make(None)[1]),
    )
    clip = SimpleNamespace(encoder=SimpleNamespace(params={}))
    suite = SimpleNamespace(names=())
    return SimpleNamespace(
        seeds=(0, 1), store=store, progress=False, clip=clip, suite=suite, able=list
    )


def test_what_another_process_measures_comes_last_and_records_stay_in_order(lab, monkeypatch):
    monkeypatch.setattr(
        runner, "_config", lambda trial, _, **key: {"method": trial.method, "seed": trial.seed}
    )
    measured = []

    def measure(trial):
        measured.append((trial.method, trial.seed))
        return [{"method": trial.method, "seed": trial.seed}]

    lab.store.made = {("nonlinear", 0), ("posthoc", 0)}
    rows = runner.records(lab, "single", ["nonlinear", "posthoc"], measure)
    expected = [("nonlinear", 0), ("nonlinear", 1), ("posthoc", 0), ("posthoc", 1)]
    assert [(row["method"], row["seed"]) for row in rows] == expected
    assert measured == [("nonlinear", 1), ("posthoc", 1), ("nonlinear", 0), ("posthoc", 0)]


def test_keys_of_encoders_and_orders(tmp_path):
    # The closed model has a head of its own, untrained, on the open one's encoder.
    values = {}
    for model in ("mini_clip_large", "mini"):
        lab = Lab(model=model, steps=2, tasks=("Signs", "Places"), store_root=tmp_path)
        table = single(lab, [])
        assert set(table["model"]) == {model}
        values[model] = table["value"].mean()
    assert values["mini"] > values["mini_clip_large"]
    lab = Lab(model="mini_xs", steps=2, store_root=tmp_path, progress=False)
    trials = [
        runner.Trial(lab=lab, experiment="merging", method="pretrained", seed=0, tasks=tasks)
        for tasks in (lab.suite.names[:2], lab.suite.names[1::-1])
    ]
    usual, turned = (runner._config(trial, single) for trial in trials)
    assert "order" not in usual  # what is recorded stays so
    assert turned["order"] == list(lab.suite.names[1::-1])
