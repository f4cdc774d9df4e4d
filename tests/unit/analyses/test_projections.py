"""Projections found by name, and the data they read: against the blocks followed line by line."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tasklab import mini
from tasklab.analyses.projections import (
    ATTENTION,
    PROJECTIONS,
    Inputs,
    is_root,
    pieces,
    second_moments,
)
from tests.helpers import refuses
from tests.vectors import pictures, plain

WIDTH = 8


def slow_inputs(encoder, x):
    found = {}
    module = encoder.module
    seen = []
    hook = module.transformer.resblocks[0].register_forward_pre_hook(
        lambda _, args: seen.append(args[0])
    )
    module(x)
    hook.remove()
    tokens = seen[0]
    for i, block in enumerate(module.transformer.resblocks):
        prefix = f"transformer.resblocks.{i}."
        read = block.ln_1(tokens)
        q, k, v = F.linear(read, block.attn.in_proj_weight, block.attn.in_proj_bias).chunk(3, -1)
        count = block.attn.num_heads
        d = WIDTH // count
        heads = []
        for h in range(count):
            part = slice(h * d, (h + 1) * d)
            scores = q[..., part] @ k[..., part].transpose(-1, -2) / math.sqrt(d)
            heads.append(scores.softmax(-1) @ v[..., part])
        heads = torch.cat(heads, -1)
        tokens = tokens + heads @ block.attn.out_proj.weight.T + block.attn.out_proj.bias
        normal = block.ln_2(tokens)
        hidden = block.mlp.gelu(block.mlp.c_fc(normal))
        tokens = tokens + block.mlp.c_proj(hidden)
        found[prefix + "attn.in_proj_weight"] = read
        found[prefix + "attn.out_proj.weight"] = heads
        found[prefix + "mlp.c_fc.weight"] = normal
        found[prefix + "mlp.c_proj.weight"] = hidden
    return found, tokens


def test_second_moments_are_those_of_the_inputs(encoder):
    x = pictures(5)
    inputs, tokens = slow_inputs(encoder, x)
    last = []  # the loop's last tokens are the model's: it followed the right path
    hook = encoder.module.transformer.register_forward_hook(lambda *args: last.append(args[2]))
    encoder.module(x)
    hook.remove()
    torch.testing.assert_close(tokens, last[0])
    found = second_moments(encoder, x, batch_size=2)
    assert found.keys() == inputs.keys()
    for name, read in inputs.items():
        rows = read.reshape(-1, read.shape[-1])
        torch.testing.assert_close(found[name], rows.T @ rows / len(rows))


@pytest.mark.parametrize("batch_size", [1, 2, 250])
@pytest.mark.parametrize("count", [1, 4])
def test_roots_are_of_few_inputs_and_say_the_same(encoder, count, batch_size):
    x = pictures(count)
    found = second_moments(encoder, x, roots=True, batch_size=batch_size)
    whole, kinds = second_moments(encoder, x), set()
    for name, moment in found.items():
        kinds.add(is_root(moment))
        square = moment.T @ moment if is_root(moment) else moment
        torch.testing.assert_close(square, whole[name])
    assert True in kinds if count == 1 else False in kinds  # one image has fewer tokens than width


def test_second_moments_where_memory_runs_out(encoder, monkeypatch):
    x, sizes, usual = pictures(5), [], type(encoder).__call__
    whole = second_moments(encoder, x)

    def short(self, params, part):
        sizes.append(len(part))
        found = usual(self, params, part)  # the inputs have been seen
        if len(part) > 2 and len(sizes) > 1:
            raise MemoryError
        return found

    monkeypatch.setattr(type(encoder), "__call__", short)
    found = second_moments(encoder, x, batch_size=3)
    assert sizes == [3, 2]
    sizes.clear()
    found = second_moments(encoder, torch.cat([x, x]), batch_size=4)
    assert sizes == [4, 4, 2, 2, 2]
    torch.testing.assert_close(found, whole)


def test_reading_the_inputs_changes_nothing_for_other_parameters(encoder):
    x, seen = pictures(5, 3), []
    names = {n: p for n, p in encoder.params.items() if "attn.out_proj.weight" in n}
    with torch.no_grad():
        usual = encoder(encoder.params, x)
        with Inputs(names, lambda name, _: seen.append(name)):
            watched = encoder(encoder.params, x)
    torch.testing.assert_close(watched, usual)
    assert seen == list(names)
    theta = {name: 1.1 * x + 0.1 for name, x in encoder.params.items()}
    found = second_moments(encoder, pictures(5, 0), params=theta)
    with torch.no_grad():
        shape = {"layers": 2, "width": WIDTH, "head_width": 4, "patch_size": 4}
        module = mini.build(**shape, image_size=8).visual.double()
        module.load_state_dict(theta)
        changed = plain(module)
    torch.testing.assert_close(found, second_moments(changed, pictures(5, 0)))


def test_pieces_are_all_parameters_once_in_order(encoder):
    params = {
        "m.resblocks.0.attn.in_proj_weight": torch.arange(6.0).view(6, 1),
        "m.resblocks.0.attn.out_proj.weight": torch.ones(2, 2),
    }
    found = {
        p.projection: params[p.name][p.rows].flatten().tolist() for p in pieces(params, ATTENTION)
    }
    assert found["q"] == [0, 1] and found["k"] == [2, 3] and found["v"] == [4, 5]
    count = {name: 0 for name in encoder.params}
    for piece in pieces(encoder.params):
        x = encoder.params[piece.name]
        count[piece.name] += (x[piece.rows] if x.dim() else x).numel()
    assert count == {name: x.numel() for name, x in encoder.params.items()}


@pytest.mark.parametrize(
    "names",
    [
        ["attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"],
        ["attn.in_proj.weight", "attn.out_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"],
        ["attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.out_proj.weight",
         "mlp.fc1.weight", "mlp.fc2.weight"],
    ],
)  # fmt: skip
def test_other_libraries_names(names):
    params = {f"trunk.blocks.{b}.{n}": torch.zeros(6, 2) for b in (0, 2, 10) for n in names}
    params["trunk.blocks.10.norm1.weight"] = torch.zeros(2)
    params["logit_scale"] = torch.tensor(1.0)
    found = pieces(params)
    for kind in PROJECTIONS:
        assert [p.block for p in found if p.projection == kind] == [0, 1, 2]
    assert [p.block for p in found if p.projection is None] == [None, 2]
    assert next(p.name for p in found if p.block == 2).startswith("trunk.blocks.10.")


def test_projections_that_are_not_there_or_cannot_be_read(encoder):
    names = [n for n in encoder.params if "in_proj_weight" in n]
    lacking = {n: x for n, x in encoder.params.items() if n not in names}
    refuses("'q' must be there", pieces, lacking)
    refuses("'q' must be there", pieces, lacking, None)
    lacking = {n: x for n, x in encoder.params.items() if n != names[1]}
    refuses(r"2 blocks.*\[0\]", pieces, lacking)
    refuses("projection", pieces, encoder.params, ("query",))
    refuses("5 rows", lambda: pieces({"blocks.0.attn.qkv.weight": torch.zeros(5, 2)}, ()))

    class Odd(nn.Module):
        """Multiplies by hand, out of sight."""

        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Module()])
            self.blocks[0].mlp = nn.Module()
            self.blocks[0].mlp.fc1 = nn.Linear(3, 2)

        def forward(self, x):
            return x.mean((2, 3)) @ self.blocks[0].mlp.fc1.weight.T

    odd = plain(Odd().double())
    refuses("linear layer", lambda: second_moments(odd, pictures(5, 0), projections=("MLP input",)))
    refuses("at least one image", lambda: second_moments(encoder, pictures(0)))
