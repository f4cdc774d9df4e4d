"""Share the seconds of a running chapter out among phases, by looking at its main thread.

    sampler = phases.Sampler()      # a thread looks every 10 ms
    ...
    sampler.report()                # {"phases": {"hashing": 1.2, ...}, "busy": 0.71, ...}

A sample belongs to the phase of the innermost frame that a rule knows. Other threads, such as the
one that writes large artifacts, are not looked at: they cost nothing unless the main one waits for
them. `busy` is the share of time in which an
NVIDIA device ran a kernel, as its driver measures it; `None` without one.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

EVERY = 0.01  # seconds between two samples
DRIVER = (
    "nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200",
)  # fmt: skip
RUNS = r"^(?!<module>$)"  # not the body of a module that is being imported
# The first rule that a frame fits, of the innermost frame that fits any: file, function, phase.
RULES = tuple(
    (re.compile(file), re.compile(function), phase)
    for file, function, phase in (
        (r"importlib\._bootstrap>", r"", "importing"),
        (r"torch/_(dynamo|inductor|functorch)/", RUNS, "compiling"),
        (r"tasklab/(storage|models|taskvector)", r"hash|digest|checksum|verif", "hashing"),
        (r"tasklab/", r"finite", "finiteness"),
        (r"tasklab/(taskvector|sums|storage/placement)", RUNS, "vectors"),
        (r"tasklab/analyses/(edited|merging/)", RUNS, "vectors"),
        (r"tasklab/storage/", RUNS, "files"),
        (r"tasklab/(tasks|mini)/", RUNS, "images"),
        (r"tasklab/(figures|book)/", RUNS, "figures"),
    )
)
OUTER = (  # where no rule fits: by any frame at all
    (re.compile(r"tasklab/tuning/"), "training"),
    (re.compile(r"tasklab/(models|analyses)/"), "passes"),
)


def phase(frames: Sequence[tuple[str, str]]) -> str:
    """Return the phase of a stack.

    Args:
        frames: File and function of each frame, innermost first.
    """
    for file, function in frames:
        for in_file, in_function, name in RULES:
            if in_file.search(file) and in_function.search(function):
                return name
    for in_file, name in OUTER:
        if any(in_file.search(file) for file, _ in frames):
            return name
    return "the rest"


def stack(frame: FrameType | None) -> list[tuple[str, str]]:
    """Return file and function of a frame and of those that called it."""
    frames = []
    while frame is not None:
        frames.append((frame.f_code.co_filename.replace("\\", "/"), frame.f_code.co_name))
        frame = frame.f_back
    return frames


class Sampler:
    """Looks at the thread that makes it until `report` is asked for.

    Args:
        every: Seconds between two samples.
    """

    def __init__(self, every: float = EVERY) -> None:
        self._seconds: collections.Counter[str] = collections.Counter()
        self._watched, self._every = threading.get_ident(), every
        self._began, self._over = time.perf_counter(), threading.Event()
        self._busy: list[float] = []
        self._driver = self._started()
        self._threads = [threading.Thread(target=self._look, daemon=True)]
        if self._driver is not None:
            self._threads.append(threading.Thread(target=self._listen, daemon=True))
        for thread in self._threads:
            thread.start()

    def report(self) -> dict[str, object]:
        """Return seconds by phase, most first, the share in which the device was busy, and all."""
        self._over.set()
        if self._driver is not None:
            self._driver.terminate()
        for thread in self._threads:
            thread.join(5)
        if self._driver is not None:
            self._driver.communicate()  # wait for its end, close its pipe
        return {
            "phases": {name: round(s, 1) for name, s in self._seconds.most_common()},
            "busy": round(sum(self._busy) / len(self._busy), 3) if self._busy else None,
            "wall_s": round(time.perf_counter() - self._began, 1),
        }

    def _look(self) -> None:
        last = time.perf_counter()
        while not self._over.wait(self._every):
            frames = stack(sys._current_frames().get(self._watched))
            now = time.perf_counter()  # a sample stands for the time since the last one
            kernel = any("ipykernel" in file for file, _ in frames)
            if not kernel or any(name == "execute_request" for _, name in frames):
                self._seconds[phase(frames)] += now - last  # else the kernel waits for a cell
            last = now

    @staticmethod
    def _started() -> subprocess.Popen[str] | None:
        try:
            return subprocess.Popen(
                DRIVER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            return None

    def _listen(self) -> None:
        assert self._driver is not None and self._driver.stdout is not None
        for line in self._driver.stdout:
            shares = [float(one) for one in re.findall(r"^\s*(\d+)\s*$", line)]
            self._busy += [one / 100 for one in shares]
