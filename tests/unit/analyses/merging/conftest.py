"""Small task vectors of one model, in float64, and how they are compared."""

import types

import pytest
import torch

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


def single(*rows, name="w"):
    return [TaskVector({name: torch.tensor(row, dtype=torch.float64)}) for row in rows]


def assert_close(one, two, **tolerances):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], two[name], msg=lambda m, n=name: f"{n}: {m}", **tolerances
        )


def numbers(vector):
    (only,) = vector.values()
    return only.tolist()


@pytest.fixture(scope="session")
def cases():
    return types.SimpleNamespace(**globals())
