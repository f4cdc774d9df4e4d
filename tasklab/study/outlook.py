"""What a study has before it: the fine-tuning runs of its parts, those that are kept, and how long.

Only fine-tuning is counted. What is measured with the vectors comes on top; like them it is kept,
so that a study that was interrupted goes on where it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import pandas as pd

from tasklab.experiments import Lab, estimate
from tasklab.experiments.budgets import around
from tasklab.experiments.estimate import Planned
from tasklab.experiments.joint import planned as jointly
from tasklab.experiments.merging_rates import below
from tasklab.experiments.parameters import Parameters
from tasklab.experiments.penalty_strengths import planned as strengths
from tasklab.study.parts import Work, works_of

_GRIDS = {"budgets": around, "merging_rates": below}  # experiments that train at several rates


def outlook(parameters: Parameters, parts: Iterable[tuple[str, str]]) -> pd.DataFrame:
    """Return what there is to fine-tune by part; a run that two of them need counts in the first.

    Args:
        parameters: Of the study.
        parts: Chapters and parts, in the order in which they are recorded.

    Returns:
        Columns chapter, part, runs, kept, steps (of the runs that are not kept) and seconds that
        these steps take in one process, by a measured step of each model (`estimate.pace`).
    """
    rows, seen, steps = [], set[str](), dict[str, float]()
    for chapter, part in parts:
        runs = {}
        for work in works_of(chapter, part):
            runs |= {run.lab.store.key(run.identity): run for run in planned(parameters, work)}
        fresh = [run for key, run in runs.items() if key not in seen]
        seen |= runs.keys()
        waiting = [run for run in fresh if not run.kept]
        seconds = 0.0
        for run in waiting:
            model = run.lab.parameters.model
            if model not in steps:
                steps[model] = estimate.pace(run.lab).step
            seconds += steps[model] * estimate.work([(run.recipe, False)], 0).equivalent
        rows.append(
            {
                "chapter": chapter,
                "part": part,
                "runs": len(fresh),
                "kept": len(fresh) - len(waiting),
                "steps": sum(run.recipe.steps for run in waiting),
                "seconds": seconds,
            }
        )
    return pd.DataFrame(rows)


def describe(table: pd.DataFrame, jobs: int) -> str:
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
    if "penalty_strengths" in work.names:
        yield from strengths(lab, work.methods, **work.names["penalty_strengths"])
        return
    if "joint" in work.names:
        yield from jointly(lab, work.methods)
        return
    grid = next((name for name in _GRIDS if name in work.names), None)
    if grid is None:
        yield from estimate.planned(lab, work.methods)
        return
    axes = {name: over for name, over in work.names[grid].items() if name in ("rates", "lengths")}
    for method in {run.method: None for run in estimate.planned(lab, work.methods)}:
        for lr, steps in _GRIDS[grid](lab, method, **axes):
            yield from estimate.planned(lab.sibling(lr=lr, steps=steps), [method])
