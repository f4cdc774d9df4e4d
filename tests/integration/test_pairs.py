"""Errors of pairs of tasks in a sum, by hand, and what they are compared with."""

import itertools

import pandas as pd
import pytest

from tasklab import TaskVector, experiments
from tasklab.experiments.parameters import Parameters

TASKS = ("Textures", "Scenes", "Signs")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    store = tmp_path_factory.mktemp("lab")
    parameters = Parameters(model="mini_xs", steps=2, store_root=store)
    return experiments.Lab(parameters, progress=False, tasks=TASKS)


def test_pair_errors_by_hand(lab):
    table = experiments.pair_errors(lab, ["nonlinear"], coefficients=(1.0,))
    assert len(table) == 2 * len(list(itertools.combinations(TASKS, 2)))
    pair, encoder = TASKS[:2], lab.clip.encoder
    vectors = lab.vectors("nonlinear", 0, pair)
    total, changed, lost = TaskVector.sum(vectors.values()), [], []
    for task in pair:
        count = 4 * lab.scale.images
        x, y = (part[:count] for part in lab.evaluator.images(task, "test"))
        head, x = lab.evaluator.head(task), encoder.preprocess(x)
        alone, both = (
            head(encoder(v.apply(encoder.params), x)).argmax(-1) for v in (vectors[task], total)
        )
        changed.append((alone != both).float().mean().item())
        lost.append(((alone == y).float().mean() - (both == y).float().mean()).item())
    rows = table[table["task"] == "+".join(pair)].set_index("metric")["value"]
    assert rows["xi_pair"] == pytest.approx(50 * sum(changed))
    assert rows["lost"] == pytest.approx(50 * sum(lost), abs=1e-5)


def test_foretold_joins_pairs_at_one_coefficient(lab):
    linearity = experiments.cross_task(lab, ["nonlinear"], alphas=(0.25, 0.5))
    errors = experiments.pair_errors(lab, ["nonlinear"], coefficients=(0.5, 1.0))
    found = experiments.foretold(linearity, errors)
    assert len(found) == 3
    row = found[(found["one"] == "Textures") & (found["other"] == "Signs")].iloc[0]
    at = (linearity["alpha"] == 0.5) & linearity["block"].isna()
    at &= (linearity["metric"] == "distance") & (linearity["task"] == "Textures+Signs")
    assert row["distance"] == pytest.approx(linearity[at]["value"].item())
    at = (errors["alpha"] == 0.5) & (errors["metric"] == "xi_pair")
    expected = errors[at & (errors["task"] == "Textures+Signs")]["value"].item()
    assert row["xi_pair"] == pytest.approx(expected)
    assert isinstance(found, pd.DataFrame) and set(found["group"]) == {"nonlinear"}
