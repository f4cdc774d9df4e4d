"""Meters: products in place, bytes of chains, views and graphs, turns taken in order."""

import torch

from tasklab.analyses.meters import flops, peak_bytes, turns


def test_what_is_kept_counts_and_what_goes_does_not():
    a, b, c = torch.ones(2, 3), torch.ones(3, 5), torch.zeros(2, 5)
    assert flops(lambda: c.addmm_(a, b)) == 2 * 2 * 3 * 5
    assert flops(lambda: c[None].expand(4, 2, 5).clone().baddbmm_(
        a.expand(4, 2, 3), b.expand(4, 3, 5))) == 4 * 2 * 2 * 3 * 5  # fmt: skip
    x = torch.ones(100)

    def chain():
        y = x * 2
        for _ in range(5):
            y = y + 1
        return y

    assert peak_bytes(chain) == 2 * 400
    x = torch.ones(100)

    def step():
        kept = [x + i for i in range(3)]  # 1200 bytes
        kept[0].view(10, 10).mul_(2)
        kept[1][:50].zero_()
        x.detach().add_(0)
        torch.add(x, 1, out=kept[2])
        kept.clear()
        return x.double()  # 800: after the others were freed

    assert peak_bytes(step) == 1200
    assert peak_bytes(step) == 1200
    # Of tanh(tanh(x)) both results are kept, and the seed; two gradients come beside them.
    x = torch.zeros(1000, requires_grad=True)

    def step():
        y = x.tanh().tanh()
        return torch.autograd.grad(y, x, torch.ones_like(y))

    assert peak_bytes(step) == 5 * 4000
    kept = []
    assert peak_bytes(lambda: kept.append(torch.ones(10))) == 40
    kept.clear()
    assert peak_bytes(lambda: None) == 0


def test_steps_take_turns():
    order, now = [], [0.0]

    def step(name, seconds):
        order.append(name)
        now[0] += seconds

    steps = {n: lambda n=n, s=s: step(n, s) for n, s in (("a", 1.0), ("b", 2.0), ("c", 4.0))}
    clocks = (lambda: now[0], lambda: 10 * now[0])
    taken = turns(steps, 4, clocks)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert taken == {"a": [(1, 10)] * 4, "b": [(2, 20)] * 4, "c": [(4, 40)] * 4}
