"""Memory that merging takes, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from tasklab.analyses import merging, meters
from tasklab.taskvector import TaskVector

NEEDS = {"regmean": "grams", "fisher": "diagonals"}
PROGRAM = """
import json, resource, sys
from pathlib import Path
import torch
from tasklab.analyses import merging
from tasklab.taskvector import TaskVector

torch.set_num_threads(1)

def vectors(width, blocks, count):
    parts = {"attn.in_proj": (3, 1), "attn.out_proj": (1, 1), "mlp.c_fc": (4, 1),
        "mlp.c_proj": (1, 4)}
    shapes = {f"resblocks.{i}.{name}.weight": (rows * width, columns * width)
        for i in range(blocks) for name, (rows, columns) in parts.items()}
    draw = torch.Generator().manual_seed(0)
    return [TaskVector({n: torch.randn(s, generator=draw) for n, s in shapes.items()})
        for _ in range(count)]

def used(what):
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(what + ":")[2].split()[0])

STEPPED = ("wudi", "wudi_descent")
names = [n for n, m in merging.METHODS.items() if not m.needs]
for name in names:  # what libraries take once
    merging.merge(name, vectors(192, 2, 2), **({"steps": 1} if name in STEPPED else {}))
before = used("VmRSS")
many = [TaskVector.load(file).on_disk(file) for file in map(Path, sys.argv[1:])]
many = many or vectors(192, 6, 8)
size = sum(x.nbytes for v in many for x in v.values())
for name in names:
    merging.merge(name, many, **({"steps": 1} if name in STEPPED else {}))
print(json.dumps([size, used("VmHWM") - before]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("held", [True, False], ids=["held", "on the disk"])
def test_merging_takes_at_most_twice_the_memory_of_the_vectors(held, tmp_path):
    files = []
    if not held:
        draw = torch.Generator().manual_seed(0)
        shapes = {f"resblocks.{i}.mlp.c_fc.weight": (1600, 400) for i in range(12)}
        for t in range(8):
            one = TaskVector({n: torch.randn(s, generator=draw) for n, s in shapes.items()})
            files.append(str(one.save(tmp_path / f"{t}.safetensors")))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *files],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    size, most = json.loads(done.stdout)
    if held:
        assert size < most < 2 * size, (size / 2**20, most / 2**20)
    else:  # read tensor by tensor, they are nowhere in whole
        assert most < size, (size / 2**20, most / 2**20)


@pytest.mark.parametrize("name", ["regmean", "fisher"])
def test_so_do_those_that_look_at_images_where_these_are_told_task_by_task(name):
    parts = {"attn.in_proj": (3, 1), "attn.out_proj": (1, 1), "mlp.c_fc": (4, 1)}
    parts["mlp.c_proj"] = (1, 4)
    shapes = {
        f"resblocks.{i}.{part}.weight": (96 * rows, 96 * columns)
        for i in range(12)
        for part, (rows, columns) in parts.items()
    }
    draw = torch.Generator().manual_seed(0)
    vectors = [
        TaskVector({n: torch.randn(shape, generator=draw) for n, shape in shapes.items()})
        for _ in range(8)
    ]
    size = sum(x.nbytes for vector in vectors for x in vector.values())

    def told():
        for seed in range(8):
            draw = torch.Generator().manual_seed(seed)
            reads = {n: torch.randn(50, shape[1], generator=draw) for n, shape in shapes.items()}
            if name == "regmean":
                yield {n: x.T @ x for n, x in reads.items()}
            else:
                yield {n: torch.rand(shape, generator=draw) for n, shape in shapes.items()}

    # beside the vectors: at most as much as they are
    assert meters.peak_bytes(lambda: merging.merge(name, vectors, **{NEEDS[name]: told()})) < size
    all_at_once = meters.peak_bytes(
        lambda: merging.merge(name, vectors, **{NEEDS[name]: list(told())})
    )
    assert all_at_once > size
