"""A grid of fine-tuning runs: models x methods x tasks x seeds, here, on SLURM or on Ray.

    runs = Grid(models=["mini"], methods=["nonlinear", "linearized"], seeds=3)
    grid.run(runs)                   # one after another, on this machine
    slurm.submit(runs)               # an array of jobs (`tasklab.cli.cluster.slurm`)
    grid.run(runs, address="auto")   # on the Ray cluster that this machine belongs to

A run is what `Lab.tune` does: the chapters find its vector in the store. Impossible arguments raise
before anything is trained. A run that diverges or fills the memory gets the state `failed`, and the
others go on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import socket
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import torch

from tasklab.bench import Lab, inventory, preflight
from tasklab.bench.parameters import Parameters, with_parameters
from tasklab.cli.cluster import names, ray_cluster
from tasklab.errors import TasklabError, path, texts, unknown, whole
from tasklab.models.zoo import spec
from tasklab.progress import bar, tell
from tasklab.storage.store import Store
from tasklab.tasks.suites import suite
from tasklab.tuning import finetune, probes
from tasklab.tuning.methods import EDITS, POSTHOC, TABLE

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("model", "method", "task", "seed", "state", "seconds", "node", "attempts", "error")
KEPT, DONE, FAILED = "kept", "done", "failed"


@dataclasses.dataclass(frozen=True, init=False)
class Grid:
    """Grid of fine-tuning runs: every model by every method on every task with every seed.

    Args:
        models: Short names.
        methods: Of `EDITS`. A post-hoc method stands for the one whose vectors it uses.
        tasks: Names; `None` for all tasks of each model's suite.
        **given: Further fields of `Parameters`, the same for all models. On a cluster `store_root`
            is a folder that all machines share, `device` is looked for on each machine by itself,
            and `precision` is bfloat16 by default if all its GPUs, or processors, are fast at it.
    """

    models: tuple[str, ...]
    methods: tuple[str, ...]
    tasks: tuple[str, ...] | None
    given: Mapping[str, Any]

    def __init__(
        self,
        models: Iterable[str] | str = ("mini",),
        methods: Iterable[str] | str = ("nonlinear",),
        tasks: Iterable[str] | str | None = None,
        **given: Any,
    ) -> None:
        for name, value in {"models": models, "methods": methods, "tasks": tasks}.items():
            names = None if value is None else tuple(dict.fromkeys(texts(name, value)))
            object.__setattr__(self, name, names)
        for name in given:
            if name == "model" or name not in Parameters.names():
                raise unknown("parameter", name, ("models", *Parameters.names()[1:]))
        if isinstance(given.get("seeds"), Iterable) and not isinstance(given["seeds"], str):
            given["seeds"] = tuple(given["seeds"])
        object.__setattr__(self, "given", MappingProxyType(given))

    def settings(self, model: str) -> dict[str, Any]:
        """Return the arguments of `Parameters` for one of the models."""
        settings = {**self.given, "model": model}
        for name in ("store_root", "data_root"):  # the same folders, wherever a run starts
            if settings.get(name) is not None:
                settings[name] = path(name, settings[name]).absolute()
        return settings

    def changed(self, **changes: Any) -> Grid:
        """Return the same with other arguments."""
        names = {name: getattr(self, name) for name in ("models", "methods", "tasks")}
        return Grid(**{**names, **self.given, **changes})


Grid.__signature__ = with_parameters(Grid.__init__)  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a grid."""

    model: str
    method: str  #: One that trains: of `METHODS`, or `full`
    task: str
    seed: int
    settings: Mapping[str, Any]  #: Arguments of `Parameters`
    tasks: tuple[str, ...]  #: Those that its `Lab` knows
    key: str  #: Of its result in the store
    kept: bool  #: Whether that was there when the grid was laid out

    @property
    def told(self) -> str:
        """The run in words."""
        return f"{self.model}, {self.method}, {self.task}, seed {self.seed}"


def plan(grid: Grid, address: str | None = None) -> list[Job]:
    """Return the runs of a grid, each once, after checking all that can be checked beforehand."""
    with _planned(grid, address) as (_, jobs):
        return jobs


@contextlib.contextmanager
def _planned(
    grid: Grid, address: str | None
) -> Iterator[tuple[ray_cluster.Cluster | None, list[Job]]]:
    """Yield the cluster, if any, and the runs in the precision that all its machines take."""
    if address is None:
        yield None, laid_out(grid, away=False)
        return
    device = grid.given.get("device")
    with ray_cluster.join(address, None if device is None else device != "cpu") as cluster:
        if grid.given.get("precision") is None:
            grid = grid.changed(precision="bfloat16" if cluster.bfloat16() else "float32")
        yield cluster, laid_out(grid, away=True)


def laid_out(grid: Grid, *, away: bool, unseen: bool = False) -> list[Job]:
    """Return the runs of a grid, each once.

    Args:
        grid: Models, methods, tasks and seeds.
        away: Whether other machines, with other devices, do the runs.
        unseen: Whether weights may be missing here: a run of random ones then stands for each of
            theirs, under another key, and none counts as stored.

    Raises:
        TasklabError: One line for each name, weights file or data set that is missing.
    """
    problems = names.problems(grid.models, grid.methods, grid.tasks, grid.given)
    methods = dict.fromkeys(POSTHOC.get(m, m) for m in grid.methods if m in EDITS)
    jobs: dict[str, Job] = {}
    for model in grid.models:
        settings = grid.settings(model)
        try:
            parameters = Parameters(**settings | ({"device": "cpu"} if away else {}))
            tasks, needed = _tasks(grid, parameters, methods)
            if not tasks:
                continue
            lab, absent = _lab_of(parameters, settings, needed, unseen)
            if not away:
                preflight.complete(parameters, preflight.images_of(parameters, lab.suite))
        except TasklabError as error:
            problems += str(error).splitlines()
            continue
        encoder, seeds = lab.clip.encoder, cast("tuple[int, ...]", parameters.seeds)
        for method in methods:
            try:
                own = lab.run(tasks[0], method, 0).method
                finetune.trainable(encoder.params, own, encoder.name)
            except TasklabError as error:
                problems.append(str(error))
                continue
            for task, seed in itertools.product(tasks, seeds):
                key = _key(lab, task, method, seed)
                kept = lab.store.has("finetune", lab.identity(task, method, seed))
                job = Job(
                    model=model, method=method, task=task, seed=seed, settings=settings,
                    tasks=needed, key=key, kept=kept and not absent,
                )  # fmt: skip
                jobs.setdefault(key, job)
    if problems:
        raise TasklabError("\n".join(dict.fromkeys(problems)))
    return list(jobs.values())


def _tasks(
    grid: Grid, parameters: Parameters, methods: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tasks of a model's runs, and the tasks whose images these need."""
    there = suite(str(parameters.suite))
    tasks = tuple(task for task in grid.tasks or there.names if task in there.names)
    # A probe's learning rate may be searched on another task, whose images it then needs.
    wanted = {*tasks}
    if grid.given.get("head") == "probe":
        wanted.add(probes.searched_task(there))
    if any(TABLE[method].others for method in methods):
        wanted.update(there.names)
    return tasks, tuple(name for name in there.names if name in wanted)


def _lab_of(
    parameters: Parameters, settings: Mapping[str, Any], tasks: tuple[str, ...], unseen: bool
) -> tuple[Lab, bool]:
    """Return a planning lab, and whether random weights stand for absent ones in it."""
    model = parameters.model
    found = inventory.find_weights(spec(model), init=parameters.init) if unseen else None
    absent = found is not None and found.state not in inventory.THERE
    if absent:
        tell(
            f"The weights of {model} are not here: which runs are kept is not known, and "
            "the folder gets its name where they are."
        )
        parameters = Parameters(**{**settings, "device": "cpu", "init": "random"})
    return Lab(parameters, progress=False, tasks=tasks, use="plan"), absent


def _key(lab: Lab, task: str, method: str, seed: int) -> str:
    return lab.store.key(lab.identity(task, method, seed))


def run(
    grid: Grid,
    address: str | None = None,
    progress: bool = True,
    *,
    cpus: int = 1,
    retries: int = 3,
    only: int | None = None,
) -> pd.DataFrame:
    """Fine-tune runs missing in the store, and return the outcome of every run.

    Args:
        grid: Models, methods, tasks and seeds.
        address: `None` runs in order on this machine. Of a Ray cluster: `"auto"` for the one that
            this machine belongs to (or `$RAY_ADDRESS`), `"local"` for a new one on this machine
            alone, or `"host:port"`.
        progress: Whether to show a bar.
        cpus: Processor cores of a run on a cluster; it also takes a GPU if the cluster has any.
        retries: How many times a run is started again whose machine or process was lost.
        only: Number of one run of the plan, for a job of an array.

    Returns:
        One row per run: `model`, `method`, `task`, `seed`; `state`, which is `kept` (it was in the
        store), `done` or `failed`; `seconds` that it took; on which `node`; `attempts`, more than
        one after a loss; and the `error` of a failed one.
    """
    if address is not None and grid.given.get("device") not in (None, "cpu"):
        grid = grid.changed(device="cuda")  # each run sees one, whichever it is
    with _planned(grid, address) as (cluster, jobs):
        if only is not None:
            jobs = [jobs[whole("only", only, 0, len(jobs) - 1)]]
        waiting = [job for job in jobs if not job.kept]
        if cluster is None:
            outcomes = _in_order(waiting, progress)
        else:
            root = Store(jobs[0].settings.get("store_root")).root
            outcomes = cluster.spread(waiting, _work, root=root, cpus=cpus, retries=retries)
        return _table(jobs, waiting, outcomes, progress)


def _table(
    jobs: list[Job], waiting: list[Job], outcomes: Generator[ray_cluster.Outcome], progress: bool
) -> pd.DataFrame:
    import pandas as pd  # here, for it takes half a second, and a plan needs no table

    rows = {job.key: (KEPT, 0.0, "", 0, "") for job in jobs if job.kept}
    failed = 0
    shown = bar(len(jobs), "grid", done=len(rows), unit="run", on=progress)
    with contextlib.closing(outcomes), shown:
        for outcome in outcomes:
            job, (seconds, error) = waiting[outcome.item], outcome.value or (0.0, outcome.error)
            state, took = FAILED if error else DONE, round(seconds, 1)
            rows[job.key] = state, took, outcome.node, outcome.attempts, error
            failed += bool(error)
            shown.set_postfix_str(f"{failed} failed" if failed else "", refresh=False)
            shown.update()
    told = [(one.model, one.method, one.task, one.seed, *rows[one.key]) for one in jobs]
    return pd.DataFrame(told, columns=list(COLUMNS))


def _in_order(jobs: list[Job], progress: bool) -> Generator[ray_cluster.Outcome]:
    node = socket.gethostname()
    try:
        for index, job in enumerate(jobs):
            value = _work(job, None, progress)
            yield ray_cluster.Outcome(index, value, "", node, 1)
    finally:
        _lab.cache_clear()


def _work(job: Job, store: Store | None, progress: bool = False) -> tuple[float, str]:
    began, error = time.perf_counter(), ""
    try:
        lab = _lab(tuple(job.settings.items()), job.tasks, progress)
        if _key(lab, job.task, job.method, job.seed) != job.key:
            raise TasklabError(
                "this machine would compute something else than was asked for: it has another "
                "version of tasklab, of the weights or of the images."
            )
        lab.trainer(lab.run(job.task, job.method, job.seed), store)
    except TasklabError as problem:
        error = str(problem)
    except Exception as problem:  # memory is full, or a bug: the other runs are not to suffer
        error = f"{type(problem).__name__}: {problem}"
    if error:
        _lab.cache_clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return time.perf_counter() - began, error


@functools.lru_cache(maxsize=1)  # runs of one model follow each other
def _lab(settings: tuple[tuple[str, Any], ...], tasks: tuple[str, ...], progress: bool) -> Lab:
    return Lab(Parameters(**dict(settings)), progress=progress, tasks=tasks)
