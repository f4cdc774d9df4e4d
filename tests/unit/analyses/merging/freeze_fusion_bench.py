"""Write `fusion_bench.json`: what FusionBench's functions make of the small vectors of these tests.

    python freeze_fusion_bench.py       in an environment with fusion_bench, outside of this one

Vectors are those of `conftest.vectors` in float64; numbers are rounded to 12 digits.
"""

import contextlib
import importlib
import importlib.metadata
import io
import json
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parents[3]))

from conftest import MATRICES, vectors  # noqa: E402

TENSORS = ("positional_embedding", "proj")  # decomposed there, or stored the other way around


def theirs(module):
    with contextlib.redirect_stdout(io.StringIO()):
        return importlib.import_module(f"fusion_bench.method.{module}")


def states(count, without=()):
    return [{n: x.clone() for n, x in v.items() if n not in without} for v in vectors(count)]


def flat(one):
    return torch.cat([one[n].reshape(-1) for n in sorted(one)])


def unflat(row):
    made, first = {}, states(1)[0]
    for name in sorted(first):
        made[name], row = (
            row[: first[name].numel()].reshape(first[name].shape),
            row[first[name].numel() :],
        )
    return made


def made():
    found = {}
    rows = torch.stack([flat(one) for one in states(3)])
    ties = theirs("ties_merging.ties_merging_utils").ties_merging
    found["ties"] = unflat(ties(rows, reset_thresh=0.2, merge_func="dis-mean"))
    tsv = theirs("task_singular_vector.utils.TSVM_utils")
    tau = [type("Vector", (), {"vector": one}) for one in states(2, TENSORS)]
    config = type("Config", (), {"DATASETS": ["a", "b"]})
    found["tsv_m"] = tsv.sum_svd_dict(tsv.compute_svd_dict(tau, config), config)
    iso = theirs("isotropic_merging.iso_utils")
    found["iso_c"] = iso.iso_c(states(3, TENSORS), accelerator="cpu", exclude_keys=[])
    found["iso_cts"] = iso.iso_cts(
        states(3, TENSORS), accelerator="cpu", exclude_keys=[], common_space_fraction=0.5
    )
    wudi = theirs("wudi.wudi").wudi_merging(
        states(3, TENSORS), accelerator="cpu", iter_num=50, exclude_keys=[]
    )
    found["wudi_descent"] = {n: x.detach() for n, x in wudi.items()}
    masks = theirs("tall_mask.utils")
    rows = torch.stack([flat(one) for one in states(4)])
    start = torch.zeros_like(rows[0])
    kept = [
        masks.generate_task_masks(rows, row, start, tall_mask_lambda=0.4).reshape(-1).int()
        for row in rows
    ]
    found["consensus"] = unflat(rows.sum(0) * (sum(kept) >= 2))
    names = [n for n in MATRICES if n.endswith(".weight")]
    two = states(2)
    G = [{n: v[n].T @ v[n] + torch.eye(v[n].shape[1]).double() for n in names} for v in two]
    found["regmean"] = theirs("regmean.regmean").merging_with_regmean_weights(
        {n: [v[n] for v in two] for n in two[0]},
        [{n.removesuffix(".weight"): x for n, x in one.items()} for one in G],
        reduce_non_diagonal_ratio=0.7,
    )
    six = states(6)
    found["fisher"] = theirs("fisher_merging.fisher_merging").merging_with_fisher_weights(
        {n: [v[n] for v in six[:3]] for n in six[0]},
        [{n: x.abs() for n, x in v.items()} for v in six[3:]],
        torch.ones(3).double(),
        normalize_fisher_weight=False,
        minimal_fisher_weight=0.0,
    )
    return found


def rounded(x):
    return [float(f"{value:.12g}") for value in x.detach().double().reshape(-1).tolist()]


if __name__ == "__main__":
    with contextlib.redirect_stderr(io.StringIO()):
        found = made()
    versions = {name: importlib.metadata.version(name) for name in ("fusion_bench", "torch")}
    merged = {
        rule: {name: rounded(x) for name, x in sorted(one.items())} for rule, one in found.items()
    }
    (HERE / "fusion_bench.json").write_text(json.dumps({**versions, "merged": merged}) + "\n")
