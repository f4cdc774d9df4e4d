"""What a process of its own shows: its memory, its end, the bytes it draws."""

import hashlib
import os
import subprocess
import sys

import pytest

from tasklab import mini

FREED = """
import sys, torch
from tasklab import machine

def held():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 2**10

machine.keep_freed_memory(sys.argv[1] == "keep")
torch.ones(2**21)  # after one that was freed, glibc takes such tensors from one block of memory
before, many = held(), [torch.ones(2**21) for _ in range(40)]  # 8 MiB each
del many[::2]
print(held() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("given", "held"), [("return", 160), ("keep", 320)])
def test_tensors_of_a_large_model_are_given_back_one_by_one(given, held):
    done = subprocess.run(
        [sys.executable, "-c", FREED, given], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == pytest.approx(held, abs=20)


def test_an_end_has_the_status_and_one_sentence():
    code = (
        "import os, signal\nfrom tasklab.storage import termination\n"
        "with termination.handled('all is kept'):\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (143, "all is kept\n")
    code = (
        "import io, os, signal, sys\nfrom tasklab.__main__ import main\n"
        "class Out(io.StringIO):\n"
        "    def write(self, text):\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.stdout = Out()\nsys.exit(main(['list', 'models']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 143, ended.stderr
    expected = ["tasklab: asked to end; what is finished is kept, the same command goes on"]
    assert ended.stderr.splitlines() == expected


def test_without_vector_instructions_the_bytes_are_the_same():
    """Another process draws with the plain kernels of PyTorch and the plainest ones of MKL."""
    names = ("Textures", "Scenes", "LandCover")
    code = (
        "import hashlib; from tasklab import mini\n"
        f"for name in {names}: x, _ = mini.sample(name, 'val', 64); "
        "print(hashlib.sha256(x.numpy().tobytes()).hexdigest())"
    )
    env = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
    there = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    here = [_sha256(mini.sample(name, "val", 64)[0]) for name in names]
    assert there.stdout.split() == here


def _sha256(x):
    return hashlib.sha256(x.numpy().tobytes()).hexdigest()
