"""Methods against what public code returns, frozen by this folder's `freeze_*.py`."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tasklab.analyses import merging
from tasklab.analyses.merging import images
from tasklab.taskvector import TaskVector
from tests.vectors import plain

FROZEN = {}
for name in ("fusion_bench.json", "public.json"):
    FROZEN |= json.loads(Path(__file__).with_name(name).read_text())["merged"]
NOT_THERE = ("positional_embedding", "proj")  # decomposed there, or stored the other way around


def few(cases, count):
    return [
        TaskVector({name: x for name, x in v.items() if name not in NOT_THERE})
        for v in cases.vectors(count)
    ]


class Blocks(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.zeros(5, 6))
        self.transformer = nn.ModuleDict({"resblocks": nn.Sequential(block(), block())})

    def forward(self, x):
        return self.transformer["resblocks"](x + self.positional_embedding)


def block_by_block(cases):
    *each, start = [
        TaskVector({n.replace("n_proj_w", "n_proj.w"): x for n, x in v.items() if n != "proj"})
        for v in cases.vectors(4)
    ]
    network = Blocks(cases.Block).double()
    network.load_state_dict(dict(start), strict=False)
    encoder = plain(network)
    readers = [
        images.of_images("readers", encoder, None, x, v, linear=False)
        for x, v in zip(cases.tokens(3), each, strict=True)
    ]
    found = merging.regmean_plusplus(each, readers, ratio=0.7)
    return {n.replace("n_proj.w", "n_proj_w"): x for n, x in found.items()}


def merged(rule, cases):
    if rule.startswith("boosting"):
        return merging.boosting(cases.vectors(2), beta=float(rule.split()[1]))
    if rule.startswith("ace"):
        scales = (1, 0.02, 0.3) if "apart" in rule else (1, 1, 1)
        pairs = zip(few(cases, 3), scales, strict=True)
        return merging.ace([scale * v for v, scale in pairs])
    if rule == "actmat":
        return merging.actmat(few(cases, 3), rtol=1e-15)  # as of float64, in which it was frozen
    if rule == "dc_merge":
        return merging.dc_merge(few(cases, 2))
    if rule == "essential":
        shown = map(cases.shown, few(cases, 3), cases.tokens(3))
        grams = ({n: x.T @ x / len(x) for n, x in one.items()} for one in shown)
        return merging.essential(few(cases, 3), grams)
    if rule == "regmean_plusplus":
        return block_by_block(cases)
    if rule == "ties":
        vectors = cases.vectors(3)
        many = sum(x.numel() for x in vectors[0].values())
        return merging.ties(vectors, keep=(int(0.2 * many) + 1) / many)  # theirs keeps one more
    if rule == "consensus":
        return merging.consensus(cases.vectors(4), threshold=0.4)
    if rule == "regmean":
        vectors = cases.vectors(2)
        names = [n for n in cases.MATRICES if n.endswith(".weight")]
        G = [{n: v[n].T @ v[n] + torch.eye(v[n].shape[1]).double() for n in names} for v in vectors]
        return merging.regmean(vectors, G, ratio=0.7)
    if rule == "fisher":
        vectors = cases.vectors(6)
        return merging.fisher(
            vectors[:3], [{n: x.abs() for n, x in v.items()} for v in vectors[3:]]
        )
    options = {"iso_cts": {"common": 0.5}, "wudi_descent": {"steps": 50}}.get(rule, {})
    return merging.merge(rule, few(cases, 2 if rule == "tsv_m" else 3), **options)


@pytest.mark.parametrize("rule", FROZEN)
def test_a_merge_is_that_of_public_code(cases, rule):
    found = merged(rule, cases)
    assert found.keys() == FROZEN[rule].keys()
    for name, x in found.items():
        expected = torch.tensor(FROZEN[rule][name], dtype=torch.float64)
        torch.testing.assert_close(x.reshape(-1), expected, rtol=1e-5, atol=1e-7)
