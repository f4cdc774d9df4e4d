"""Layer by layer outputs, and their distance from linear, against slow arithmetic in float64."""

import pytest
import torch
from torch import nn

from tasklab.analyses import tangent_gap
from tasklab.models.blocks import FEATURES, Layers
from tasklab.models.encoder import Encoder
from tasklab.taskvector import TaskVector
from tests.helpers import refuses


def encoder_of(module, blocks):
    encoder = Encoder.of(module.double(), name="mini", init="random", blocks=blocks, image_size=8)
    object.__setattr__(encoder, "preprocess", lambda x: x.double())
    return encoder


class Tokens(nn.Module):
    """Two blocks on four tokens, whose axes come in either order."""

    def __init__(self, sequence_first):
        super().__init__()
        self.sequence_first = sequence_first
        self.blocks = nn.ModuleList(nn.Linear(48, 48) for _ in range(2))

    def forward(self, x):
        x = x.reshape(len(x), 4, 48)
        x = x.transpose(0, 1) if self.sequence_first else x
        for block in self.blocks:
            x = block(x)
        return (x.transpose(0, 1) if self.sequence_first else x).mean(1)


def images(count=5):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, 8, 8, dtype=torch.float64, generator=generator)


def drawn(params, scale=0.05):
    generator = torch.Generator().manual_seed(2)
    return TaskVector(
        {
            name: scale * torch.randn(x.shape, dtype=torch.float64, generator=generator)
            for name, x in params.items()
        }
    )


def by_hooks(encoder, params, x):
    found = []
    blocks = [encoder.module.get_submodule(name) for name in encoder.blocks]
    handles = [b.register_forward_hook(lambda m, a, out: found.append(out)) for b in blocks]
    features = torch.func.functional_call(encoder.module, params, (x,))
    for handle in handles:
        handle.remove()
    return [*found, features]


def test_sizes_of_layers_are_found_once_for_images_of_one_size(encoder, monkeypatch):
    first, passes = Layers(encoder, images()), []
    monkeypatch.setattr(encoder.module, "forward", lambda x: passes.append(x) or 1 / 0)
    assert Layers(encoder, images(1)).sizes == first.sizes and not passes
    with pytest.raises(ZeroDivisionError):
        Layers(encoder, torch.zeros(1, 3, 4, 4, dtype=torch.float64))


def test_layers_are_read_and_no_hook_stays(encoder):
    x = images()
    layers = Layers(encoder, x)
    found = layers.cut(layers(encoder.params, x))
    assert list(found) == [*encoder.blocks, FEATURES]
    for rows, expected in zip(found.values(), by_hooks(encoder, encoder.params, x), strict=True):
        torch.testing.assert_close(rows, expected.flatten(1))
    layers = Layers(encoder, images())
    with pytest.raises(RuntimeError):
        layers(encoder.params, torch.zeros(2, 5, 8, 8, dtype=torch.float64))
    blocks = [encoder.module.get_submodule(name) for name in encoder.blocks]
    assert not any(block._forward_hooks for block in blocks)
    df = tangent_gap.gaps(encoder, drawn(encoder.params), images(), (1e-3, 2e-3))
    values = df.pivot_table(index="alpha", columns=df["block"].fillna(-1), values="value")
    ratios = values.loc[2e-3] / values.loc[1e-3]
    assert (ratios - 2).abs().max() < 0.02


@pytest.mark.parametrize("count", [1, 4, 6])  # four images are as many as tokens
def test_the_order_of_a_blocks_axes_does_not_matter(count):
    torch.manual_seed(0)
    one = Tokens(sequence_first=False)
    two = Tokens(sequence_first=True)
    two.load_state_dict(one.state_dict())
    rows = []
    for module in (one, two):
        encoder = encoder_of(module, ("blocks.0", "blocks.1"))
        rows.append(Layers(encoder, images(1))(encoder.params, images(count)))
    torch.testing.assert_close(*rows)


def test_gaps_are_those_of_central_differences(encoder):
    vector, x, step = drawn(encoder.params), images(), 1e-5
    f0 = by_hooks(encoder, encoder.params, x)
    more, less = (by_hooks(encoder, vector.apply(encoder.params, s), x) for s in (step, -step))
    jtau = [(a - b) / (2 * step) for a, b in zip(more, less, strict=True)]
    df = tangent_gap.gaps(encoder, vector, x, (0.5, 1.0), batch_size=2)
    for c in (0.5, 1.0):
        edited = by_hooks(encoder, vector.apply(encoder.params, c), x)
        for i, (h, base, slope) in enumerate(zip(edited, f0, jtau, strict=True)):
            rest = (h - base - c * slope).flatten(1).norm(dim=1).mean()
            expected = rest / (c * slope).flatten(1).norm(dim=1).mean()
            place = df["block"].isna() if i == len(encoder.blocks) else df["block"] == i
            (found,) = df[(df["alpha"] == c) & place.fillna(False)]["value"]
            assert found == pytest.approx(float(expected), rel=1e-6)
    sizes = df.groupby("alpha")["size"].unique().explode()
    theta = torch.cat([x.flatten() for x in encoder.params.values()]).norm()
    assert sizes[1.0] == pytest.approx(vector.norm() / float(theta))
    assert sizes[0.5] == pytest.approx(sizes[1.0] / 2)
    back, ahead = (
        tangent_gap.gaps(encoder, v, x, (c,))["value"] for v, c in ((vector, -0.5), (-vector, 0.5))
    )
    assert back.tolist() == pytest.approx(ahead.tolist())


def test_gaps_where_memory_runs_out(encoder, monkeypatch):
    vector, x, sizes, usual = drawn(encoder.params), images(), [], tangent_gap.Layers.__call__
    whole = tangent_gap.gaps(encoder, vector, x)

    def short(layers, params, part):
        sizes.append(len(part))
        if len(part) > 3 and len(sizes) > 2:  # after the tangents
            raise MemoryError
        return usual(layers, params, part)

    monkeypatch.setattr(tangent_gap.Layers, "__call__", short)
    found = tangent_gap.gaps(encoder, vector, x)
    assert sizes[:4] == [5, 5, 5, 3] and set(sizes[3:]) == {3, 2}
    assert list(found["value"]) == pytest.approx(list(whole["value"]), rel=1e-9)


def test_a_model_affine_in_its_weights_has_no_gap():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 7))
    encoder = encoder_of(module, ("1",))
    df = tangent_gap.gaps(encoder, drawn(encoder.params), images())
    assert len(df) == 2 * len(tangent_gap.SCALES)
    assert df["value"].max() < 1e-12


def test_a_block_that_the_vector_does_not_reach_is_left_out(encoder):
    last = {n: x for n, x in encoder.params.items() if ".resblocks.1." in n}
    df = tangent_gap.gaps(encoder, drawn(last), images(), (1.0,))
    assert df["block"].dropna().tolist() == [1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scales": (0.0, 1.0)}, "other than 0"),
        ({"scales": ()}, "scales must be a list of at least one number"),
        ({"images": images(0)}, "needs images"),
        ({"vector": "none"}, "does not change"),
    ],
)
def test_what_has_no_gap_is_said(encoder, change, told):
    asked = {"vector": drawn(encoder.params), "images": images(), "scales": (1.0,)} | change
    if change.get("vector"):
        asked["vector"] = TaskVector.zeros_like(encoder.params)
    refuses(told, tangent_gap.gaps, encoder, **asked)


@pytest.mark.parametrize("model", ["mini_xs", "mini_convnext", "mini_sup_few", "mini_t5"])
def test_every_shipped_architecture_can_be_read(model):
    from tasklab.models import loading
    from tasklab.tasks import drawn
    from tasklab.tasks.suites import suite

    encoder = loading.load(model, device="cpu").encoder
    tasks = suite("mini_text" if model == "mini_t5" else "mini")
    inputs = drawn.images_of(tasks).load(tasks.names[0], "test", n=3).x
    x = encoder.preprocess(inputs)
    layers = Layers(encoder, x)
    found = layers.cut(layers(encoder.params, x))
    torch.testing.assert_close(found[FEATURES], encoder(encoder.params, x))
    for i in range(3):  # neither its neighbours nor, for a text, their lengths matter
        alone = layers(encoder.params, x[i : i + 1])
        expected = layers(encoder.params, x)[i : i + 1]
        torch.testing.assert_close(alone, expected, rtol=1e-4, atol=1e-4)
    small = TaskVector({name: 1e-3 * t for name, t in encoder.params.items()})
    df = tangent_gap.gaps(encoder, small, inputs, (1.0,))
    assert df["block"].dropna().tolist() == list(range(len(encoder.blocks)))
    assert df["value"].between(0, 0.1).all()
