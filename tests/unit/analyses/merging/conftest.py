"""Small task vectors of one model, in float64, and how they are compared."""

import types

import pytest
import torch
from torch import nn

from tasklab.taskvector import TaskVector

SHAPES = {
    "positional_embedding": (5, 6),
    "transformer.resblocks.0.attn.in_proj_weight": (18, 6),
    "transformer.resblocks.0.mlp.c_proj.weight": (6, 24),
    "transformer.resblocks.0.mlp.c_proj.bias": (6,),
    "transformer.resblocks.1.attn.in_proj_weight": (18, 6),
    "transformer.resblocks.1.mlp.c_proj.weight": (6, 24),
    "transformer.resblocks.1.mlp.c_proj.bias": (6,),
    "proj": (6, 8),
}
assert_close = torch.testing.assert_close
MATRICES = [name for name in SHAPES if name.endswith("weight") or name == "proj"]


def vector(seed, dtype=torch.float64, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed)
    return TaskVector(
        {
            name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            for name, shape in shapes.items()
        }
    )


def vectors(count, **options):
    return [vector(seed, **options) for seed in range(count)]


class Block(nn.Module):
    """A layer with weights of the shapes above: x + W [x, V x]+ + b."""

    def __init__(self):
        super().__init__()
        self.attn = nn.ModuleDict({"in_proj": nn.Linear(6, 18, bias=False)})
        self.mlp = nn.ModuleDict({"c_proj": nn.Linear(24, 6)})

    def forward(self, x):
        return x + self.mlp["c_proj"](torch.cat([x, self.attn["in_proj"](x)], -1).relu())


def tokens(count):
    """Return rows that blocks read, of each task: (9, 5, 6), and of every next one fewer images."""
    generator = torch.Generator().manual_seed(100)
    drawn = torch.randn(count, 9, 5, 6, generator=generator, dtype=torch.float64)
    return [x[: 9 - place] for place, x in enumerate(drawn)]


def shown(vector, x):
    """Return rows that the weights of these names read; images show nothing of others."""
    rows = {6: x.reshape(-1, 6), 24: x[:, :4].reshape(-1, 24)}
    names = ("attn.in_proj_weight", "0.mlp.c_proj.weight")
    return {n: rows[v.shape[1]] for n, v in vector.items() if n.endswith(names)}


def single(*rows, name="w"):
    return [TaskVector({name: torch.tensor(row, dtype=torch.float64)}) for row in rows]


def numbers(vector):
    (only,) = vector.values()
    return only.tolist()


@pytest.fixture(scope="session")
def cases():
    return types.SimpleNamespace(**globals())
