"""The command `tasklab train`: fine-tuning runs in order, or on a Ray cluster."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from tasklab.cli.parsing import settings
from tasklab.cluster import names
from tasklab.errors import TasklabError, texts, whole

if TYPE_CHECKING:
    Given = dict[str, Any]
else:
    Given = settings("model")


def grid(
    given: Given,
    *,
    model: tuple[str, ...] = (),
    method: tuple[str, ...] = (),
    task: tuple[str, ...] = (),
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None,
    cpus: int | str = 1,
    retries: int | str = 3,
    dry_run: bool = False,
) -> int:
    """Fine-tune what is not in the store yet, and say what became of every run.

    Args:
        given: As in a chapter's first code cell.
        model: Short name. By default mini.
        method: How to fine-tune. By default nonlinear.
        task: Name of a task. By default all of the suite.
        ray: auto: the cluster of this machine; local: a new one on this machine; or host:port.
        cpus: Cores of a run on a cluster.
        retries: After a lost machine.
        dry_run: List the runs and what is kept already.
    """
    cores, again = whole("--cpus", cpus, 1, 10_000), whole("--retries", retries, 0, 1000)
    if ray is not None:
        (ray,) = texts("--ray", ray)
    wanted = {
        "models": model or ("mini",),
        "methods": method or ("nonlinear",),
        "tasks": task or None,
    }
    if problems := names.problems(*wanted.values(), given):  # before seconds of imports
        raise TasklabError("\n".join(problems))
    from tasklab.cluster import grid as runs

    wanted = runs.Grid(**wanted, **given)
    if dry_run:
        jobs = runs.plan(wanted, ray)
        for job in jobs:
            state = "kept" if job.kept else "to do"
            print(f"{state:5}  {job.model}, {job.method}, {job.task}, seed {job.seed}")
        print(f"{_runs(len(jobs))}, {sum(job.kept for job in jobs)} kept")
        return 0
    table = runs.run(wanted, ray, cpus=cores, retries=again)
    for row in table[table["state"] == runs.FAILED].itertuples():
        place = f" on {row.node}" if row.node else ""
        print(f"failed  {row.model}, {row.method}, {row.task}, seed {row.seed}{place}: {row.error}")
    counts = Counter(table["state"])
    print(f"{_runs(len(table))}: " + ", ".join(f"{n} {state}" for state, n in counts.items()))
    return 1 if counts[runs.FAILED] else 0


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
