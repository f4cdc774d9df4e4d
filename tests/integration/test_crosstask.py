"""Cross-task linearity of the labs' vectors, stitched models, averages, pairs, at few images."""

import itertools
import sys

import pandas as pd
import pytest
import torch

from tasklab import TaskVector
from tasklab.analyses import cross_task
from tasklab.bench.parameters import Parameters
from tasklab.evidence import experiments
from tasklab.evidence.experiments import runner
from tasklab.models import heads

TASKS = ("Textures", "Scenes", "Signs")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    store = tmp_path_factory.mktemp("lab")
    parameters = Parameters(model="mini_xs", steps=2, store_root=store)
    return experiments.Lab(parameters, progress=False, tasks=TASKS)


def images(lab, task, times=1):
    return lab.evaluator.images(task, "test").x[: times * lab.scale.images]


def test_every_pair_and_place_on_the_segment(lab):
    table = experiments.cross_task(lab, ["nonlinear"], alphas=(0.25, 0.5))
    layers = len(lab.clip.encoder.blocks) + 1
    assert len(table) == 3 * 2 * layers * len(cross_task.METRICS)
    assert set(table["n"]) == {2 * lab.scale.images}
    theta = lab.clip.encoder.params
    vectors = lab.vectors("nonlinear", 0)
    models = {task: vectors[task].apply(theta) for task in TASKS[:2]}
    i, j = TASKS[:2]
    merge = cross_task.Merge("m", {i: 0.25, j: 0.75}, (i, j))
    data = {task: images(lab, task) for task in (i, j)}
    expected = cross_task.measure(lab.clip.encoder, models, [merge], data)
    rows = table[(table["task"] == f"{i}+{j}") & (table["alpha"] == 0.25)]
    pd.testing.assert_series_equal(
        rows["value"].reset_index(drop=True), expected["value"], rtol=1e-4
    )


def test_addition_and_negation_are_middles_of_the_right_models(lab):
    encoder, theta = lab.clip.encoder, lab.clip.encoder.params
    i, j = TASKS[:2]
    vectors = lab.vectors("nonlinear", 0)
    x = encoder.preprocess(torch.cat([images(lab, i), images(lab, j)]))

    def one_minus_cosine(middle, ends):
        u = encoder(middle, x)
        v = sum(encoder(end, x) for end in ends) / 2
        return float((1 - torch.nn.functional.cosine_similarity(u, v)).mean())

    added = experiments.cross_task_addition(lab, ["nonlinear"], coefficient=2.0)
    expected = one_minus_cosine(
        (vectors[i] + vectors[j]).apply(theta, 2.0), [vectors[t].apply(theta, 4.0) for t in (i, j)]
    )
    rows = added[(added["task"] == f"{i}+{j}") & (added["metric"] == "distance")]
    assert rows[rows["block"].isna()]["value"].item() == pytest.approx(expected, abs=2e-6)
    x = encoder.preprocess(images(lab, i))
    negated = experiments.cross_task_negation(lab, ["nonlinear"], coefficient=2.0)
    expected = one_minus_cosine(theta, [vectors[i].apply(theta, sign * 2.0) for sign in (1, -1)])
    rows = negated[(negated["task"] == i) & (negated["metric"] == "distance")]
    assert rows[rows["block"].isna()]["value"].item() == pytest.approx(expected, abs=2e-6)


def test_averages_and_sums_of_groups(lab):
    table = experiments.cross_task_sum(lab, ["nonlinear"], sizes=(2, 3), coefficient=1.0)
    assert sorted(set(table["n_tasks"])) == [2, 3]
    encoder, theta, k = lab.clip.encoder, lab.clip.encoder.params, 3
    vectors = lab.vectors("nonlinear", 0)
    x = encoder.preprocess(torch.cat([images(lab, task) for task in TASKS]))
    u = encoder(sum(list(vectors.values())[1:], vectors[TASKS[0]]).apply(theta), x)
    ends = [encoder(v.apply(theta, k + 1.0), x) for v in vectors.values()] + [encoder(theta, x)]
    v = sum(ends) / (k + 1)
    expected = (u * v).sum(1) / v.square().sum(1)
    rows = table[(table["n_tasks"] == k) & (table["metric"] == "coef") & table["block"].isna()]
    assert rows["value"].item() == pytest.approx(float(expected.mean()), abs=2e-5)
    table = experiments.averaging(lab)
    accuracies, features = (
        table[table["experiment"] == name] for name in ("averaging", "ctl_average")
    )
    count = (accuracies["metric"] == "alone").sum()
    groups = list(itertools.combinations(range(count), 3))
    assert (accuracies["metric"] == "averaged").sum() == len(groups)
    assert (accuracies["metric"] == "ensemble").sum() == len(groups)
    assert accuracies["value"].between(0, 100).all()
    assert set(features["metric"]) == set(cross_task.METRICS)
    assert set(features["n"]) == {lab.scale.images}


def test_stitched_fronts_and_depth(lab):
    last = len(lab.clip.encoder.blocks) - 1
    table = experiments.stitched_addition(lab, ["nonlinear"], block=last, coefficients=(1.0,))
    assert set(table["front"]) == {"own", "other", "both", "edited"}
    task = TASKS[0]
    encoder = lab.clip.encoder
    # All that follows the last block is the pre-trained norm and projection.
    after = [n for n in encoder.params if not n.startswith(tuple(f"{b}." for b in encoder.blocks))]
    stem = [n for n in after if n.startswith(("conv1", "class_embedding", "positional", "ln_pre"))]
    edited = lab.vectors("nonlinear", 0)[task].apply(encoder.params)
    mixed = edited | {n: encoder.params[n] for n in after if n not in stem}
    features = encoder(mixed, encoder.preprocess(images(lab, task, 2)))
    labels = lab.evaluator.images(task, "test").y[: 2 * lab.scale.images]
    expected = 100 * heads.accuracy(lab.evaluator.head(task)(features), labels)
    rows = table[(table["task"] == task) & (table["front"] == "own")]
    assert rows["value"].iloc[0] == pytest.approx(expected)
    deep = experiments.stitched_addition(lab, ["nonlinear"], block=-1)
    assert sorted(set(deep["block"])) == list(range(last + 1))
    assert set(deep["alpha"]) == {max(lab.scale.alphas)}


def test_stitched_negation_starts_at_the_pretrained_model(lab):
    table = experiments.stitched_negation(lab, ["nonlinear"])
    start = table[table["alpha"] == 0]
    assert set(table["front"]) == {"features", "weights"}
    assert set(table["subset"]) == set(TASKS[:2])
    for (task, _), rows in start.groupby(["task", "subset"]):
        x = images(lab, task, 2)
        encoder = lab.clip.encoder
        features = encoder(encoder.params, encoder.preprocess(x))
        labels = lab.evaluator.images(task, "test").y[: len(x)]
        expected = 100 * heads.accuracy(lab.evaluator.head(task)(features), labels)
        assert rows["value"].tolist() == pytest.approx([expected] * 2)


def test_many_images_are_stitched_in_parts(lab, monkeypatch):
    whole = experiments.stitched_negation(lab, ["nonlinear"], n_tasks=1, coefficients=(0.0, 1.0))
    monkeypatch.setattr(
        sys.modules["tasklab.evidence.experiments.stitching"], "_PART", 3
    )  # of four images
    monkeypatch.setattr(runner, "version", lambda measure: {"code": "in parts"})
    parts = experiments.stitched_negation(lab, ["nonlinear"], n_tasks=1, coefficients=(0.0, 1.0))
    assert set(whole["n"]) == {2 * lab.scale.images}
    pd.testing.assert_frame_equal(whole, parts)


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
