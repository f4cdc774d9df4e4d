"""The command `tasklab grid`: fine-tuning runs in order, or on a Ray cluster."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from tasklab.errors import TasklabError


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser's."""
    grid = commands.add_parser(
        "grid", help="fine-tune models x methods x tasks x seeds, here or on a Ray cluster"
    )
    grid.set_defaults(run=_grid)
    add = grid.add_argument
    add("--model", action="append", help="may be repeated (default: mini)")
    add("--method", action="append", help="may be repeated (default: nonlinear)")
    add("--task", action="append", help="may be repeated (default: all of the suite)")
    add("--seeds", help="how many, or a list like 0,1,2")
    add("--preset", default="full", help="quick or full (default: full)")
    add("--suite", help="default: what fits the model")
    add("--init", default="pretrained", help="pretrained or random")
    add("--head", help="zero_shot, trained or probe; default: what fits the model")
    add("--steps", help="fine-tuning steps")
    add("--lr", help="learning rate, for every method")
    add("--precision", help="float32 or bfloat16; default: what the device is fast at")
    add("--device", help="cpu, cuda, cuda:1; default: CUDA if there")
    add("--data-root", type=Path, help="where data sets are")
    add("--store-root", type=Path, help="where results are kept")
    add(
        "--ray",
        metavar="ADDRESS",
        help="auto: the cluster of this machine; local: a new one on this machine; or host:port",
    )
    add("--cpus", type=int, default=1, help="cores of a run on a cluster (default: 1)")
    add("--retries", type=int, default=3, help="after a lost machine (default: 3)")
    add("--dry-run", action="store_true", help="list the runs and what is kept already")


def _grid(args: argparse.Namespace) -> int:
    from tasklab.cluster import grid
    from tasklab.errors import whole

    cpus, retries = whole("--cpus", args.cpus, 1), whole("--retries", args.retries, 0)
    wanted = grid.Grid(
        models=args.model or ("mini",),
        methods=args.method or ("nonlinear",),
        tasks=args.task,
        seeds=_seeds(args.seeds),
        suite=args.suite,
        init=args.init,
        head=args.head,
        preset=args.preset,
        steps=args.steps,
        lr=args.lr,
        precision=args.precision,
        data_root=args.data_root,
        store_root=args.store_root,
        device=args.device,
    )
    if args.dry_run:
        jobs = grid.plan(wanted, args.ray)
        for job in jobs:
            state = "kept" if job.kept else "to do"
            print(f"{state:5}  {job.model}, {job.method}, {job.task}, seed {job.seed}")
        print(f"{_runs(len(jobs))}, {sum(job.kept for job in jobs)} kept")
        return 0
    table = grid.run(wanted, args.ray, cpus=cpus, retries=retries)
    for row in table[table["state"] == grid.FAILED].itertuples():
        where = f" on {row.node}" if row.node else ""
        print(f"failed  {row.model}, {row.method}, {row.task}, seed {row.seed}{where}: {row.error}")
    counts = Counter(table["state"])
    print(f"{_runs(len(table))}: " + ", ".join(f"{n} {state}" for state, n in counts.items()))
    return 1 if counts[grid.FAILED] else 0


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _seeds(text: str | None) -> str | tuple[int, ...] | None:
    if text is None or "," not in text:
        return text
    try:
        return tuple(int(seed) for seed in text.split(","))
    except ValueError:
        raise TasklabError(f"--seeds {text}: whole numbers, e.g. 0,1,2.") from None
