"""Networks trained from scratch: their linearity, segments and conditions, after one epoch each."""

import pandas as pd
import pytest
import torch

from tasklab import mini
from tasklab.analyses import cross_task
from tasklab.bench.parameters import Parameters
from tasklab.evidence import experiments
from tasklab.evidence.experiments import small_networks
from tasklab.tasks import small
from tasklab.tasks.drawn import Images
from tasklab.tuning import scratch
from tests.helpers import refuses

pytestmark = pytest.mark.usefixtures("few_pictures")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    store = tmp_path_factory.mktemp("lab")
    return experiments.Lab(Parameters(model="mini_xs", steps=2, store_root=store), progress=False)


def trained(lab, network, index):
    chosen = small_networks.setting(network, pretraining=1, finetuning=1)
    net = small_networks.network_of(chosen)
    params = net.params
    for i in (0, index):
        classes = None if network == "mlp" else small.classes(i)
        data = small_networks.data_of(network, i, "train")
        params = scratch.train(net, params, data, lr=chosen.lr, epochs=1, seed=i, classes=classes)
    return net, params


@pytest.mark.parametrize("network", ["mlp", "resnet18"])
def test_linearity_of_all_pairs_is_that_of_the_trained_models(lab, network):
    table = experiments.scratch_linearity(lab, network, n_tasks=2, alphas=(0.5,))
    names = small_networks.task_names(network)
    net, one = trained(lab, network, 1)
    _, two = trained(lab, network, 2)
    assert set(table["task"]) == {f"{names[1]}+{names[2]}"}
    assert len(table) == len(cross_task.METRICS) * (len(net.blocks) + (network == "resnet18"))
    x = torch.cat([small_networks.data_of(network, i, "test").x[:16] for i in (1, 2)])
    x = net.preprocess(x)
    u = net({name: (one[name] + two[name]) / 2 for name in one}, x)
    v = (net(one, x) + net(two, x)) / 2
    expected = float((u * v).sum(1).div(v.square().sum(1)).mean())
    last = table["block"] == len(net.blocks) - 1 if network == "mlp" else table["block"].isna()
    found = table[last.fillna(False) & (table["metric"] == "coef")]["value"].item()
    assert found == pytest.approx(expected, abs=1e-5)


def test_segments_ratios_and_epochs(lab):
    table = experiments.segments(lab, "mlp", n_tasks=2, points=3)
    assert len(table) == 3 * 3 * 2  # places, data sets, metrics
    net, one = trained(lab, "mlp", 1)
    data = Images(*(part[:16] for part in small_networks.data_of("mlp", 1, "test")))
    name = small_networks.task_names("mlp")[1]
    end = table[(table["alpha"] == 1) & (table["task"] == name)].set_index("metric")["value"]
    assert end["loss"] == pytest.approx(scratch.loss(net, one, data), rel=1e-5)
    assert end["accuracy"] == pytest.approx(scratch.accuracy(net, one, data))
    table = experiments.emergence(lab, "other samples", (0.0, 1.0), network="mlp")
    layer = table[(table["metric"] == "base")].groupby("ratio")["value"].mean()
    # The same samples in another order than the first task's, so nearly the same model.
    assert layer[1.0] < 0.5 * layer[0.0]
    refuses("did you mean|choose", experiments.emergence, lab, "pre-training", (0,))
    rehearsed = experiments.scratch_linearity(lab, "mlp", n_tasks=2, alphas=(0.5,))
    assert set(rehearsed["pretraining"]) == {1}  # a rehearsal takes one epoch, whatever is asked
    refuses("network", experiments.scratch_linearity, lab, "mlpp")


def test_networks_of_another_world_have_other_keys(monkeypatch):
    def keys():
        every = (small_networks.setting(name) for name in ("mlp", "resnet18"))
        return [small_networks.key_of(chosen, index) for chosen in every for index in (0, 1)]

    before = keys()
    less = small_networks.setting("resnet18", pictures=3)
    assert small_networks.key_of(less, 0) not in before
    usual, as_text = small_networks.setting("resnet18"), small_networks.as_text
    assert "pictures=3" in as_text(less) and "pictures" not in as_text(usual)
    assert "pictures" not in small_networks.as_key(usual)
    monkeypatch.setattr(mini, "VERSION", "another world")
    expected = [True, True, False, False]
    assert [one == two for one, two in zip(before, keys(), strict=True)] == expected


def test_theorem_has_both_sides_for_every_pair(lab):
    table = experiments.theorem(lab, "resnet18")
    assert set(table["metric"]) == {"delta"}
    assert len(set(table["group"])) == 2  # checkpoints of a rehearsal
    assert len(table) == 2 * 3  # pairs of three rates
    usual = small_networks.setting("resnet18", pretraining=1)
    models = {}
    for rate in (0.1, 1.0):
        chosen = small_networks.setting(
            "resnet18", pretraining=1, finetuning=1, finetuning_lr=rate * usual.lr
        )
        net, (_, models[rate]) = small_networks.trained(lab, chosen, 1)
    row = table[(table["group"] == "1 epochs, seed 0") & table["one"].str.startswith("rate 0.1")]
    row = row[row["other"].str.startswith("rate 1,")].iloc[0]
    data, classes = small_networks.data_of("resnet18", 1, "test"), small.classes(1)

    def loss(params):
        return scratch.loss(net, params, data, classes)

    middle = cross_task.merged(models, {0.1: 0.5, 1.0: 0.5})
    gap = abs(loss(middle) - (loss(models[0.1]) + loss(models[1.0])) / 2)
    assert row["value"] == pytest.approx(gap, rel=1e-3, abs=1e-6)
    assert row["bound"] == pytest.approx(row["curvature"] * row["distance"] / 8)


def test_conditions_are_found_again_in_a_table_of_all(lab):
    made = {
        what: experiments.emergence(lab, what, [0.0, 1.0])
        for what in ("pretraining samples", "other samples")
    }
    usual = small_networks.setting("resnet18")
    pretraining = usual.pretraining
    table = pd.concat(made.values()).assign(pretraining=pretraining, finetuning=usual.finetuning)
    for what, rows in made.items():
        found = experiments.varied(table, what)
        assert sorted(found["value"]) == pytest.approx(sorted(rows["value"]))
    refuses("pretraining samples", experiments.varied, table, "pretraining sample")
