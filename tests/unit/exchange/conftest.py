"""A store of a test's own, with runs as fine-tuning leaves them."""

import pytest

from tasklab.models import loading
from tests.vectors import noise


@pytest.fixture
def run_of(store):
    """Return a function that makes a run in the store and returns it with its encoder."""

    def make(method="nonlinear", model="mini_xs", record=None, **more):
        encoder = loading.load(model).encoder
        config = {
            "model": model, "init": "pretrained", "task": "Signs", "method": method, "seed": 2,
            "suite": "mini", "weights": encoder.weights_hash, "steps": 40, **more,
        }  # fmt: skip
        made = dict(noise(encoder.params, 7, 0.01)), record or {"losses": [2.0]}
        return store.get("finetune", config, lambda _: made), encoder

    return make
