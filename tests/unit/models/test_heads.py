"""Heads against loops and closed forms."""

import dataclasses
import functools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from tasklab.models import heads, loading
from tasklab.models.heads import Head, accuracy, linear_probe, zero_shot
from tasklab.tasks.suites import Task
from tasklab.tuning import probes
from tests.helpers import refuses

TASK = Task(
    name="Pets",
    classes=("cat", "dog", "fish"),
    templates=("a photo of a {}.", "a bad photo of a {}."),
    stand_in_for="pets",
)


def features_of(texts):
    return torch.stack(
        [
            5 * torch.randn(7, generator=torch.Generator().manual_seed(sum(map(ord, t)))).double()
            for t in texts
        ]
    )


def test_zero_shot_is_the_mean_over_templates_of_unit_vectors():
    head = zero_shot(SimpleNamespace(text=features_of, logit_scale=50.0, cosine=True), TASK)
    assert head.weight.shape == (3, 7) and head.bias is None and head.normalise
    for row, name in zip(head.weight, TASK.classes, strict=True):
        units = []
        for template in TASK.templates:
            vector = features_of([template.format(name)])[0]
            units.append(vector / vector.norm())
        mean = (units[0] + units[1]) / 2
        torch.testing.assert_close(row, 50 * mean / mean.norm(), rtol=0, atol=1e-12)


def test_logits_and_scores_are_cosines_and_affine():
    torch.manual_seed(0)
    x, weight = torch.randn(4, 7).double(), 50 * F.normalize(torch.randn(3, 7).double(), dim=-1)
    head = Head(weight)
    expected = 50 * F.cosine_similarity(x[:, None], weight[None], dim=-1)
    torch.testing.assert_close(head(x), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(head(3 * x), head(x), rtol=0, atol=1e-12)
    torch.manual_seed(0)
    weight, bias = torch.randn(5, 7).double(), torch.randn(5).double()
    one, two = torch.randn(2, 9, 7).double().unbind()
    for head in (Head(weight), Head(weight, bias, normalise=False)):
        middle = (head.scores(one) + head.scores(two)) / 2
        torch.testing.assert_close(head.scores((one + two) / 2), middle, rtol=0, atol=1e-12)
        assert torch.equal(head.scores(one).argsort(-1), head(one).argsort(-1))
    refuses("no bias", Head, weight, bias)
    scores = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]])
    assert accuracy(scores, torch.tensor([0, 1, 0, 0])) == 0.5
    refuses("at least one image", lambda: accuracy(scores[:0], torch.tensor([], dtype=torch.long)))


def test_probe_is_at_the_minimum_of_its_objective():
    torch.manual_seed(0)
    y = torch.arange(60) % 3
    x = 7 * (torch.randn(60, 5).double() + 2 * F.one_hot(y, 5))
    decay = 1e-2
    probe = linear_probe(x, y, classes=3, decay=decay)
    scale = x.square().sum(-1).mean().sqrt()
    weight = (probe.weight * scale).requires_grad_()
    bias = probe.bias.clone().requires_grad_()
    loss = F.cross_entropy(x / scale @ weight.T + bias, y)
    loss = loss + decay / 2 * weight.square().sum()
    for gradient in torch.autograd.grad(loss, (weight, bias)):
        assert gradient.abs().max() < 1e-6
    # No seed and no order: the same images in another order give the same classifier
    order = torch.randperm(60)
    again = linear_probe(x[order], y[order], classes=3, decay=decay)
    torch.testing.assert_close(again.weight, probe.weight, rtol=0, atol=1e-5)


def test_probe_separates_what_a_plane_separates_and_refuses_other_labels():
    torch.manual_seed(0)
    y = torch.arange(40) % 4
    x = F.one_hot(y, 6).float() + 0.1 * torch.randn(40, 6)
    probe = linear_probe(x, y, classes=5)  # a class without images
    assert probe.weight.shape == (5, 6) and probe.weight.dtype == torch.float32
    assert accuracy(probe(x), y) == 1.0
    large = linear_probe(1000 * x, y, classes=5)
    torch.testing.assert_close(large(1000 * x), probe(x), rtol=1e-2, atol=1e-2)
    x = torch.randn(4, 3)
    refuses("from 0 to 3, of 3 classes", lambda: linear_probe(x, torch.arange(4), classes=3))
    refuses("at least one image", lambda: linear_probe(x[:0], torch.arange(0), classes=3))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(value):
    broken = torch.tensor([[0.0, 1.0], [value, 2.0]])
    refuses("the weight of a head is not finite", Head, broken)
    refuses("bias .* not finite", Head, torch.eye(2), broken[:, 0], normalise=False)
    for fit in (linear_probe, functools.partial(probes.adamw, lr=0.1, steps=1)):
        refuses("fitted .* not finite", fit, broken, torch.tensor([0, 1]), classes=2)


def test_prompts_are_read_once_and_a_head_that_trains_is_a_copy():
    clip, read = loading.load("mini_xs", init="random"), []

    def text(prompts):
        read.append(len(prompts))
        return clip.text(prompts)

    counted = dataclasses.replace(clip, text=text)
    with torch.inference_mode():
        frozen = heads.start("zero_shot", counted, TASK)
    trained = heads.start("zero_shot_trained", counted, TASK)
    assert read == [6] and not frozen.weight.is_inference()
    assert torch.equal(trained.weight, frozen.weight)
    trained.weight.zero_()
    again = heads.start("zero_shot", counted, TASK)
    assert torch.equal(again.weight, zero_shot(clip, TASK).weight) and read == [6]
    heads.start("zero_shot", counted, dataclasses.replace(TASK, classes=("cat", "dog", "bird")))
    assert read == [6, 6]


@pytest.mark.parametrize("cosine", [True, False])
def test_classes_that_a_model_reads_as_the_same_text_are_refused(cosine):
    """As a tokenizer does that keeps the first twelve letters."""
    clip = SimpleNamespace(
        text=lambda texts: features_of([text[:12] for text in texts]),
        logit_scale=1.0,
        cosine=cosine,
        encoder=SimpleNamespace(name="cut"),
    )
    classes = ("a long cat", "a long dog", "fish")
    task = dataclasses.replace(TASK, classes=classes, templates=("{}",))
    assert zero_shot(clip, task).weight.shape == (3, 7)
    task = dataclasses.replace(task, templates=("photo of {}",))
    refuses("'cut' reads the prompts of 'a long cat' and 'a long d", zero_shot, clip, task)
    assert zero_shot(clip, dataclasses.replace(task, repeats=True)).weight.shape == (3, 7)
