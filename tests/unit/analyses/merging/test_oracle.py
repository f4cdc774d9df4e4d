"""Methods against what `fusion_bench` returns, frozen by `freeze_fusion_bench.py`."""

import json
from pathlib import Path

import pytest
import torch

from tasklab.analyses import merging
from tasklab.taskvector import TaskVector

FROZEN = json.loads(Path(__file__).with_name("fusion_bench.json").read_text())["merged"]
NOT_THERE = ("positional_embedding", "proj")  # decomposed there, or stored the other way around


def few(cases, count):
    return [
        TaskVector({name: x for name, x in v.items() if name not in NOT_THERE})
        for v in cases.vectors(count)
    ]


def merged(rule, cases):
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
def test_a_merge_is_that_of_fusion_bench(cases, rule):
    found = merged(rule, cases)
    assert found.keys() == FROZEN[rule].keys()
    for name, x in found.items():
        expected = torch.tensor(FROZEN[rule][name], dtype=torch.float64)
        torch.testing.assert_close(x.reshape(-1), expected, rtol=1e-5, atol=1e-7)
