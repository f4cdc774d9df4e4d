"""Check a grid's names without importing torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tasklab.bench.parameters import Parameters
from tasklab.errors import TasklabError, unknown
from tasklab.tasks.suites import suite
from tasklab.tuning.methods import EDITS


def problems(
    models: Iterable[str],
    methods: Iterable[str],
    tasks: Iterable[str] | None,
    given: Mapping[str, Any],
) -> list[str]:
    """Return a line for each model, method, task or parameter that is impossible.

    Args:
        models, methods, tasks: Names in the grid; `None` for all tasks.
        given: Further parameters, of every model.
    """
    problems = [str(unknown("method", m, EDITS)) for m in methods if m not in EDITS]
    for model in models:
        try:
            there = suite(str(Parameters(**{**given, "model": model, "device": "cpu"}).suite))
        except TasklabError as error:
            problems.append(str(error))
            continue
        wrong = [task for task in tasks or () if task not in there.names]
        problems += [str(unknown(f"task of suite {there.name!r},", t, there.names)) for t in wrong]
    return list(dict.fromkeys(problems))
