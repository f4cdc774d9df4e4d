"""Gradients of tasks' losses at their own models, against derivatives by hand."""

import pytest
import torch
from torch import nn

from tasklab.analyses import gradients
from tasklab.models.heads import Head
from tasklab.taskvector import TaskVector
from tests.vectors import plain


@pytest.mark.parametrize("linear", [False, True])
def test_a_gradient_is_the_derivative_of_the_mean_loss(linear):
    draw = torch.Generator().manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    encoder = plain(module, image_size=2)
    tau = {n: torch.randn(p.shape, generator=draw).double() for n, p in encoder.params.items()}
    head = Head(torch.randn(5, 3, generator=draw).double(), normalise=False)
    x, y = torch.randn(40, 3, 2, 2, generator=draw).double(), torch.arange(40) % 5
    found = gradients.gradient(encoder, head, x, y, TaskVector(tau), linear=linear)
    leaves = {n: t.clone().requires_grad_() for n, t in tau.items()}
    if linear:
        f = lambda params: encoder(params, x)  # noqa: E731
        start = dict(encoder.params)
        features = torch.func.jvp(f, (start,), (leaves,))
        logits = (features[0] + features[1]) @ head.weight.T
    else:
        logits = encoder({n: encoder.params[n] + t for n, t in leaves.items()}, x) @ head.weight.T
    nn.functional.cross_entropy(logits, y).backward()
    torch.testing.assert_close(dict(found), {name: leaf.grad for name, leaf in leaves.items()})


def test_the_cosine_and_the_distance_of_every_two():
    each = {"a": [3.0, 0.0], "b": [0.0, 4.0], "c": [6.0, 0.0]}
    found = list(
        gradients.agreement({n: TaskVector({"w": torch.tensor(v)}) for n, v in each.items()})
    )
    values = {(row["task"], row["metric"]): row["value"] for row in found}
    assert [values[pair, "gradient_cosine"] for pair in ("a+b", "a+c", "b+c")] == [0, 1, 0]
    assert values["a+b", "gradient_distance"] == 5 and values["a+c", "gradient_distance"] == 3
