"""What a card does, measured in parts that each end within nine minutes and can be repeated.

    python benchmarks/card.py steps              one part; `all` for one after another
    python benchmarks/card.py steps --minutes 5  ends after five, wherever it is
    python benchmarks/card.py all --device cpu --tiny    the same path on any machine

- `steps`: a step of ViT-B/32, B/16 and L/14: non-linear, linearized, attention only, tau_Jp, TAK
  and joint, compiled and then eager, beside plain open_clip in the same process (`gpu.py`).
- `chapters`: `ctl` and `merging` on ViT-L/14 by phase, and the share in which the card computes.
- `paths`: fine-tuning and evaluation with each way of being fast, and without it; a table shows
  what each gains, and what leaves the package where that is less than 1.2 (`ways.py`).
- `merges`: eight random vectors of ViT-L/14 merged by every rule, with the statistics of images
  that a rule takes, but for those that solve or train for minutes (`registry.SOLVED`).
- `many`: many small runs of `mini` and `minilm` in one process and in several.
- `paper`: the chapters on ViT-B/32 by phase, from which the minutes of `tasklab paper vitb32` from
  published vectors are estimated: without training, and with passes over as many test images as
  the papers have.

Every measurement is written when it is made; one that the file has, of the same card and commit, is
not made again. So a part that was stopped goes on, and a part fits a card that is lent for minutes.
A measurement that is stopped by the end of its part comes first next time; one that takes longer
than a whole part has failed. At the end the rows are compared with the `goals`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
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
import psutil
import torch
import ways
from alarm import Late, within

from tasklab import machine
from tasklab.analyses import merging
from tasklab.analyses.merging import registry
from tasklab.evidence.chapters import CHAPTERS
from tasklab.evidence.records.table import provenance
from tasklab.models import loading
from tasklab.tasks import drawn
from tasklab.tasks.images.checks import facts
from tasklab.tasks.suites import suite
from tasklab.taskvector import TaskVector
from tasklab.tuning import compiled

HERE = Path(__file__).parent
METHODS = (gpu.PLAIN, *gpu.METHODS, "tau_jp", "tak", gpu.JOINT)  # plain open_clip comes first
KEY = ("part", "name", "card", "commit")
AT_LEAST = ", at least"  # of what was stopped before its end
Row = dict[str, Any]
Job = tuple[str, float, Callable[[], Row]]  # name, seconds that it may take, what measures


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is measured."""

    models: tuple[str, ...] = ("vitb32", "vitb16", "vitl14")
    large: str = "vitl14"  # whose chapters and merges are measured
    small: str = "vitb32"  # of `paths` and `paper`
    many: tuple[str, ...] = ("mini", "minilm")
    batch: int = 128
    steps: int = 8
    runs: int = 8
    run_steps: int = 100  # of a run whose ways of being fast are compared
    small_steps: int = 240  # of one of many small runs
    looked: int = 8  # images of each task, of merges that take statistics of them
    chapter_steps: int = 20
    chapter_minutes: float = 4  # two in a part
    paper_minutes: float = 7.5


TINY = Size(
    **{"models": ("mini_xs",), "large": "mini_xs", "small": "mini_xs", "many": ("mini_xs",)},
    **{"batch": 4, "steps": 1, "runs": 1, "run_steps": 2, "small_steps": 10},
    **{"looked": 2, "chapter_steps": 2, "chapter_minutes": 0.5, "paper_minutes": 0.5},
)


def steps(size: Size, device: str) -> Iterator[Job]:
    """Yield a job for each model, method and way; each row has the time of plain open_clip's.

    Compiled steps, which the goals are about, come first.
    """
    precision, plain = "float32" if device == "cpu" else "bfloat16", dict[tuple[str, str], float]()
    for way, model, method in itertools.product(("compiled", "eager"), size.models, METHODS):

        def measure(way: str = way, model: str = model, method: str = method) -> Row:
            clip = loading.load(model, init="random", device=device)
            work, row = gpu.Work(clip, precision, size.batch), Row()
            if method == gpu.PLAIN or (model, way) not in plain:  # of this process
                row = gpu.measured(work, gpu.PLAIN, way, size.steps)
                plain[model, way] = row["seconds"]
            if method != gpu.PLAIN:
                row = gpu.measured(work, method, way, size.steps)
            base = plain[model, way]
            return row | {"open_clip_s": base, "of_open_clip": row["seconds"] / base}

        yield f"{model} {method} {way}", 120.0 if model == "vitl14" else 60.0, measure


def profile(words: list[str], folder: str) -> None:
    """Run `chapters.py` in a process of its own, with its files in a folder."""
    command, environment = [sys.executable, str(HERE / "chapters.py"), *words], dict(os.environ)
    environment |= {compiled.SETTING: "1", "TMPDIR": folder}
    subprocess.run(command, check=True, env=environment)


def profiled(
    size: Size, device: str, names: tuple[str, ...], given: Row, minutes: float
) -> Iterator[Job]:
    """Yield a job for each chapter, in a process of its own.

    Args:
        size: How much is measured.
        device: Where.
        names: Of the chapters.
        given: Parameters of the chapters.
        minutes: After which a chapter is stopped.
    """
    given = {"init": "random", "steps": size.chapter_steps, "live": "all"} | given
    for chapter in names:

        def measure(chapter: str = chapter) -> Row:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                out = Path(folder) / "chapter.json"
                words = ["--threads", str(os.cpu_count()), "--out", str(out)]
                setting = [f"{name}={value}" for name, value in {**given, "device": device}.items()]
                words += ["--minutes", str(minutes), "--set", *setting]
                profile([chapter, *words], folder)
                row = json.loads(out.read_text())["rows"][0]
            kept = ("busy", "wall_s", "cpu_s", "phases", "whole", "most_gib")
            return {"seconds": row["wall_s"], **{key: row[key] for key in kept}}

        yield chapter, 60 * min(minutes, size.chapter_minutes) + 20, measure


def chapters(size: Size, device: str) -> Iterator[Job]:
    """Yield jobs of the chapters whose phases are measured."""
    yield from profiled(
        size, device, ("ctl", "merging"), {"model": size.large}, size.chapter_minutes
    )


def paper(size: Size, device: str) -> Iterator[Job]:
    """Yield a job for each chapter, as the papers' numbers need them, on the synthetic tasks.

    One that the end of a part stops begins the next, which it may have whole.
    """
    given = {"model": size.small, "suite": "mini", "preset": "full", "seeds": 1}
    yield from profiled(size, device, tuple(CHAPTERS), given, size.paper_minutes)


def merges_(size: Size, device: str) -> Iterator[Job]:
    """Yield a job for each rule; its seconds have the statistics of images that it takes."""
    made: list[tuple[gpu.Work, list[TaskVector]]] = []  # once: drawing takes longer than a merge

    def drawn() -> tuple[gpu.Work, list[TaskVector]]:
        if not made:
            clip = loading.load(size.large, init="random", device=device)
            shapes = {name: tuple(x.shape) for name, x in clip.encoder.params.items()}
            vectors = [vector.to(device) for vector in merges.drawn(shapes, merges.TASKS)]
            made.append((gpu.Work(clip, "float32", size.looked), vectors))
        return made[0]

    for name, method in {**merging.METHODS, **registry.NEWER}.items():

        def measure(name: str = name, method: merging.Method = method) -> Row:
            work, vectors = drawn()
            if device != "cpu":
                torch.cuda.synchronize(device)
                torch.cuda.reset_peak_memory_stats(device)
            began = time.perf_counter()
            given, about = Row(), (method.needs, work.clip.encoder, work.head, work.images.x)
            if method.needs:
                each = (merging.of_images(*about, vector, linear=False) for vector in vectors)
                given = {method.needs: method.pooled(vectors, each)}
            merging.merge(name, vectors, **given).norm()
            seconds = time.perf_counter() - began
            most = None if device == "cpu" else torch.cuda.max_memory_allocated(device) / 2**20
            looked = size.looked if method.needs else 0
            return {"seconds": seconds, "peak_memory_mib": most, "images": looked}

        yield name, 60.0, measure


RUNS = """
import sys, time
from tasklab import Lab
model, device, first, count, store, steps = sys.argv[1:]
init = "random" if model == "minilm" else "pretrained"
about = {"init": init, "device": device, "store_root": store, "progress": False}
lab = Lab(model, steps=int(steps), **about)
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
    for model in size.many:
        for count in (1, 4):

            def measure(model: str = model, count: int = count) -> Row:
                each = str(max(1, size.runs // count))
                with tempfile.TemporaryDirectory() as store, contextlib.ExitStack() as ends:
                    work = []
                    for number in range(count):
                        first = str(number * int(each))
                        one = started([model, device, first, each, store, str(size.small_steps)])
                        ends.callback(one.kill)
                        work.append(one)
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
                    if any(one.returncode for one in work):
                        raise RuntimeError("a process of small runs failed")
                return {"seconds": seconds / (int(each) * count), "processes": count}

            yield f"{model}, {count} process{'es' * (count > 1)}", 120.0, measure


PARTS = {
    **{"steps": steps, "chapters": chapters, "paths": ways.paths},
    **{"merges": merges_, "many": many, "paper": paper},
}


def goals(rows: list[Row]) -> list[str]:
    """Return a line for each goal whose rows are there.

    Args:
        rows: Measurements of one card and commit.
    """
    known = {(row["part"], row["name"]): row for row in rows if "failed" not in row}
    found = []
    for model in Size.models:
        row = known.get(("steps", f"{model} nonlinear compiled"))
        if row and model == "vitb32":
            found.append((f"{model}, of compiled open_clip", row["of_open_clip"], "<=", 1.1))
        other = known.get(("steps", f"{model} linearized compiled"))
        if row and other:
            ratio = other["of_open_clip"] / row["of_open_clip"]
            found.append((f"{model}, linearized of non-linear", ratio, "<=", 1.8))
    for (part, name), row in known.items():
        if part == "chapters" and row["busy"] is not None:
            found.append((f"{name}, share in which the card computes", row["busy"], ">=", 0.7))
    of_paper = {name: row for (part, name), row in known.items() if part == "paper"}
    if of_paper.keys() == CHAPTERS.keys():
        cut = "" if all(row["whole"] for row in of_paper.values()) else AT_LEAST
        told = f"minutes of `tasklab paper vitb32`{cut}"
        found.append((told, sum(map(minutes, of_paper.values())), "<=", 30))
    lines = []
    for told, value, sign, limit in found:
        met = "met" if (value <= limit) == (sign == "<=") else "not met"
        met = "not known" if met == "met" and told.endswith(AT_LEAST) else met
        lines.append(f"{told}: {value:.2f} ({sign} {limit}: {met})")
    return lines


def minutes(row: Row) -> float:
    """Return the minutes of a chapter on the papers' images from published vectors.

    Passes take longer by the number of test images; nothing trains.
    """
    mini, papers = suite("mini"), suite("paper")
    ours = sum(drawn.images_of(mini).size(name, "test") for name in mini.names)
    theirs = sum(facts(papers[name])["sizes"]["test"] for name in papers.names)
    phases = {k: s for k, s in row["phases"].items() if k not in ("training", "compiling")}
    more = sum(phases.get(name, 0.0) for name in ("passes", "images")) * (theirs / ours - 1)
    return (sum(phases.values()) + more) / 60


def main(spent: float = 0.0) -> None:
    """Measure what the file lacks, as long as there is time, and write each number at once.

    Args:
        spent: Seconds since the start of the process, which belong to the first part.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["all", *PARTS])
    parser.add_argument("--minutes", type=float, default=8.8, help="of a part")
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
    notes = provenance({"tiny": args.tiny, "cuda": torch.version.cuda}, gpu=card)
    mine = {"card": card, "commit": notes["commit"]}
    late = 0
    for part in PARTS if args.part == "all" else [args.part]:
        late += measured(part, args, {"part": part, **mine, **notes}, spent)
        spent = 0.0
        known = [one for one in read(args.out) if all(one[k] == x for k, x in mine.items())]
        if part == "paths":
            own = [one for one in known if one["part"] == part]
            print(*ways.gains(own, decide=not args.tiny), sep="\n")
        if not args.tiny:
            print(*goals(known), sep="\n")
    if late:
        print(f"{late} measurements are left: run the same command again")


def read(file: Path) -> list[Row]:
    """Return the rows of a file; none if it is not there."""
    return json.loads(file.read_text())["rows"] if file.is_file() else []


def measured(part: str, args: argparse.Namespace, about: Row, spent: float) -> int:
    """Measure what the file lacks of a part; return how many measurements there was no time for.

    Args:
        part: One of `PARTS`.
        args: Of the command line.
        about: Entries of every row.
        spent: Seconds of the part that are over.
    """
    began, late = time.monotonic() - spent, 0
    usual = os.environ.get(compiled.SETTING)
    for name, least, measure in PARTS[part](TINY if args.tiny else Size(), args.device):
        row, rows = {"name": name, **about}, read(args.out)
        if args.only not in name or any(all(r[k] == row[k] for k in KEY) for r in rows):
            continue
        now, left = time.monotonic() - began, 60 * args.minutes - (time.monotonic() - began)
        if left < (0 if args.tiny else least):
            late += 1
            continue
        try:
            with within(left):
                row |= measure()
        except Late:
            if now > 0.1 * left:  # next time it is the first
                late += 1
                continue
            row["failed"] = f"takes longer than {args.minutes:g} minutes"
        except Exception as error:  # the others are measured all the same
            row["failed"] = f"{type(error).__name__}: {error}"
        finally:  # the next one may have another way
            os.environ.pop(compiled.SETTING, None)
            os.environ |= {} if usual is None else {compiled.SETTING: usual}
        told = row.get("failed") or f"{row['seconds']:.4g} s"
        print(f"{part:9} {name:48} {told}", flush=True)
        draft = args.out.with_suffix(".part")
        draft.write_text(json.dumps({"rows": [*rows, row]}, indent=1) + "\n")
        draft.replace(args.out)
    return late


if __name__ == "__main__":
    main(time.time() - psutil.Process().create_time())
