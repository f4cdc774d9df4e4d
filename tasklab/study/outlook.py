"""What a study has before it: the fine-tuning runs of its parts, those that are kept, and how long.

Only fine-tuning is counted. What is measured with the vectors comes on top; like them it is kept,
so that a study that was interrupted goes on where it was.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Iterable, Iterator

import pandas as pd

from tasklab.experiments import Lab
from tasklab.experiments.budgets import around
from tasklab.experiments.parameters import Parameters
from tasklab.storage.store import Store
from tasklab.study.parts import Work, works_of
from tasklab.tuning.methods import POSTHOC

_STEPS = 6  # that are timed where no run of a model and method is kept


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """A run of a part.

    Attributes:
        lab: Where it belongs.
        task: Name of the task.
        method: One that trains a vector.
        seed: Order of the images.
    """

    lab: Lab
    task: str
    method: str
    seed: int

    @property
    def key(self) -> str:
        """The key of its result in the store."""
        return self.lab.store.key(self.lab.identity(self.task, self.method, self.seed))

    @property
    def kept(self) -> bool:
        """Whether its result is in the store."""
        return (self.lab.store.root / "finetune" / self.key).is_dir()

    @property
    def steps(self) -> int:
        """Its number of steps."""
        return self.lab.run(self.task, self.method, self.seed).steps


def outlook(parameters: Parameters, parts: Iterable[tuple[str, str]]) -> pd.DataFrame:
    """Return what there is to fine-tune by part; a run that two of them need counts in the first.

    Args:
        parameters: Of the study.
        parts: Chapters and parts, in the order in which they are recorded.

    Returns:
        Columns chapter, part, runs, kept, steps (of the runs that are not kept) and seconds that
        these steps take in one process, by the time of kept runs of the same model and method, or
        of a few steps that are made now.
    """
    pace = functools.cache(_seconds_per_step)
    rows, seen = [], set[str]()
    for chapter, part in parts:
        runs = {}
        for work in works_of(chapter, part):
            runs |= {run.key: run for run in planned(parameters, work)}
        fresh = [run for key, run in runs.items() if key not in seen]
        seen |= runs.keys()
        waiting = [run for run in fresh if not run.kept]
        seconds = sum(run.steps * pace(_Alike(run, fresh)) for run in waiting)
        rows.append(
            {
                "chapter": chapter,
                "part": part,
                "runs": len(fresh),
                "kept": len(fresh) - len(waiting),
                "steps": sum(run.steps for run in waiting),
                "seconds": seconds,
            }
        )
    return pd.DataFrame(rows)


def told(table: pd.DataFrame, jobs: int) -> str:
    """Return what `outlook` found, as lines to read.

    Args:
        table: What `outlook` returned.
        jobs: Processes that share the work.
    """
    lines = [
        f"{row.chapter:14} {row.part:12} {row.runs:5} runs, {row.kept:5} kept, "
        f"{row.seconds / 3600:6.2f} h"
        for row in table.itertuples()
    ]
    hours = table["seconds"].sum() / 3600 / jobs
    of = "" if jobs == 1 else f" in {jobs} processes, if each has a core of its own"
    lines.append(
        f"fine-tuning takes about {hours:.1f} h{of}; what is measured with the vectors comes on top"
    )
    return "\n".join(lines)


def planned(parameters: Parameters, work: Work) -> Iterator[Planned]:
    """Yield the fine-tuning runs of some work."""
    changes = {"suite": None, **work.changes} if "model" in work.changes else dict(work.changes)
    seeds = parameters.seeds[: work.seeds]
    lab = Lab(dataclasses.replace(parameters, seeds=seeds, **changes), progress=False)
    for method in dict.fromkeys(POSTHOC.get(method, method) for method in work.methods):
        if method == "probe":
            continue
        labs = [lab]
        if "budgets" in work.names:
            cells = around(lab, method, **work.names["budgets"])
            labs = [lab.sibling(lr=lr, steps=steps) for lr, steps in cells]
        for one in labs:
            for seed in seeds:
                for task in lab.suite.names:
                    yield Planned(lab=one, task=task, method=method, seed=seed)


class _Alike:
    """Runs of one model and method, whose steps take as long: equal to each other as a key."""

    def __init__(self, run: Planned, others: Iterable[Planned]) -> None:
        self.run, self.others = run, others
        parameters = run.lab.parameters
        self.key = (parameters.model, parameters.head, run.method)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and other.key == self.key

    def same(self) -> Iterator[Planned]:
        """Yield those of the others that are kept."""
        return (one for one in self.others if _Alike(one, ()) == self and one.kept)


def _seconds_per_step(alike: _Alike) -> float:
    """Return the seconds of a step, by a kept run or by a few steps of one."""
    run = next(alike.same(), None)
    if run is not None:
        return run.lab.tune(run.task, run.method, run.seed).record["seconds"] / run.steps
    run = alike.run
    config = run.lab.run(run.task, run.method, run.seed)
    short = dataclasses.replace(config, steps=_STEPS, warmup=1)
    with tempfile.TemporaryDirectory() as folder:
        record = run.lab.trainer(short, Store(folder)).record
    return record["seconds"] / _STEPS
