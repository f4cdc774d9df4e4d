"""Linear probes: AdamW as PyTorch has it, on the paper's schedule, and the search for its rate."""

import math

import pytest
import torch
import torch.nn.functional as F

from tasklab.tuning import probes


@pytest.mark.parametrize(("count", "batch"), [(20, 8), (5, 128)])
def test_adamw_is_pytorchs(count, batch):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    y = torch.arange(count) % 3
    steps, lr, decay = 23, 0.05, 0.1
    head = probes.adamw(
        x, y, classes=3, lr=lr, steps=steps, batch_size=batch, weight_decay=decay, seed=4
    )
    random = torch.Generator().manual_seed(4)
    bound = 1 / math.sqrt(6)
    start = torch.empty(3, 7).uniform_(-bound, bound, generator=random).double()
    layer = torch.nn.Linear(6, 3, dtype=torch.float64)
    layer.weight.data, layer.bias.data = start[:, :-1].clone(), start[:, -1].clone()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1.0, weight_decay=decay)
    warmup, order = steps // 10, torch.randperm(count, generator=random)
    for step in range(steps):
        index, order = order[:batch], order[batch:]
        if len(order) < min(batch, count):
            order = torch.randperm(count, generator=random)
        cosine = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
        optimizer.param_groups[0]["lr"] = lr * ((step + 1) / warmup if step < warmup else cosine)
        optimizer.zero_grad()
        F.cross_entropy(layer(x[index]), y[index]).backward()
        optimizer.step()
    assert torch.allclose(head.weight, layer.weight.detach(), atol=1e-7)
    assert torch.allclose(head.bias, layer.bias.detach(), atol=1e-7)


def test_the_rate_is_the_best_on_validation_images(monkeypatch):
    """Training and validation images have opposite labels: what fits one is wrong on the other."""
    x = torch.eye(2).repeat(50, 1)
    parts = {"train": (x, torch.tensor([0, 1] * 50)), "val": (x, torch.tensor([1, 0] * 50))}
    monkeypatch.setattr(probes, "_features", lambda p, c, s, t, store, split="train": split)
    monkeypatch.setattr(probes, "_on", lambda clip, kept, task: parts[kept])
    suite = {"T": type("Task", (), {"classes": ("a", "b")})}
    probe = probes.Probe(solver="adamw", steps=50, lr=None, batch_size=10)
    found = probes.search(probe, None, suite, None, (1e-9, 0.3), "T")
    assert found[0.3] == 0 and found[1e-9] > 0
    assert probes.best_rate(found) == 1e-9
