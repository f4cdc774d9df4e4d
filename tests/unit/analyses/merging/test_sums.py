"""Weighted sums, against the algebra of task vectors."""

import numpy as np
import pytest
import torch

from tasklab.analyses.merging import arithmetic, average, lines
from tasklab.analyses.merging.sums import depths
from tasklab.taskvector import TaskVector
from tests.helpers import refuses


def test_sums_are_those_of_the_algebra_by_depth(cases):
    a, b, c = cases.vectors(3)
    cases.assert_close(average([a, b, c]), (a + b + c) / 3)
    cases.assert_close(arithmetic([a, b, c], alpha=0.3), 0.3 * (a + b + c))
    for alpha in ([0.5, -2], np.array([0.5, -2]), torch.tensor([0.5, -2])):
        cases.assert_close(arithmetic([a, b], alpha=alpha), 0.5 * a - 2 * b)
    cases.assert_close(average({"one": a, "two": b}, alpha=2), a + b)
    a, b = cases.vectors(2)
    refuses("2 .* 3 coefficients", arithmetic, [a, b], alpha=[1, 2, 3])
    refuses("alpha", lambda: arithmetic([a, b], alpha=float("nan")))
    refuses("alpha", average, [a, b], alpha="much")
    refuses("at least 2", average, [a])
    part = TaskVector({"proj": a["proj"]})
    refuses("at least two blocks", lines, [part, part])
    a, b = cases.vectors(2)
    found = lines([a, b], alpha=0.2, beta=3)
    for name, x in (a + b).items():
        scale = 0.8 if ".1." in name else 0.2
        assert (found[name] - scale * x).abs().max() < 1e-14, name
    three = TaskVector({f"blocks.{i}.w": torch.ones(1).double() for i in range(3)})
    found = lines([three], alpha=0.2, beta=3)
    assert [x.item() for x in found.values()] == pytest.approx([0.2, 0.5, 0.8])
    cases.assert_close(lines([a, b], alpha=0.4), arithmetic([a, b], alpha=0.4))


def test_blocks_are_numbered_in_their_order():
    clip = [f"transformer.resblocks.{i}.ln_1.weight" for i in (10, 2, 0)]
    assert list(depths([*clip, "ln_post.weight"]).values()) == [2, 1, 0]
    timm = ["blocks.0.attn.qkv.weight", "blocks.11.norm1.weight", "patch_embed.proj.weight"]
    assert depths(timm) == {timm[0]: 0, timm[1]: 1}
    t5 = ["decoder.block.0.layer.0.x.weight", "encoder.block.1.layer.0.x.weight"]
    assert depths(t5) == {t5[0]: 1, t5[1]: 0}
    names = [f"trunk.stages.{s}.blocks.{b}.mlp.fc1.weight" for s in range(2) for b in range(2)]
    assert list(depths(names).values()) == [0, 1, 2, 3]
