"""The command `tasklab predict`: what the recorded worlds say of CLIP, measured and graded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import tyro

from tasklab import experiments, study
from tasklab.cli.parsing import Given, settings
from tasklab.experiments.parameters import Parameters
from tasklab.models.zoo import small

if TYPE_CHECKING:
    import pandas as pd


def predict(
    model: tyro.conf.Positional[str],
    given: Annotated[Given, settings("model", "lr", preset="full")],
    *,
    check: bool = False,
) -> int:
    """Print frozen predictions for ViT-B/32 and their grades by the papers' printed numbers.

    Args:
        model: Short name: vitb32, or a model to measure the same on.
        given: As in a chapter's first code cell.
        check: Measure with the runs in the store, and grade by these.
    """
    usual = {"preset": "full"} | ({} if small(model) else {"suite": "paper"})
    parameters = Parameters(**{**usual, **given, "model": model})
    predictions = study.predictions
    if not check:
        grades = predictions.graded(predictions.printed())
        _print("Predicted", predictions.shown(predictions.frozen()))
        _print("Graded by the papers", predictions.shown(grades[grades["model"] == model]))
        return 0
    found = predictions.check(experiments.Lab(parameters))
    if found.empty:
        print(
            "no prediction has its runs in the store. `tasklab train --model MODEL --preset full "
            "--lr RATE --method nonlinear --method linearized --method attention` makes those of a "
            "rate."
        )
        return 1
    _print("Measured", predictions.shown(found))
    right, inside = int(found["sign"].sum()), int(found["size"].sum())
    print(f"{len(found)} predictions measured: {right} signs right, {inside} sizes in the interval")
    return 0


def _print(title: str, rows: pd.DataFrame) -> None:
    print(f"{title}:")
    print(rows.to_string(index=False) if len(rows) else "  none")
