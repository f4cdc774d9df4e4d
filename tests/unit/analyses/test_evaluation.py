"""What an evaluator keeps, and what it need not pass."""

import numpy as np
import torch

from tasklab.analyses import evaluation
from tasklab.models import loading
from tasklab.models.heads import Head
from tasklab.tasks.suites import suite
from tasklab.taskvector import TaskVector


def test_what_is_kept_serves_training_too():
    # Heads and images that inference asks for first must not be its own kind of tensors.
    evaluator = evaluation.Evaluator(loading.load("mini"), suite("mini"), None, counts={"val": 2})
    with torch.inference_mode():
        evaluator.head("Signs"), evaluator.images("Signs", "val")
    weight, images = evaluator.head("Signs").weight, evaluator.images("Signs", "val")
    assert not any(kept.is_inference() for kept in (weight, images.x, images.y))
    random = np.random.default_rng(0)
    for _ in range(500):
        count = int(random.integers(1, 30))
        right = random.random(count) < random.random()
        accuracy = 100 * float(right.mean()) + random.choice([0, 1e-12, -1e-12, 5, -5, 40, -40])
        parts = np.array_split(right, random.integers(1, count + 1))
        assert evaluation.settled(parts, count, accuracy) == (100 * right.mean() >= accuracy)


def test_whether_an_accuracy_is_reached_is_known_exactly_and_early(monkeypatch):
    clip = loading.load("mini")
    evaluator = evaluation.Evaluator(clip, suite("mini"), None, counts={"val": 60}, batch_size=5)
    vector = TaskVector({name: torch.zeros_like(p) for name, p in clip.encoder.params.items()})
    value = evaluator.evaluate(vector, "Textures", "val", linear=False)
    assert 20 < value < 80  # else no image could be left out
    evaluator.start("Textures", "val")  # is computed once for all edits
    seen, usual = [], type(clip.encoder).__call__
    monkeypatch.setattr(
        type(clip.encoder), "__call__", lambda e, p, x: (seen.append(len(x)), usual(e, p, x))[1]
    )
    for accuracy in (0.0, value / 3, value, value + 1e-9, 100 - value / 3, 100.0, 105.0):
        seen.clear()
        found = evaluator.reaches(accuracy, vector, "Textures", "val", linear=False)
        assert found == (value >= accuracy), accuracy
        if abs(accuracy - value) > 20:
            assert 0 < sum(seen) < 60


def test_what_an_edit_breaks_is_seen_first(monkeypatch):
    """The unedited model's mistakes come first, and then what it is least sure of."""
    clip = loading.load("mini")
    evaluator = evaluation.Evaluator(clip, suite("mini"), None, counts={"val": 60}, batch_size=5)
    right, order = evaluator.start("Scenes", "val")
    in_order = right[order.numpy()]
    assert sorted(order.tolist()) == list(range(60)) and 0 < right.sum() < 60
    assert in_order[: (~right).sum()].sum() == 0 and in_order[(~right).sum() :].all()
    draw, params = torch.Generator().manual_seed(0), clip.encoder.params
    noise = {
        name: torch.randn(p.shape, generator=draw) * p.std(correction=0)
        for name, p in params.items()
    }
    vector, sizes, usual = TaskVector(noise), [], type(clip.encoder).__call__
    lost = evaluator.evaluate(vector, "Scenes", "val", 0.5, linear=False)
    monkeypatch.setattr(
        type(clip.encoder), "__call__", lambda e, p, x: (sizes.append(len(x)), usual(e, p, x))[1]
    )
    least = 0.95 * 100 * right.mean()
    assert lost < least
    assert not evaluator.reaches(least, vector, "Scenes", "val", 0.5, linear=False)
    assert sum(sizes) <= (~right).sum() + 15  # three more parts of images at most


def test_the_unedited_model_is_evaluated_once_and_with_its_own_heads(monkeypatch):
    clip = loading.load("mini")
    evaluator = evaluation.Evaluator(clip, suite("mini"), None, counts={"val": 40})
    vector = TaskVector({n: torch.ones_like(p) for n, p in clip.encoder.params.items()})
    passes, usual = [], evaluation.Evaluator.features
    monkeypatch.setattr(
        evaluation.Evaluator, "features", lambda *given: (passes.append(1), usual(*given))[1]
    )
    first, again = (evaluator.evaluate(vector, "Signs", "val", 0.0, linear=False) for _ in "ab")
    assert first == again == 100 * evaluator.start("Signs", "val").right.mean()
    assert len(passes) == 1
    head = evaluator.head("Signs")
    others = evaluator.with_heads({"Signs": Head(head.weight.roll(1, 0))})
    assert others.evaluate(vector, "Signs", "val", 0.0, linear=False) < first / 2
