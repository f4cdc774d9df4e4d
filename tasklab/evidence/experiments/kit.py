"""Tools for experiments: a lab, trials, records, and the sides of claims."""

# ruff: noqa: F401

from tasklab.bench.lab import Lab
from tasklab.evidence.experiments.registry import Run, experiment, trained, usual_runs
from tasklab.evidence.experiments.runner import (
    Trial,
    grid,
    kept,
    known_methods,
    records,
    run,
    stored,
)
from tasklab.evidence.records.claims import Claim, Sides, by_seed
from tasklab.evidence.records.schema import LEADING_MERGES, Rows
from tasklab.evidence.records.table import combine, filled, tidy, where
from tasklab.tasks.suites import several
from tasklab.tuning.methods import LINEAR
