"""Count the fine-tuning runs of a study's parts, and those that are in the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from tasklab.bench import preflight
from tasklab.bench.lab import Lab
from tasklab.bench.parameters import Parameters
from tasklab.bench.preflight import Lack
from tasklab.bench.runs import tasks_of
from tasklab.evidence.chapters.outlook import runs_of
from tasklab.evidence.experiments.registry import Run
from tasklab.evidence.study import recording


def outlook(
    parameters: Parameters, parts: Iterable[tuple[str, str]], *, to: Path | None = None
) -> pd.DataFrame:
    """List the fine-tuning runs of chapters' parts; a shared run counts once, in the first.

    Args:
        parameters: Of the study.
        parts: Pairs of a chapter and one of its parts.
        to: A file of records of one part: only missing ones are counted.

    Returns:
        Columns chapter, part, runs, kept (runs in the store), steps (of the runs that are not) and
        lacks: what is missing for the part, by `preflight.missing`; such runs are not counted.
    """
    rows, seen = [], set[str]()
    for chapter, part in parts:
        runs: dict[str, Run] = {}
        lacks: dict[str, Lack] = {}
        for work, seeds in recording.asked(chapter, part, parameters, to=to)[0]:
            own = work.applied(parameters, seeds)
            pictures = preflight.images_of(own, tasks_of(own, (), work.tasks))
            if absent := preflight.missing(own, pictures):
                lacks |= {one.why: one for one in absent}
                continue
            lab = Lab(own, progress=False, tasks=work.tasks)
            runs |= {run.lab.store.key(run.identity): run for run in runs_of(lab, work)}
        fresh = [run for key, run in runs.items() if key not in seen]
        seen |= runs.keys()
        waiting = [run.recipe.steps for run in fresh if not run.kept]
        counts = len(fresh), len(fresh) - len(waiting), sum(waiting)
        rows.append((chapter, part, *counts, tuple(lacks.values())))
    return pd.DataFrame(rows, columns=["chapter", "part", "runs", "kept", "steps", "lacks"])


def describe(table: pd.DataFrame) -> str:
    """Return the findings of `outlook` as lines of text: runs, and how many are in the store."""
    cells = "{0.chapter:14} {0.part:12} {0.runs:5} runs, {0.kept:5} in the store"
    lines = [cells.format(row) + _without(row.lacks) for row in table.itertuples()]
    total = f"{table['runs'].sum()} runs, {table['kept'].sum()} of them in the store"
    why = dict.fromkeys(one.why for lacks in table["lacks"] for one in lacks)
    return "\n".join([*lines, total, *why])


def _without(lacks: Sequence[Lack]) -> str:
    kinds = dict.fromkeys(one.kind for one in lacks)
    named = [f"{k} of {', '.join(one.what for one in lacks if one.kind == k)}" for k in kinds]
    return f"; without what needs {' and '.join(named)}" if named else ""
