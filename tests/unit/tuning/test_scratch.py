"""Networks trained from scratch, against plain loops, torchvision's ResNet and closed forms."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet

from tasklab.errors import TasklabError
from tasklab.models.blocks import FEATURES, Layers
from tasklab.tasks.drawn import Images
from tasklab.tuning import scratch
from tests.helpers import refuses


def in_double(network):
    module = copy.deepcopy(network.module).double()
    params = {name: tensor.double() for name, tensor in network.params.items()}
    return dataclasses.replace(network, module=module, params=params)


def pictures(count, channels=3, side=32, classes=10):
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(0, 256, (count, channels, side, side), generator=generator)
    return Images(x.to(torch.uint8), torch.arange(count) % classes)


@pytest.fixture(scope="module")
def mlp():
    return in_double(scratch.mlp(seed=1))


@pytest.fixture(scope="module")
def small_resnet():
    return in_double(scratch.resnet18(seed=1, width=4, stride=2))


def test_networks_are_the_papers(mlp, small_resnet):
    data = pictures(6, 1, 28)
    x, p = mlp.preprocess(data.x), mlp.params
    layers = Layers(mlp, x)
    assert list(layers.sizes) == ["relu1", "relu2", "relu3", "classifier", FEATURES]
    hidden = x.flatten(1)
    found = layers.cut(layers(p, x))
    for i in (1, 2, 3):
        hidden = (hidden @ p[f"linear{i}.weight"].T + p[f"linear{i}.bias"]).clamp_min(0)
        torch.testing.assert_close(found[f"relu{i}"], hidden)
        assert hidden.shape == (6, 100)
    logits = hidden @ p["classifier.weight"].T + p["classifier.bias"]
    assert logits.shape == (6, 10)
    torch.testing.assert_close(found["classifier"], logits)
    torch.testing.assert_close(found[FEATURES], logits)
    torch.testing.assert_close(x, data.x.double() / 255)
    network = scratch.resnet18(seed=0)
    plain = resnet.resnet18(num_classes=100)
    plain.conv1, plain.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    nn.init.kaiming_normal_(plain.conv1.weight, mode="fan_out", nonlinearity="relu")
    floats = {n: x for n, x in plain.state_dict().items() if x.is_floating_point()}
    state = {name: tensor.clone() for name, tensor in floats.items()}
    assert list(network.params) == list(state)
    plain.load_state_dict(network.params, strict=False)
    x = network.preprocess(pictures(2).x)
    with torch.no_grad():
        torch.testing.assert_close(network(network.params, x), plain.eval()(x))
    for name, tensor in state.items():  # the same initial distribution
        ours = network.params[name].std()
        if tensor.numel() > 500:
            assert ours == pytest.approx(float(tensor.std()), rel=0.15), name
    x = small_resnet.preprocess(pictures(3).x)
    sizes = Layers(small_resnet, x).sizes
    blocks = [f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)]
    assert list(sizes) == [*blocks, FEATURES]
    expected = [4 * 2**i * (16 >> i) ** 2 for i in range(4) for _ in range(2)]
    assert list(sizes.values()) == [*expected, 100]
    before = torch.random.get_rng_state()
    one, same, other = (scratch.resnet18(seed, width=2) for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(one.params[n], same.params[n]) for n in one.params)
    assert not torch.equal(one.params["fc.weight"], other.params["fc.weight"])


def by_hand(network, data, epochs, lr, momentum, size, seed, classes):
    module = copy.deepcopy(network.module).train()
    names = [name for name, _ in module.named_parameters()]
    velocity = {name: 0.0 for name in names}
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(data.y), generator=generator)
        for start in range(0, len(order), size):
            index = order[start : start + size]
            weights = {n: p.detach().requires_grad_() for n, p in module.named_parameters()}
            x = network.preprocess(data.x[index])
            logits = torch.func.functional_call(module, weights, (x,))[:, classes]
            y = torch.tensor([classes.index(label) for label in data.y[index].tolist()])
            picked = logits.log_softmax(1)[range(len(y)), y]
            gradients = torch.autograd.grad(-picked.mean(), list(weights.values()))
            for name, gradient in zip(names, gradients, strict=True):
                velocity[name] = momentum * velocity[name] + gradient
                module.get_parameter(name).data.sub_(lr * velocity[name])
    return module.state_dict()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["mlp", "small_resnet"])
def test_training_is_plain_sgd(kind, momentum, request):
    network = request.getfixturevalue(kind)
    data = pictures(22, 1, 28, 5) if kind == "mlp" else pictures(22, classes=5)
    classes = [4, 0, 1, 2, 3]
    told = []
    options = {"epochs": 2, "lr": 0.05, "batch_size": 8, "seed": 7, "momentum": momentum}
    options["log"] = lambda step, loss: told.append((step, loss))
    theta = scratch.train(network, network.params, data, classes=classes, **options)
    expected = by_hand(network, data, 2, 0.05, momentum, 8, 7, classes)
    assert theta.keys() == network.params.keys()
    for name, tensor in theta.items():
        torch.testing.assert_close(tensor, expected[name], msg=name)
        assert not tensor.requires_grad
    assert [step for step, _ in told] == list(range(6))  # batches of 8, 8 and 6, twice
    if kind == "mlp":
        assert told[0][1] == pytest.approx(math.log(5), rel=0.05)
    else:
        assert not torch.equal(theta["bn1.running_var"], network.params["bn1.running_var"])


def test_training_changes_neither_its_start_nor_the_network(small_resnet):
    data = pictures(16)
    start = {name: tensor + 0.01 for name, tensor in small_resnet.params.items()}
    kept = {name: tensor.clone() for name, tensor in start.items()}
    state = {name: tensor.clone() for name, tensor in small_resnet.module.state_dict().items()}
    none = scratch.train(small_resnet, start, data, steps=0, lr=0.1)
    scratch.train(small_resnet, start, data, steps=2, lr=0.1)
    for name, tensor in start.items():
        assert torch.equal(tensor, kept[name]) and torch.equal(none[name], kept[name])
        assert none[name].data_ptr() != tensor.data_ptr()
    for name, tensor in small_resnet.module.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert not small_resnet.module.training


def test_steps_are_those_of_epochs_and_seeds_differ(mlp):
    data = pictures(20, 1, 28)

    def run(**how):
        return scratch.train(mlp, mlp.params, data, lr=0.1, batch_size=8, **how)["linear1.weight"]

    whole = run(epochs=2, seed=1)
    assert torch.equal(whole, run(steps=6, seed=1))
    assert not torch.equal(whole, run(steps=5, seed=1))
    assert not torch.allclose(whole, run(epochs=2, seed=2))


def test_classes_losses_and_accuracies_of_logits(mlp):
    # Raising them changes nothing for a task that is not theirs, and everything otherwise.
    data, own = pictures(15, 1, 28, 3), range(3)
    raised = dict(mlp.params)
    raised["classifier.bias"] = mlp.params["classifier.bias"] + 50.0 * (torch.arange(10) >= 3)
    for measure in (scratch.loss, scratch.accuracy):
        assert measure(mlp, raised, data, own) == measure(mlp, mlp.params, data, own)
    assert scratch.loss(mlp, raised, data) > 40
    assert scratch.accuracy(mlp, raised, data) == 0
    one = scratch.train(mlp, raised, data, steps=1, lr=0.1, classes=own)
    assert torch.equal(one["classifier.weight"][3:], mlp.params["classifier.weight"][3:])
    assert not torch.equal(one["classifier.weight"][:3], mlp.params["classifier.weight"][:3])
    # With all weights 0 the logits are the classifier's bias.
    params = {name: torch.zeros_like(tensor) for name, tensor in mlp.params.items()}
    params["classifier.bias"][2] = math.log(9)
    data = pictures(600, 1, 28, 4)  # several batches, every fourth label is 2
    assert scratch.accuracy(mlp, params, data) == pytest.approx(25)
    assert scratch.accuracy(mlp, params, data, [0, 1, 2, 3]) == pytest.approx(25)
    expected = 0.25 * math.log(2) + 0.75 * math.log(18)  # 9 of 18, and 1 of 18
    assert scratch.loss(mlp, params, data) == pytest.approx(expected)
    expected = 0.25 * math.log(12 / 9) + 0.75 * math.log(12)
    assert scratch.loss(mlp, params, data, [0, 1, 2, 3]) == pytest.approx(expected)


def test_evaluation_and_running_statistics(small_resnet, monkeypatch):
    data = pictures(30)
    whole = scratch.loss(small_resnet, small_resnet.params, data)
    monkeypatch.setattr(scratch, "_TEST_BATCH", 7)
    assert scratch.loss(small_resnet, small_resnet.params, data) == pytest.approx(whole, rel=1e-12)
    logits = small_resnet(small_resnet.params, small_resnet.preprocess(data.x))
    assert whole == pytest.approx(float(F.cross_entropy(logits, data.y)), rel=1e-12)
    x = small_resnet.preprocess(pictures(4).x)
    moved = small_resnet.params | {"bn1.running_mean": small_resnet.params["bn1.running_mean"] + 1}
    assert "bn1.running_var" in small_resnet.params
    assert not any(name.endswith("num_batches_tracked") for name in small_resnet.params)
    change = small_resnet(moved, x) - small_resnet(small_resnet.params, x)
    assert change.abs().max() > 1e-3
    network = scratch.mlp()
    with pytest.raises(TasklabError, match=r"diverged at step 1: loss (nan|inf).*Lower lr"):
        scratch.train(network, network.params, pictures(64, 1, 28), epochs=3, lr=1e30)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"epochs": 1, "steps": 1}, "epochs or steps"),
        ({}, "epochs or steps"),
        ({"steps": -1}, "epochs or steps"),
        ({"steps": 1, "classes": [0, 1]}, r"labels \[2\] are not"),
        ({"steps": 1, "params": {}}, "not the parameters of mlp"),
        ({"steps": 1, "data": pictures(3)}, r"takes images \(1, 28, 28\)"),
    ],
)
def test_what_cannot_be_trained_is_said(mlp, change, told):
    asked = {"params": mlp.params, "data": pictures(9, 1, 28, 3)} | change
    refuses(told, scratch.train, mlp, asked.pop("params"), asked.pop("data"), lr=0.1, **asked)
