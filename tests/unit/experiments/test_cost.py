"""What a rehearsal of a full-size model leaves out of measuring costs; tables of the store."""

from types import SimpleNamespace

import pandas as pd
import pytest

from tasklab import Lab
from tasklab.analyses import cost as costs
from tasklab.evidence import experiments
from tasklab.models import loading
from tests.helpers import refuses

ROW = {
    "method": "nonlinear", "variant": "standard", "metric": "seconds", "value": 1.0, "low": 1.0,
    "high": 1.0, "n": 3,
}  # fmt: skip


@pytest.mark.parametrize(("model", "light"), [("vitb32", True), ("mini_xs", False)])
def test_only_a_light_rehearsal_goes_without_the_optimiser(tmp_path, monkeypatch, model, light):
    small, asked = loading.load("mini_xs", init="random"), []
    monkeypatch.setattr(loading, "load", lambda *_, **__: small)

    def measure(*args, **options):
        asked.append(options)
        return pd.DataFrame([ROW])

    monkeypatch.setattr(costs, "measure", measure)
    lab = Lab(model, init="random", steps=2, store_root=tmp_path, progress=False, device="cpu")
    experiments.step_cost(lab, ["standard"], rounds=3)
    (options,) = asked
    found = options["rounds"], options.get("optimiser", True)
    assert found == ((1, False) if light else (3, True))


def test_a_task_with_fewer_images_than_a_step_is_refused(tmp_path, monkeypatch):
    lab = Lab("mini_xs", tasks=["Signs"], store_root=tmp_path, progress=False)
    few = SimpleNamespace(x=range(40), y=range(40))
    monkeypatch.setattr(lab.evaluator, "images", lambda *_: few)
    refuses("measured on 64 training images; Signs has 40", experiments.step_cost, lab)


def test_only_training_is_read_from_tables_of_former_versions(tmp_path, monkeypatch):
    former = [{**ROW, "what": "training"}, {**ROW, "what": "inference", "value": 9.0}]
    monkeypatch.setattr(costs, "measure", lambda *_, **__: pd.DataFrame(former))
    lab = Lab("mini_xs", tasks=["Signs"], store_root=tmp_path, progress=False)
    assert experiments.step_cost(lab, ["standard"])["value"].tolist() == [1.0]
