"""What a rehearsal of a full-size model leaves out of measuring costs."""

import pandas as pd
import pytest

from tasklab import Lab
from tasklab.analyses import cost as costs
from tasklab.evidence import experiments
from tasklab.models import loading


@pytest.mark.parametrize(("model", "light"), [("vitb32", True), ("mini_xs", False)])
def test_only_a_light_rehearsal_goes_without_the_optimiser(tmp_path, monkeypatch, model, light):
    small, asked = loading.load("mini_xs", init="random"), []
    monkeypatch.setattr(loading, "load", lambda *_, **__: small)

    def measure(*args, **options):
        asked.append(options)
        return pd.DataFrame([{"metric": "seconds", "value": 1.0}])

    monkeypatch.setattr(costs, "measure", measure)
    lab = Lab(model, init="random", steps=2, store_root=tmp_path, progress=False, device="cpu")
    experiments.cost(lab, ["standard"])
    (options,) = asked
    found = options["rounds"], options.get("optimiser", True), options.get("runs", "all")
    assert found == ((1, False, ["training"]) if light else (3, True, "all"))
