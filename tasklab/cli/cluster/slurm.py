"""A grid as a SLURM array: one job a run, which is requeued and continues from its checkpoint.

    slurm.submit(grid, sbatch="--partition=gpu --time=8:00:00")

Task i of the array does run i of the plan (`tasklab train ... --only i`). Two minutes before its
time is over SLURM signals the job's script, which ends the run with a checkpoint and requeues the
job. A preempted job is requeued by SLURM itself. A second job lists the outcome of each run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tasklab import machine
from tasklab.cli.cluster.grid import Grid, Job, laid_out
from tasklab.errors import TasklabError, shown
from tasklab.storage.store import Store
from tasklab.tuning.recipe import PRECISIONS

NOTICE = 120  # seconds before the end of a job's time
RESTARTS = 100  # of one job: a run that never gets to a checkpoint would be requeued for ever

_ARRAY = """\
#!/bin/bash
{directives}
export OMP_NUM_THREADS="${{SLURM_CPUS_PER_TASK:-1}}"
asked=
trap 'asked=1; kill -TERM "$run" 2>/dev/null' USR1
trap 'kill -TERM "$run" 2>/dev/null' TERM
{command} --only "$SLURM_ARRAY_TASK_ID" &
run=$!
wait "$run"
status=$?
while kill -0 "$run" 2>/dev/null; do  # a signal interrupts the wait
    wait "$run"
    status=$?
done
if [ -n "$asked" ] && [ "$status" -eq 143 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]
then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
fi
exit "$status"
"""
_SUMMARY = """\
#!/bin/bash
{directives}
{command} --summary
"""


class Scripts(NamedTuple):
    """The two jobs of a grid, before they are submitted."""

    jobs: tuple[Job, ...]  #: All runs, those that are kept too
    folder: Path  #: Of the scripts and logs, in the store
    name: str  #: Of the array in the queue: the same runs have the same name
    array: str
    summary: str


def elsewhere(grid: Grid) -> Grid:
    """Return the grid with the device of all jobs, regardless of this machine's.

    A job with a GPU takes the precision that its card is fast in, unless one is given.
    """
    device = "cpu" if grid.given.get("device") == "cpu" else "cuda"
    precision = grid.given.get("precision")
    if device == "cpu" and precision is None:
        precision = "bfloat16" if machine.fast_in_bfloat16() else "float32"
    root = Store(grid.given.get("store_root")).root.absolute()
    return grid.changed(device=device, precision=precision, store_root=root)


def _jobs(grid: Grid, *, unseen: bool = False) -> tuple[Job, ...]:
    """Return the runs; a run in any precision that a job may choose counts as stored."""
    given = grid.given["precision"]
    ways = [
        laid_out(grid.changed(precision=one), away=True, unseen=unseen)
        for one in ([given] if given else PRECISIONS[::-1])
    ]
    return tuple(
        dataclasses.replace(same[0], kept=any(job.kept for job in same))
        for same in zip(*ways, strict=True)
    )


def scripts(
    grid: Grid,
    *,
    cpus: int = 1,
    at_once: int | None = None,
    sbatch: str = "",
    unseen: bool = False,
) -> Scripts:
    """Return the scripts of a grid's jobs, without writing or submitting them.

    Args:
        grid: Models, methods, tasks and seeds.
        cpus: Processor cores of a job; it also takes a GPU unless the device is cpu.
        at_once: The most jobs that run at a time.
        sbatch: Further options of `sbatch` for both scripts, as in a shell.
        unseen: Whether the model's weights may be absent, as on a login node.
    """
    grid = elsewhere(grid)
    jobs = _jobs(grid, unseen=unseen)
    made_of = hashlib.sha256("".join(job.key for job in jobs).encode()).hexdigest()[:10]
    folder, name = Path(grid.given["store_root"]) / "slurm" / made_of, f"tasklab-{made_of}"
    if "\\" in str(folder):
        raise TasklabError(
            f"SLURM writes no logs to {folder}, which has a backslash: choose another store with "
            "--store-root."
        )
    logs = str(folder).replace("%", "%%")  # %a would be the number of a task
    try:
        more = shlex.split(sbatch)
    except ValueError as error:
        raise TasklabError(f"--sbatch {sbatch!r} is no list of options ({error}).") from None
    waiting = _ranges([number for number, job in enumerate(jobs) if not job.kept])
    array = [
        f"--job-name={name}",
        f"--array={waiting}{'' if at_once is None else f'%{at_once}'}",
        f"--cpus-per-task={cpus}",
        *(["--gres=gpu:1"] if grid.given["device"] == "cuda" else []),
        "--requeue",
        f"--signal=B:USR1@{NOTICE}",
        "--open-mode=append",
        f"--output={logs}/%a.log",
        *more,
    ]
    last = [f"--job-name={name}-summary", f"--output={logs}/summary.log", *more]
    command = shlex.join([sys.executable, "-m", "tasklab", "train", *_words(grid)])
    script = _ARRAY.format(directives=_directives(array), command=command, restarts=RESTARTS)
    summary = _SUMMARY.format(directives=_directives(last), command=f"{command} --slurm")
    return Scripts(jobs, folder, name, script, summary)


def submit(made: Scripts) -> tuple[str, str]:
    """Submit the array and, after it, the summary; return their numbers in the queue.

    Raises:
        TasklabError: If SLURM is not here, refuses a job, gives no number for it, or has these runs
            in its queue.
    """
    queued = _run("squeue", "--me", "--noheader", "--format=%F", f"--name={made.name}").split()
    if queued:
        raise TasklabError(
            f"job {queued[0]} of the queue does these runs already: wait for it, or end it by "
            f"`scancel {queued[0]}`."
        )
    made.folder.mkdir(parents=True, exist_ok=True)
    for file, text in {"array.sh": made.array, "summary.sh": made.summary}.items():
        (made.folder / file).write_text(text, "utf-8")
    array = _submitted(f"{made.folder}/array.sh")
    return array, _submitted(f"--dependency=afterany:{array}", f"{made.folder}/summary.sh")


def _submitted(*words: str) -> str:
    """Submit a script, and return its number in the queue."""
    answer = _run("sbatch", "--parsable", *words).strip()
    number = answer.partition(";")[0]
    if not number.isdecimal():
        raise TasklabError(
            f"sbatch answered {shown(answer)} where it should give the number of the job: look by "
            "`squeue --me` whether it was submitted."
        )
    return number


def last_words(made: Scripts, number: int) -> str:
    """Return the last error in a job's log, or its last line."""
    try:
        log = (made.folder / f"{number}.log").read_text("utf-8", "replace")
    except OSError:
        return "not started"
    wrong = [line for line in log.splitlines() if line.startswith(("failed", "tasklab:"))]
    return next(iter(wrong[-1:] or log.splitlines()[-1:]), "no message")


def _words(grid: Grid) -> list[str]:
    listed = {"model": grid.models, "method": grid.methods, "task": grid.tasks or ()}
    words = [f"--{name}={one}" for name, those in listed.items() for one in those]
    for name, value in grid.settings("").items():
        if value is not None and name != "model":
            text = ",".join(map(str, value)) + "," if isinstance(value, tuple) else str(value)
            words.append(f"--{name.replace('_', '-')}={text}")
    return words


def _directives(options: Sequence[str]) -> str:
    lines: list[str] = []
    for option in options:  # a value that stands apart from its option goes on its line
        if lines and not option.startswith("-"):
            lines[-1] += f" {shlex.quote(option)}"
        else:
            lines.append(f"#SBATCH {shlex.quote(option)}")
    return "\n".join(lines)


def _ranges(numbers: Sequence[int]) -> str:
    """Return an array's tasks as SLURM writes them.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    apart = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in apart]
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def _run(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        raise TasklabError(
            f"{words[0]} is not on this machine: run this where SLURM's jobs are submitted, or "
            "print the scripts by --dry-run."
        ) from None
    except subprocess.TimeoutExpired:
        raise TasklabError(f"{words[0]} does not answer within two minutes.") from None
    if done.returncode:
        raise TasklabError(f"{words[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
