"""The order in which an experiment is measured, and that of its records."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tasklab.experiments import runner


@pytest.fixture
def lab():
    """Two seeds; the store keeps nothing, and another process makes what is in `made`."""
    store = SimpleNamespace(
        made=set(),
        making=lambda kind, config: (config["method"], config["seed"]) in store.made,
        get=lambda kind, config, make: SimpleNamespace(record=make(None)[1]),
    )
    clip = SimpleNamespace(encoder=SimpleNamespace(params={}))
    parameters = SimpleNamespace(seeds=(0, 1))
    return SimpleNamespace(parameters=parameters, store=store, progress=False, clip=clip)


def test_what_another_process_measures_comes_last_and_records_stay_in_order(lab, monkeypatch):
    monkeypatch.setattr(
        runner, "_config", lambda trial, **key: {"method": trial.method, "seed": trial.seed}
    )
    measured = []

    def measure(trial):
        measured.append((trial.method, trial.seed))
        return [{"method": trial.method, "seed": trial.seed}]

    lab.store.made = {("nonlinear", 0), ("posthoc", 0)}
    rows = runner.records(lab, "single", ["nonlinear", "posthoc"], measure)
    assert [(row["method"], row["seed"]) for row in rows] == [
        ("nonlinear", 0),
        ("nonlinear", 1),
        ("posthoc", 0),
        ("posthoc", 1),
    ]
    assert measured == [("nonlinear", 1), ("posthoc", 1), ("nonlinear", 0), ("posthoc", 0)]
