"""The distance of layers' outputs from linear, against slow arithmetic in float64."""

import pytest
import torch
from torch import nn

from tasklab.analyses import tangent_gap
from tasklab.models.blocks import Layers
from tasklab.taskvector import TaskVector
from tests.helpers import refuses
from tests.vectors import noise, pictures, plain


def small(params):
    return noise(params, 2, 0.05)


def by_hooks(encoder, params, x):
    found = []
    blocks = [encoder.module.get_submodule(name) for name in encoder.blocks]
    handles = [b.register_forward_hook(lambda m, a, out: found.append(out)) for b in blocks]
    features = torch.func.functional_call(encoder.module, params, (x,))
    for handle in handles:
        handle.remove()
    return [*found, features]


def test_sizes_of_layers_are_found_once_for_images_of_one_size(encoder, monkeypatch):
    first, passes = Layers(encoder, pictures(5)), []
    monkeypatch.setattr(encoder.module, "forward", lambda x: passes.append(x) or 1 / 0)
    assert Layers(encoder, pictures(1)).sizes == first.sizes and not passes
    with pytest.raises(ZeroDivisionError):
        Layers(encoder, torch.zeros(1, 3, 4, 4, dtype=torch.float64))


def test_gaps_are_those_of_central_differences(encoder):
    vector, x, step = small(encoder.params), pictures(5), 1e-5
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
    vector, x, sizes, usual = small(encoder.params), pictures(5), [], tangent_gap.Layers.__call__
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
    encoder = plain(nn.Sequential(nn.Flatten(), nn.Linear(192, 7)).double(), blocks=("1",))
    df = tangent_gap.gaps(encoder, small(encoder.params), pictures(5))
    assert len(df) == 2 * len(tangent_gap.SCALES)
    assert df["value"].max() < 1e-12


def test_a_block_that_the_vector_does_not_reach_is_left_out(encoder):
    last = {n: x for n, x in encoder.params.items() if ".resblocks.1." in n}
    df = tangent_gap.gaps(encoder, small(last), pictures(5), (1.0,))
    assert df["block"].dropna().tolist() == [1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scales": (0.0, 1.0)}, "other than 0"),
        ({"scales": ()}, "scales must be a list of at least one number"),
        ({"images": pictures(0)}, "needs images"),
        ({"vector": "none"}, "does not change"),
    ],
)
def test_what_has_no_gap_is_said(encoder, change, told):
    asked = {"vector": small(encoder.params), "images": pictures(5), "scales": (1.0,)} | change
    if change.get("vector"):
        asked["vector"] = TaskVector.zeros_like(encoder.params)
    refuses(told, tangent_gap.gaps, encoder, **asked)
