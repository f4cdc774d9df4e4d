"""One table: how many times as long the papers' own procedures take (`make bench`).

    python benchmarks/bench.py [--models mini vitb32 --rounds 3] [--out FILE]

Each figure is measured in turns, tasklab and then the papers' procedure (`benchmarks/papers.py`),
on the same random weights and images, in float32, with one thread and the time of this process, so
that a busy machine matters less; the ratio is the median over rounds. Both give the same numbers,
which is checked. Where a procedure would take hours a part of it is measured and multiplied up, by
evaluations: `whole` says how many times. Figures:

- step: a linearized training step, with clipping and AdamW; beside it both as multiples of a
  standard step;
- sweep: a linearized model at 21 coefficients, from the images on;
- linearized map: the disentanglement error on 20 x 20 coefficients, from the images on;
- map: the same of the model itself;
- linearity: cross-task linearity of all pairs of tasks at three places between them, all blocks;
- merges by singular vectors (`--models vitl14` alone): TSV-M, Iso-C and Iso-CTS of eight
  vectors (`benchmarks/merges.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import merges
import torch
from compared import QUICK, SIZES, Bench, Figure, Size, merging

from tasklab import machine
from tasklab.evidence.records.table import provenance
from tasklab.models import products

TOLD = {time.process_time: "time of the process", time.perf_counter: "time on the clock"}


def measured(figure: Figure, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Return the row of a figure.

    Args:
        figure: What is compared; both ways end with numbers on the CPU.
        rounds: How often, in turns.
        clock: Seconds since any moment.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        results = []
        for way, scale, taken in zip(
            (figure.ours, figure.theirs), figure.whole, seconds, strict=True
        ):
            began = clock()
            results.append(way())
            taken.append(scale * (clock() - began))
        if not figure.check(*results):
            raise SystemExit(f"{figure.name}: the two ways disagree.")
    ratios = sorted(b / a for a, b in zip(*seconds, strict=True))
    ours, theirs = map(statistics.median, seconds)
    told = {"difference": figure.difference(*results)} if figure.difference else {}
    return {
        "figure": figure.name,
        "ours_s": ours,
        "papers_s": theirs,
        "ratio": statistics.median(ratios),
        "range": [round(ratios[0], 2), round(ratios[-1], 2)],
        "whole": [round(scale, 1) for scale in figure.whole],
        **told,
    }


def main() -> None:
    """Measure, print a table, and write the numbers with the machine they were taken on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = [*SIZES, *merges.SHAPES]
    parser.add_argument("--models", nargs="+", default=list(SIZES), choices=known)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="less of everything, in one round")
    parser.add_argument("--only", default="", help="figures whose name has this pattern")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    sizes: dict[str, Size] = QUICK if args.quick else SIZES
    args.rounds = 1 if args.quick else args.rounds
    torch.set_num_threads(1)
    gpu = torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else None
    clock = time.perf_counter if gpu else time.process_time
    machine.keep_freed_memory()
    began, rows = time.perf_counter(), []
    print(f"{'model':8} {'figure':42} {'tasklab':>10} {'papers':>10}  times")
    for name in args.models:
        bench = Bench(name, sizes[name], args.device) if name in SIZES else None
        with tempfile.TemporaryDirectory() as folder:
            figures = bench.figures(folder) if bench else merging(merges.SHAPES[name])
            asked = (f for f in figures if re.search(args.only, f.name))
            made = (measured(figure, args.rounds, clock) for figure in asked)
            stepped = bench and re.search(args.only, "step")
            first = [bench.step(2 * args.rounds)] if stepped else []
            for row in itertools.chain(first, made):
                rows.append({"model": name, **row})
                told = (f"{row[key]:9.2f} s" for key in ("ours_s", "papers_s"))
                print(f"{name:8} {row['figure']:42}", *told, f"{row['ratio']:6.2f}", flush=True)
        del bench
    seconds = round(time.perf_counter() - began, 1)
    settings = {"rounds": args.rounds, "threads": 1, "clock": TOLD[clock]}
    taken = {name: dataclasses.asdict({**sizes, **merges.SHAPES}[name]) for name in args.models}
    notes = provenance({**settings, "sizes": taken}, gpu=gpu, seconds=seconds)
    about = {name: notes[name] for name in ("commit", "utc", "rounds", "torch")}
    library = "oneDNN" if products.by_onednn() else "MKL"  # processors of one name differ in it
    about["machine"] = gpu or f"{notes['machine']['cpu']}, products by {library}"
    rows = [{**row, **about} for row in rows]
    if args.out.is_file():  # what was not measured now stays, with its own commit
        new = {(row["model"], row["figure"]) for row in rows}
        whole = set() if args.only else {*args.models}
        before = json.loads(args.out.read_text())
        kept = [row for row in before["rows"] if row["model"] not in whole]
        rows = [row for row in kept if (row["model"], row["figure"]) not in new] + rows
        notes["sizes"] = before["provenance"].get("sizes", {}) | notes["sizes"]
    args.out.write_text(json.dumps({"rows": rows, "provenance": notes}, indent=1) + "\n")


if __name__ == "__main__":
    main()
