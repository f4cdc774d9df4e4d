"""Memory that merging takes, in a process of its own."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
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
    for number in range(count):
        yield TaskVector({n: torch.randn(s, generator=draw) for n, s in shapes.items()})

def used(what):
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(what + ":")[2].split()[0])

def merge_all(many):
    for name, method in merging.METHODS.items():
        if not method.needs:
            merging.merge(name, many, **({"steps": 1} if name in ("wudi", "wudi_descent") else {}))

merge_all([*vectors(96, 2, 2)])  # what libraries take once
files = [one.save(Path(sys.argv[1]) / f"{t}.safetensors")
    for t, one in enumerate(vectors(96, 12, 8))]
found = []
for read in (lambda file: TaskVector.load(file).on_disk(file), TaskVector.load):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = used("VmRSS")
    many = [read(file) for file in files]
    merge_all(many)
    found.append(used("VmHWM") - before)
print(json.dumps([sum(x.nbytes for v in many for x in v.values()), *found]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_merging_takes_at_most_twice_the_memory_of_the_vectors(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    size, on_disk, held = json.loads(done.stdout)
    assert on_disk < size < held < 2 * size  # read tensor by tensor, vectors are nowhere in whole
