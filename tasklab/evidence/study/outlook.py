"""Count the fine-tuning runs of a study's parts, and those that are in the store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from tasklab.bench.lab import Lab
from tasklab.bench.parameters import Parameters
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
        Columns chapter, part, runs, kept (runs in the store) and steps (of the runs that are not).
    """
    rows, seen = [], set[str]()
    for chapter, part in parts:
        runs: dict[str, Run] = {}
        for work, seeds in recording.asked(chapter, part, parameters, to=to)[0]:
            lab = Lab(work.applied(parameters, seeds), progress=False, tasks=work.tasks)
            runs |= {run.lab.store.key(run.identity): run for run in runs_of(lab, work)}
        fresh = [run for key, run in runs.items() if key not in seen]
        seen |= runs.keys()
        waiting = [run.recipe.steps for run in fresh if not run.kept]
        rows.append((chapter, part, len(fresh), len(fresh) - len(waiting), sum(waiting)))
    return pd.DataFrame(rows, columns=["chapter", "part", "runs", "kept", "steps"])


def describe(table: pd.DataFrame) -> str:
    """Return the findings of `outlook` as lines of text: runs, and how many are in the store."""
    cells = "{0.chapter:14} {0.part:12} {0.runs:5} runs, {0.kept:5} in the store"
    lines = [cells.format(row) for row in table.itertuples()]
    return "\n".join(
        [*lines, f"{table['runs'].sum()} runs, {table['kept'].sum()} of them in the store"]
    )
