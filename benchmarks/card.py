"""What a card does, measured in parts that each end within nine minutes and can be repeated.

    python benchmarks/card.py steps              one part; `all` for one after another
    python benchmarks/card.py steps --minutes 5  stops before a measurement that may not end in time
    python benchmarks/card.py all --device cpu --tiny    the same path on any machine

- `steps`: a step of ViT-B/32, B/16 and L/14: non-linear, linearized, attention only, tau_Jp, TAK,
  eager and compiled, beside plain open_clip (`gpu.py`); joint training.
- `chapters`: `ctl` and `merging` on ViT-L/14 by phase, and the share in which the card computes.
- `paths`: fine-tuning with each way of being fast, and without it; a table says what each gains,
  and what leaves the package where that is less than 1.2 (`WAYS`).
- `merges`: eight random vectors of ViT-L/14 merged by every rule that needs no images.
- `many`: many small runs of `mini` in one process and in several.

Every measurement is written when it is made; one that the file has, of the same card and commit, is
not made again. So a part that was stopped goes on, and a part fits a card that is lent for minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu
import merges
import torch

from tasklab import Lab, machine
from tasklab.analyses import merging
from tasklab.evidence.records.table import provenance
from tasklab.models import loading
from tasklab.storage import writing
from tasklab.tuning import compiled, dual, multitask

HERE = Path(__file__).parent
PENALISED = ("tau_jp", "tak")
METHODS = ("nonlinear", "linearized")  # of `paths`
KEY = ("part", "name", "card", "commit")
Row = dict[str, Any]
Job = tuple[str, float, Callable[[], Row]]  # name, seconds that it may take, what measures


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is measured."""

    models: tuple[str, ...] = ("vitb32", "vitb16", "vitl14")
    large: str = "vitl14"  # whose chapters and merges are measured
    small: str = "vitb32"  # on which ways of being fast are compared
    batch: int = 128
    steps: int = 8
    runs: int = 8
    run_steps: int = 100  # of a run whose ways of being fast are compared
    small_steps: int = 240  # of one of many small runs
    chapter_steps: int = 20


TINY = Size(
    ("mini_xs",),
    "mini_xs",
    "mini_xs",
    batch=4,
    steps=1,
    runs=1,
    run_steps=2,
    small_steps=10,
    chapter_steps=2,
)
LEAST = 1.2  # what a way of being fast has to gain


def steps(size: Size, device: str) -> Iterator[Job]:
    """Yield a job for each model and method; plain open_clip comes first."""
    precision = "float32" if device == "cpu" else "bfloat16"
    for model in size.models:
        for method in (gpu.PLAIN, *gpu.METHODS, *PENALISED):
            for way in ("eager", "compiled"):

                def measure(model: str = model, method: str = method, way: str = way) -> Row:
                    clip = loading.load(model, init="random", device=device)
                    work = gpu.Work(clip, precision, size.batch)
                    return gpu.measured(work, method, way, size.steps)

                yield f"{model} {method} {way}", 90.0, measure
        yield f"{model} joint", 90.0, lambda model=model: joint(model, size, device)


def joint(model: str, size: Size, device: str) -> Row:
    """Return the seconds of a step of joint training on eight tasks, and its memory."""
    found = []
    for count in (2, 6):
        with tempfile.TemporaryDirectory() as store:
            lab = Lab(
                model, init="random", device=device, steps=count * size.steps, store_root=store,
                suite="mini", progress=False,
            )  # fmt: skip
            if device != "cpu":
                torch.cuda.reset_peak_memory_stats(device)
            runs = [lab.run(task, "nonlinear", 0) for task in lab.suite.names]
            began = time.perf_counter()
            multitask.multitask(runs, lab.clip, lab.store, lab.suite, progress=False)
            found.append(time.perf_counter() - began)
            tasks = len(lab.suite.names)
    most = None if device == "cpu" else torch.cuda.max_memory_allocated(device) / 2**20
    seconds = max(found[1] - found[0], 1e-9) / (4 * size.steps * tasks)
    return {"seconds": seconds, "peak_memory_mib": most, "tasks": tasks}


def profile(words: list[str]) -> None:
    """Run `chapters.py` in a process of its own."""
    command, environment = [sys.executable, str(HERE / "chapters.py"), *words], dict(os.environ)
    subprocess.run(command, check=True, env=environment | {compiled.SETTING: "1"})


def chapters(size: Size, device: str) -> Iterator[Job]:
    """Yield a job for each chapter, in a process of its own."""
    for chapter in ("ctl", "merging"):

        def measure(chapter: str = chapter) -> Row:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "chapter.json"
                minutes = "4" if size.large != "mini_xs" else "0.5"
                words = ["--minutes", minutes, "--threads", str(os.cpu_count()), "--out", str(out)]
                given = {"model": size.large, "init": "random", "steps": size.chapter_steps}
                given |= {"live": "all", "device": device}
                setting = [f"{name}={value}" for name, value in given.items()]
                profile([chapter, *words, "--set", *setting])
                row = json.loads(out.read_text())["rows"][0]
            kept = ("busy", "wall_s", "cpu_s", "phases", "whole", "most_gib")
            return {"seconds": row["cpu_s"], **{key: row[key] for key in kept}}

        yield chapter, 260.0, measure


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Have another value in a module while the block runs."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@dataclasses.dataclass(frozen=True)
class Way:
    """A way of being fast.

    Attributes:
        off: Switches it off in a block.
        place: What leaves the package where it gains too little.
    """

    off: Callable[[], contextlib.AbstractContextManager[None]]
    place: str


ALL = "all"
WAYS = {
    "compiled blocks": Way(
        lambda: replaced(compiled, "compiles", lambda *given: False),
        "tuning/compiled.py: compiles, block; steps.py: Step._compile",
    ),
    "recorded steps": Way(
        lambda: replaced(compiled, "records", lambda *given: False),
        "tuning/compiled.py: records, Replayed",
    ),
    "one pass for values and tangents": Way(
        lambda: replaced(dual, "passes", lambda *given: None), "tuning/dual.py"
    ),
    "a thread that writes": Way(
        lambda: replaced(writing, "LARGE", 2**62), "storage/writing.py: the thread"
    ),
}


def gains(rows: list[Row]) -> list[str]:
    """Return a line for each way of being fast: what it gains, and what leaves if that is little.

    Args:
        rows: Measurements of one card and commit.
    """
    seconds = {row["name"]: row["seconds"] for row in rows if "seconds" in row}
    told = []
    for way, about in WAYS.items():
        found = {
            method: seconds[f"without {way}, {method}"] / seconds[f"{ALL}, {method}"]
            for method in METHODS
            if {f"without {way}, {method}", f"{ALL}, {method}"} <= seconds.keys()
        }
        if found:
            each = ", ".join(f"{method} {gain:.2f}" for method, gain in found.items())
            leaves = max(found.values()) < LEAST and len(found) == len(METHODS)
            told.append(f"{way}: {each}" + f"; leaves: {about.place}" * leaves)
    return told


def paths(size: Size, device: str) -> Iterator[Job]:
    """Yield a job for each way of being fast that is switched off, and one for all of them."""
    off = {ALL: contextlib.nullcontext} | {f"without {way}": one.off for way, one in WAYS.items()}
    for way, switched in off.items():
        for method in METHODS:

            def measure(switched: Any = switched, method: str = method) -> Row:
                with switched(), tempfile.TemporaryDirectory() as store:
                    lab = Lab(
                        size.small, init="random", device=device, steps=size.run_steps,
                        store_root=store, suite="mini", progress=False,
                    )  # fmt: skip
                    names = lab.suite.names[: size.runs]
                    lab.tune(names[0], method, 1)  # compiled, and libraries loaded
                    began = time.perf_counter()
                    for name in names:
                        lab.tune(name, method, 0)
                    writing.finish()
                    return {"seconds": (time.perf_counter() - began) / len(names)}

            yield f"{way}, {method}", 120.0, measure


def merges_(size: Size, device: str) -> Iterator[Job]:
    """Yield a job for each rule that needs no images."""
    for name, method in merging.METHODS.items():
        if method.needs:
            continue

        def measure(name: str = name) -> Row:
            shape = merges.SHAPES.get(size.large, merges.Shape(width=64, blocks=2, output=32))
            whole = {
                block.replace(".0.", f".{n}."): of
                for n in range(shape.blocks)
                for block, of in shape.block().items()
            }
            vectors = [v.to(device) for v in merges.drawn(whole | shape.rest(), shape.tasks)]
            if device != "cpu":
                torch.cuda.synchronize(device)
                torch.cuda.reset_peak_memory_stats(device)
            began = time.perf_counter()
            merging.merge(name, vectors).norm()
            seconds = time.perf_counter() - began
            most = None if device == "cpu" else torch.cuda.max_memory_allocated(device) / 2**20
            return {"seconds": seconds, "peak_memory_mib": most}

        yield name, 60.0, measure


RUNS = """
import sys, time
from tasklab import Lab
model, device, first, count, store, steps = sys.argv[1:]
lab = Lab(model, device=device, steps=int(steps), store_root=store, progress=False)
lab.tune(lab.suite.names[0], "nonlinear", 10_000 + int(first))
print("ready", flush=True)
sys.stdin.readline()
began = time.perf_counter()
for seed in range(int(first), int(first) + int(count)):
    lab.tune(lab.suite.names[0], "nonlinear", seed)
print(time.perf_counter() - began, flush=True)
"""


def started(words: list[str]) -> subprocess.Popen:
    """Return a process of small runs, which waits for a line when it is ready."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", RUNS, *words], text=True, **pipes)


def many(size: Size, device: str) -> Iterator[Job]:
    """Yield jobs of the same small runs in one process, and in several that share the card."""
    model = "mini" if size.large != "mini_xs" else "mini_xs"
    for count in (1, 4):

        def measure(count: int = count) -> Row:
            each = max(1, 4 * size.runs // 4 // count)
            with tempfile.TemporaryDirectory() as store:
                words = [model, device, "", str(each), store, str(size.small_steps)]
                work = []
                for number in range(count):
                    words[2] = str(number * each)
                    work.append(started(words))
                for one in work:
                    if one.stdout.readline().strip() != "ready":
                        raise RuntimeError("a process of small runs did not start")
                began = time.perf_counter()
                for one in work:
                    one.stdin.write("\n")
                    one.stdin.flush()
                for one in work:
                    one.communicate()
                seconds = time.perf_counter() - began
            return {"seconds": seconds / (each * count), "processes": count}

        yield f"{model}, {count} process{'es' * (count > 1)}", 120.0, measure


PARTS = {"steps": steps, "chapters": chapters, "paths": paths, "merges": merges_, "many": many}


def main() -> None:
    """Measure what the file lacks, as long as there is time, and write each number at once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["all", *PARTS])
    parser.add_argument("--minutes", type=float, default=9.0, help="of a part")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on the smallest model")
    parser.add_argument("--only", default="", help="measurements whose name has these words")
    parser.add_argument("--out", type=Path, default=HERE / "card.json")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device: run this on a machine with one, or with --device cpu --tiny")
        sys.exit(2)
    if args.tiny:
        compiled._backend = "eager"  # traced alone: making code takes a minute
    machine.keep_freed_memory()
    card = torch.cuda.get_device_name(args.device) if args.device != "cpu" else "cpu"
    size = TINY if args.tiny else Size()
    notes = provenance({"tiny": args.tiny, "cuda": torch.version.cuda}, gpu=card)
    late = 0
    for part in PARTS if args.part == "all" else [args.part]:
        until = time.monotonic() + 60 * args.minutes
        for name, least, measure in PARTS[part](size, args.device):
            row = {"part": part, "name": name, "card": card, **notes}
            rows = json.loads(args.out.read_text())["rows"] if args.out.is_file() else []
            if args.only not in name or any(all(r[k] == row[k] for k in KEY) for r in rows):
                continue
            if time.monotonic() + (0 if args.tiny else least) > until:
                late += 1
                continue
            try:
                row |= measure()
            except Exception as error:  # the others are measured all the same
                row["failed"] = f"{type(error).__name__}: {error}"
            told = row.get("failed") or f"{row['seconds']:.4g} s"
            print(f"{part:9} {name:48} {told}", flush=True)
            args.out.write_text(json.dumps({"rows": [*rows, row]}, indent=1) + "\n")
        if part == "paths" and args.out.is_file():
            rows = json.loads(args.out.read_text())["rows"]
            mine = [one for one in rows if one["part"] == part and one["card"] == card]
            print(*gains([one for one in mine if one["commit"] == notes["commit"]]), sep="\n")
    if late:
        print(f"{late} measurements are left: run the same command again")


if __name__ == "__main__":
    main()
