"""The widgets of a running notebook."""

from __future__ import annotations

import numpy as np
import pytest

from tasklab import experiments
from tasklab.errors import TasklabError
from tasklab.experiments.parameters import Parameters
from tasklab.explore import sliders as explore


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A rehearsal on few images."""
    parameters = Parameters(steps=1, store_root=tmp_path_factory.mktemp("explore"))
    return experiments.Lab(parameters, progress=False)


def test_sliders_show_the_edited_model(lab):
    widget = explore.coefficients(lab)
    sliders, bars = (box.children for box in widget.children)
    sliders[0].value = 1.0
    shown = [bar.children[0].value for bar in bars]
    vectors = lab.vectors("linearized", 0)
    first = vectors[lab.suite.names[0]]
    expected = [lab.evaluator.evaluate(first, task, "val", linear=True) for task in lab.suite.names]
    assert np.allclose(shown, expected)
    assert len(sliders) == 8


def test_a_nonlinear_model_is_refused(lab):
    with pytest.raises(TasklabError, match="not linear"):
        explore.accuracies(lab, "nonlinear")
