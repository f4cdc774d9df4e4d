"""The command `tasklab train`: fine-tuning runs here, as a SLURM array or on a Ray cluster."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import tyro

from tasklab.cli import cluster, idle
from tasklab.cli.cluster import names
from tasklab.cli.parsing import Given, settings
from tasklab.errors import TasklabError, texts, whole
from tasklab.progress import begin

if TYPE_CHECKING:
    from collections.abc import Sequence


def grid(
    given: Annotated[Given, settings("model")],
    *,
    model: tuple[str, ...] = (),
    method: tuple[str, ...] = (),
    task: tuple[str, ...] = (),
    slurm: bool = False,
    sbatch: Annotated[str, tyro.conf.arg(metavar="OPTIONS")] = "",
    at_once: int | str | None = None,
    ray: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None,
    cpus: int | str | None = None,
    retries: int | str | None = None,
    only: int | str | None = None,
    summary: bool = False,
    dry_run: bool = False,
) -> int:
    """Fine-tune the runs that are not in the store, and list the failed ones.

    Args:
        given: As in a chapter's first code cell.
        model: Short name. By default mini.
        method: How to fine-tune. By default nonlinear.
        task: Name of a task. By default all of the suite.
        slurm: Submit an array of jobs with one GPU each, and a job that lists their outcomes.
        sbatch: Further options of sbatch, --sbatch="--partition=gpu --time=8:00:00".
        at_once: The most jobs of the array that run at a time.
        ray: auto: the cluster of this machine; local: a new one on this machine; or host:port.
        cpus: Cores of a run on a cluster. By default 1.
        retries: After a lost machine, on Ray. By default 3.
        only: Number of one run, as a job of the array does it.
        summary: With --slurm, list the runs of the array and why some are missing.
        dry_run: List the runs and the stored ones; with --slurm print the scripts too, also
            where the weights are not, as on a login node.
    """
    cores = whole("--cpus", 1 if cpus is None else cpus, 1, 10_000)
    again = whole("--retries", 3 if retries is None else retries, 0, 1000)
    number = None if only is None else whole("--only", only, 0)
    most = None if at_once is None else whole("--at-once", at_once, 1)
    if slurm and (ray is not None or only is not None):
        raise TasklabError("--slurm stands without --ray and --only.")
    if not slurm and (sbatch or summary or at_once is not None):
        raise TasklabError("--sbatch, --at-once and --summary belong to --slurm.")
    if summary and (dry_run or sbatch or at_once is not None):
        raise TasklabError(
            "--summary submits nothing: leave --dry-run, --sbatch and --at-once out."
        )
    if ray is None:
        idle.refuse({"retries": retries}, "only runs on Ray are started again")
    if ray is None and not slurm:
        idle.refuse({"cpus": cpus}, "runs on this machine use its cores (OMP_NUM_THREADS)")
    if dry_run:
        idle.refuse({"only": only, "retries": retries}, "--dry-run lists all runs and starts none")
    if ray is not None:
        (ray,) = texts("--ray", ray)
    if given.get("vectors") is not None:
        raise TasklabError(
            "--vectors names published vectors, which `tasklab import --from` fetches."
        )
    models, methods, tasks = model or ("mini",), method or ("nonlinear",), task or None
    if problems := names.problems(models, methods, tasks, given):  # before seconds of imports
        raise TasklabError("\n".join(problems))
    begin(f"planning runs of {', '.join(models)}.")
    runs = cluster.grid
    wanted = runs.Grid(models, methods, tasks, **given)
    if slurm:
        return _slurm(wanted, cores, most, sbatch, summary=summary, dry_run=dry_run)
    if dry_run:
        _list(runs.plan(wanted, ray))
        return 0
    table = runs.run(wanted, ray, cpus=cores, retries=again, only=number)
    for row in table[table["state"] == runs.FAILED].itertuples():
        place = f" on {row.node}" if row.node else ""
        print(f"failed  {row.model}, {row.method}, {row.task}, seed {row.seed}{place}: {row.error}")
    counts = Counter(table["state"])
    print(f"{_runs(len(table))}: " + ", ".join(f"{n} {state}" for state, n in counts.items()))
    return 1 if counts[runs.FAILED] else 0


def _slurm(
    grid: cluster.grid.Grid,
    cpus: int,
    at_once: int | None,
    sbatch: str,
    *,
    summary: bool,
    dry_run: bool,
) -> int:
    made = cluster.slurm.scripts(grid, cpus=cpus, at_once=at_once, sbatch=sbatch, unseen=dry_run)
    missing = [number for number, job in enumerate(made.jobs) if not job.kept]
    if summary:
        for number in missing:
            print(f"missing  {made.jobs[number].told}: {cluster.slurm.last_words(made, number)}")
        print(f"{_runs(len(made.jobs))}, {len(missing)} missing")
        return 1 if missing else 0
    if dry_run:
        _list(made.jobs)
        print(f"\n# {made.folder}/array.sh\n{made.array}")
        print(f"# {made.folder}/summary.sh, after the array\n{made.summary}", end="")
    elif missing:
        array, last = cluster.slurm.submit(made)
        print(f"{_runs(len(missing))} in job {array}, the summary in job {last}; {made.folder}")
    else:
        print(f"{_runs(len(made.jobs))}, all kept")
    return 0


def _list(jobs: Sequence[cluster.grid.Job]) -> None:
    for job in jobs:
        print(f"{'kept' if job.kept else 'to do':5}  {job.told}")
    print(f"{_runs(len(jobs))}, {sum(job.kept for job in jobs)} kept")


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"
