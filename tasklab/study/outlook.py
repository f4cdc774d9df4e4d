"""What a study has before it: the fine-tuning runs of its parts, those that are kept, and how long.

Measuring comes on top.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from tasklab.experiments import estimate
from tasklab.experiments.lab import Lab
from tasklab.experiments.outlook import runs_of
from tasklab.experiments.parameters import Parameters
from tasklab.experiments.registry import Run
from tasklab.study import recording


def outlook(
    parameters: Parameters,
    parts: Iterable[tuple[str, str]],
    *,
    to: Path | None = None,
) -> pd.DataFrame:
    """List the fine-tuning runs of chapters' parts; a shared run counts once, in the first.

    Args:
        to: A file of records of one part: only what it lacks is asked for.

    Returns:
        Columns chapter, part, runs, kept, steps (of the runs that are not kept) and seconds that
        these steps take in one process, by a measured step of each model (`estimate.pace`).
    """
    rows, seen, steps = [], set[str](), dict[str, float]()
    for chapter, part in parts:
        runs: dict[str, Run] = {}
        for work, seeds in recording.asked(chapter, part, parameters, to=to)[0]:
            lab = Lab(work.applied(parameters, seeds), progress=False, tasks=work.tasks)
            runs |= {run.lab.store.key(run.identity): run for run in runs_of(lab, work)}
        fresh = [run for key, run in runs.items() if key not in seen]
        seen |= runs.keys()
        waiting = [run for run in fresh if not run.kept]
        seconds = 0.0
        for run in waiting:
            model = run.lab.parameters.model
            if model not in steps:
                steps[model] = estimate.pace(run.lab).step
            seconds += steps[model] * estimate.work([(run.recipe, False)], 0).equivalent
        left = sum(run.recipe.steps for run in waiting)
        rows.append((chapter, part, len(fresh), len(fresh) - len(waiting), left, seconds))
    return pd.DataFrame(rows, columns=["chapter", "part", "runs", "kept", "steps", "seconds"])


def describe(table: pd.DataFrame, jobs: int) -> str:
    """Return the findings of `outlook` as lines of text, for `jobs` processes."""
    cells = "{0.chapter:14} {0.part:12} {0.runs:5} runs, {0.kept:5} kept, {1:6.2f} h"
    lines = [cells.format(row, row.seconds / 3600) for row in table.itertuples()]
    hours = table["seconds"].sum() / 3600 / jobs
    of = "" if jobs == 1 else f" in {jobs} processes, if each has a core of its own"
    lines.append(
        f"fine-tuning takes about {hours:.1f} h{of}; what is measured with the vectors comes on top"
    )
    return "\n".join(lines)
