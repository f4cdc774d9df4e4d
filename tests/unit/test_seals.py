"""Writing to what is kept or handed out: the next answer is the right one, or an error."""

import copy

import numpy as np
import pytest
import torch

from tasklab import Lab, TaskVector
from tasklab.errors import TasklabError
from tasklab.models import heads, loading
from tasklab.storage import placement, seals

WAYS = {
    "counted": lambda x: x.mul_(2),
    "not counted": lambda x: x.data.mul_(2),
    "by numpy": lambda x: x.numpy().__imul__(2),
    "one number": lambda x: x.data.view(-1)[-1:].add_(1),
    "order": lambda x: x.data.copy_(x.data.flip(0)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(3,), (5, 7), (700, 701)])
def test_a_stamp_notices_writing_and_nothing_else(way, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    before = seals.stamp({"x": [x]})
    assert seals.stamp({"x": [x]}) == before
    WAYS[way](x)
    assert seals.stamp({"x": [x]}) != before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.uint8, torch.bool])
def test_a_stamp_is_of_every_type_and_layout(dtype):
    x = torch.ones(4, 6, dtype=dtype).t()[1:]
    before = seals.stamp(x)
    x.data[-1, -1] = 0
    assert seals.stamp(x) != before
    values = np.ones((3, 4))[:, ::2]
    before = seals.stamp(values)
    values[2, 1] = 0
    assert seals.stamp(values) != before
    with torch.inference_mode():
        x = torch.ones(2)
        before = seals.stamp(x)
        assert seals.stamp(x.zero_()) != before


@pytest.mark.parametrize("way", WAYS)
def test_a_vector_that_was_written_to_has_another_fingerprint(way):
    vector = TaskVector({"w": torch.arange(12.0).view(3, 4), "b": torch.ones(2)})
    parts = [vector.fingerprint(), vector.starting_from(None).fingerprint()]
    assert parts[0] == parts[1]
    WAYS[way](vector["w"])
    fresh = TaskVector({name: x.clone() for name, x in vector.items()}).fingerprint()
    assert vector.fingerprint() == fresh != parts[0]
    assert vector.to("cpu").fingerprint() == vector.starting_from(None).fingerprint() == fresh


def test_both_sides_of_a_difference_must_have_memory_of_their_own():
    network = torch.nn.Linear(4, 4)
    start = network.state_dict()
    with pytest.raises(TasklabError, match="deepcopy"):
        TaskVector.between(start, network.state_dict())
    before = copy.deepcopy(start)
    assert TaskVector.between(before, start).norm() == 0
    moved = before | {"bias": before["bias"] + 1}
    assert TaskVector.between(before, moved).norm() == pytest.approx(2)


@pytest.fixture
def lab(tmp_path):
    return Lab("mini_s", tasks=["Signs"], steps=12, progress=False, store_root=str(tmp_path))


def trained(module):
    for parameter in module.parameters():
        parameter.data.add_(0.01)


CHANGES = {
    "trained": trained,
    "optimiser": lambda module: module.ln_post.weight.add_(1),
    "a part exchanged": lambda module: setattr(module, "ln_post", torch.nn.LayerNorm(128)),
    "training mode": lambda module: module.train(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_network_that_was_changed_is_refused_and_loaded_anew(change):
    mine = loading.shared("mini_s")
    assert loading.shared("mini_s") is mine
    known = mine.encoder.weights_hash
    CHANGES[change](mine.encoder.module)
    with pytest.raises(TasklabError, match="load it again"):
        _ = mine.encoder.weights_hash
    with pytest.raises(TasklabError, match="load it again"):
        _ = mine.identity
    fresh = loading.shared("mini_s")
    assert fresh is not mine and fresh.encoder.weights_hash == known


def test_a_pass_of_changed_weights_is_refused_and_of_restored_ones_is_not():
    encoder = loading.load("mini_s").encoder
    x, known = torch.rand(1, 3, 32, 32), encoder.weights_hash
    right, saved = encoder(encoder.params, x), copy.deepcopy(encoder.module.state_dict())
    encoder.params["proj"].mul_(2)
    with pytest.raises(TasklabError, match="load it again"):
        encoder(encoder.params, x)
    encoder.module.load_state_dict(saved)
    assert torch.equal(encoder(encoder.params, x), right) and encoder.weights_hash == known


def test_heads_and_what_is_kept_are_made_again(lab):
    task = lab.suite["Signs"]
    head = heads.start("zero_shot", lab.clip, task)
    right = head.weight.clone()
    head.weight.zero_()
    assert torch.equal(heads.start("zero_shot", lab.clip, task).weight, right)
    first = placement.resident(("seals",), "meta", lambda: torch.ones(2))
    assert placement.resident(("seals",), "meta", lambda: torch.zeros(3)) is first
    first.zero_()
    assert placement.resident(("seals",), "meta", lambda: torch.zeros(3)).shape == (3,)
    placement.release()


def test_everything_that_a_lab_hands_out_can_be_written_to(lab):
    """After it, the same question has the same answer, or is refused in a sentence."""

    def ask(vector):
        found = lab.evaluate(vector, "Signs", linear=True)
        plain = lab.evaluate(vector, "Signs")
        return [found["Signs"]["after"], plain["Signs"]["after"], plain["Signs"]["before"]]

    vector = lab.vector("Signs")
    right = ask(vector)
    other = ask(TaskVector({name: 0 * x for name, x in vector.items()}, vector.base))
    assert right != other
    answers = lab.evaluate(vector, "Signs")
    answers.before["Signs"][:] = ~answers.before["Signs"]
    answers.after["Signs"][:] = False
    assert ask(vector) == right
    images = lab.evaluator.images("Signs", "test")
    images.x.zero_(), images.y.data.fill_(3)
    assert ask(vector) == right
    lab.evaluator.head("Signs").weight.data.neg_()
    assert ask(vector) == right
    start = lab.evaluator.start("Signs", "test")
    start.right[:] = False
    start.order.zero_()
    assert ask(vector) == right
    run = lab.tune("Signs")
    run.record["losses"].clear()
    for tensor in run.vector.values():
        tensor.zero_()
    assert ask(lab.vector("Signs")) == right and lab.tune("Signs").record["losses"]
    features = lab.evaluator.tangent_features(vector, "Signs", "test")
    features.jtau.zero_()
    assert ask(vector) == right
    for tensor in vector.values():
        tensor.zero_()
    assert ask(vector) == other
    lab.clip.encoder.params["proj"] = lab.clip.encoder.params["proj"] + 1
    with pytest.raises(TasklabError, match="load it again"):
        ask(lab.vector("Signs"))
