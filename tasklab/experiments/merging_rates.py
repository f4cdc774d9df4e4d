"""Merges of vectors that learnt less, so that ways of tuning can be compared at equal accuracy.

Of one way of fine-tuning all merges have the same vectors, and so the same accuracy alone. Between
ways it differs, and who learns less may merge better for that alone. Lower learning rates make any
way learn less: here its merges are measured over rates up to its own, as `budgets` does for sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from tasklab.experiments.budgets import RATES, usual_rate
from tasklab.experiments.editing import single
from tasklab.experiments.kit import Lab, Rows, Run, combine, experiment, several, usual_runs
from tasklab.experiments.learning_rates import ascending
from tasklab.experiments.merging import LEADING, known_merges, merging
from tasklab.experiments.runner import known_methods
from tasklab.tuning.methods import POSTHOC


def _runs(
    lab: Lab, methods: Sequence[str], *, rates: Sequence[float] = RATES, **_: object
) -> Iterator[Run]:
    for method in dict.fromkeys(POSTHOC.get(method, method) for method in methods):
        for lr, steps in below(lab, method, rates):
            yield from usual_runs(lab.sibling(lr=lr, steps=steps), [method])


@experiment(
    Rows(
        "merging_rates",
        "a task's own vector, trained at the rate `lr`, and all of them merged",
        "single %, absolute %",
        "merge, lr",
        figure="merge_curves",
    ),
    runs=_runs,
)
def merging_rates(
    lab: Lab,
    methods: Sequence[str] = ("nonlinear",),
    merges: Sequence[str] | None = None,
    rates: Sequence[float] = RATES,
    n_tasks: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Merge tasks' vectors at the usual learning rate and at the lower ones of some.

    Args:
        merges: Any of `MERGES`; by default `LEADING`.
        rates: Learning rates; those above a method's own are left out.
    """
    names, tables = several(lab.suite), []
    sizes = (len(names),) if n_tasks is None else n_tasks
    chosen, rates = known_merges(LEADING if merges is None else merges), ascending(rates)
    for method in known_methods(methods):
        for lr, steps in below(lab, method, rates):
            other = lab.sibling(tasks=names, lr=lr, steps=steps)
            alone = single(other, [method])
            edited = merging(other, [method], chosen, n_tasks=sizes)
            rows = pd.concat([alone[alone["method"] == method], edited], ignore_index=True)
            rows = rows[rows["metric"].isin(("single", "absolute"))]
            rows = rows.drop(columns=["hits", "trials", "option"], errors="ignore")
            tables.append(rows.assign(experiment="merging_rates", lr=lr))
    return combine(*tables)


def below(lab: Lab, method: str, rates: Sequence[float] = RATES) -> Iterator[tuple[float, int]]:
    """Yield a method's own learning rate and the lower ones of some, with its number of steps."""
    own, steps = usual_rate(lab, method)
    for lr in sorted({own, *(rate for rate in rates if rate < own)}):
        yield lr, steps
