"""Processes that are killed, and processes that want the same: what is in the store is whole.

Each test runs a script in processes of its own, as nothing less can be killed.
"""

import functools
import hashlib
import signal
import subprocess
import sys
import time

import pytest
import torch

from tasklab.storage.store import Store

PATIENCE = 600  # seconds: a busy machine needs long to import torch

MAKE = """
import os, sys, time
from pathlib import Path
import safetensors.torch, torch
from tasklab.storage.store import Store

root, mode = Path(sys.argv[1]), sys.argv[2]
if mode == "stall in thread":  # that writes, while the process goes on
    from tasklab.storage import writing
    writing.LARGE = 1
if mode.startswith("stall"):  # half a file, and then nothing until the process is killed
    def stall(tensors, file, metadata=None):
        Path(file).write_bytes(b"half")
        (root / "ready").touch()
        time.sleep(3600)
    safetensors.torch.save_file = stall

def make(workdir):
    with (root / "log").open("a") as log:
        log.write(f"{os.getpid()}\\n")
    (root / "started").touch()
    while mode == "together" and not (root / "go").exists():
        time.sleep(0.05)
    return {"w": torch.arange(1000.0)}, {"pid": os.getpid()}

(root / f"here-{os.getpid()}").touch()
artifact = Store(root / "store").get("result", {"a": 1}, make)
print(artifact.record["pid"], float(artifact.tensors()["w"].sum()))
"""

FINETUNE = """
import sys, time, zlib
from pathlib import Path
import torch
from torch import nn
from tasklab.tasks import drawn
from tasklab.tuning import finetune
from tasklab.tuning.recipe import FineTune
from tasklab.models.loading import Clip
from tasklab.models.encoder import Encoder
from tasklab.storage.store import Store

root, method, pause = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
steps = 0

class Slow(Encoder):
    def preprocess(self, x):
        global steps
        steps += 1
        time.sleep(pause)
        return super().preprocess(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(48, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.flatten(1))))

def text(prompts):
    seeds = [zlib.crc32(p.encode()) for p in prompts]
    return torch.stack([torch.randn(8, generator=torch.Generator().manual_seed(s)) for s in seeds])

torch.manual_seed(0)
net = Net().eval().requires_grad_(False)
encoder = Slow(
    name="mini", init="pretrained", module=net, params=dict(net.named_parameters()), blocks=(),
    image_size=4, mean=(0.5,) * 3, std=(0.25,) * 3, device=torch.device("cpu"),
)
images = drawn.Images(
    torch.randint(0, 256, (200, 3, 4, 4), dtype=torch.uint8), torch.randint(0, 10, (200,))
)
drawn.DrawnImages.load = lambda *args, **kwargs: images
drawn.DrawnImages.version = lambda *args: "test"
config = FineTune(
    task="LandCover", method=method, steps=60, batch_size=32, lr=0.01, warmup=6, checkpoint_every=5
)
clip = Clip(encoder=encoder, text=text, logit_scale=10.0)
finetune.finetune(config, clip, Store(root), progress=False)
print(steps)
"""


@pytest.fixture
def start(forks):
    return functools.partial(started_by, forks)


def started_by(forks, script, root, *arguments):
    root.mkdir(exist_ok=True)
    out = root / f"out{len([*root.glob('out*')])}"
    words = ["-c", str(root), *map(str, arguments)]
    first = f"import sys, torch; sys.argv = {words}; sys.stdout = open({str(out)!r}, 'w')"
    code = f"{first}; torch.set_num_threads(1)\n{script}\nsys.stdout.flush()"
    process = forks.Process(target=exec, args=(code, {"__name__": "__main__"}))
    process.start()
    return process, out


def finish(started):
    process, out = started
    process.join(PATIENCE)
    assert process.exitcode == 0
    return out.read_text().split()


def wait_for(condition, started):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert started[0].is_alive(), "the process ended before it could be killed"
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def kill(started):
    started[0].kill()
    started[0].join(PATIENCE)
    assert started[0].exitcode == -signal.SIGKILL


def checksum(root):
    (file,) = root.glob("*/*/tensors.safetensors")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["nonlinear", "linearized"])
def test_a_fine_tuning_that_is_killed_and_restarted_ends_bit_identical(start, tmp_path, method):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert finish(start(FINETUNE, whole, method, 0)) == ["60"]
    process = start(FINETUNE, cut, method, 0.1)
    wait_for(lambda: list(cut.rglob("checkpoint.safetensors")), process)
    kill(process)
    assert not list(cut.glob("finetune/*/*"))
    (again,) = finish(start(FINETUNE, cut, method, 0))
    assert 0 < int(again) <= 55  # it went on from a checkpoint
    assert checksum(cut) == checksum(whole)
    assert not list(cut.rglob("checkpoint*"))


@pytest.mark.parametrize("where", ["write", "thread"])
def test_a_write_that_is_killed_leaves_nothing_and_can_be_repeated(start, tmp_path, where):
    process = start(MAKE, tmp_path, f"stall in {where}")
    wait_for((tmp_path / "ready").exists, process)
    kill(process)
    store = Store(tmp_path / "store")
    assert store.find("result", {"a": 1}) is None
    assert list((store.root / "tmp").iterdir())  # the half file, of no harm
    pid, total = finish(start(MAKE, tmp_path, "alone"))
    assert float(total) == 499500 and store.find("result", {"a": 1}).record["pid"] == int(pid)
    assert not list((store.root / "tmp").iterdir())


def test_two_processes_that_want_the_same_compute_once(start, tmp_path):
    processes = [start(MAKE, tmp_path, "together") for _ in range(2)]
    wait_for(lambda: len(list(tmp_path.glob("here-*"))) == 2, processes[0])
    wait_for((tmp_path / "started").exists, processes[0])
    time.sleep(0.5)  # time for the other one to ask as well
    (tmp_path / "go").touch()
    one, two = map(finish, processes)
    assert one == two
    assert len((tmp_path / "log").read_text().split()) == 1


def test_a_lock_ends_with_the_process_that_held_it(start, tmp_path):
    process = start(MAKE, tmp_path, "together")
    wait_for((tmp_path / "started").exists, process)
    kill(process)
    (tmp_path / "go").touch()
    finish(start(MAKE, tmp_path, "together"))
    assert len((tmp_path / "log").read_text().split()) == 2


LARGE = """
import sys, threading, time
from pathlib import Path
import safetensors.torch, torch
from tasklab.storage import writing
from tasklab.storage.store import Store

root, mode = Path(sys.argv[1]), sys.argv[2]
writing.LARGE = 1
usual = safetensors.torch.save_file
def slow(tensors, file, metadata=None):
    if mode == "fails":
        raise OSError(28, "No space left on device")
    time.sleep(0.5)
    usual(tensors, file, metadata)
safetensors.torch.save_file = slow
Store(root).get("vector", {"a": 1}, lambda _: ({"w": torch.arange(5e6)}, {}))
assert not (root / "vector").exists()
"""


@pytest.mark.parametrize("mode", ["ends", "fails"])
def test_a_process_ends_when_all_is_written(tmp_path, mode):
    ended = subprocess.run(
        [sys.executable, "-c", LARGE, str(tmp_path), mode], capture_output=True, text=True
    )
    assert ended.returncode == (mode == "fails"), (
        ended.stderr
    )  # a script whose result is lost fails
    found = Store(tmp_path).find("vector", {"a": 1})
    if mode == "fails":
        assert found is None and ended.stderr.startswith("tasklab: cannot write to the store")
        assert "No space left" in ended.stderr and len(ended.stderr.splitlines()) == 1
    else:
        assert torch.equal(found.tensors()["w"], torch.arange(5e6)) and not ended.stderr
