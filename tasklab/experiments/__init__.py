"""The experiments of the chapters: from parameters to tidy records.

    lab = Lab(Parameters(model="mini", preset="quick"))
    experiments.single(lab, ["nonlinear", "linearized"])

Every experiment returns records as `tasklab.records.table` describes them, and keeps them in the
store under everything that determines them: what was computed once is not computed again.
"""

from tasklab.experiments.closed_vocabulary import (
    ALGORITHMS,
    SCHEMES,
    across,
    closed_addition,
    closed_cost,
    probing,
    scheme_models,
    schemes,
)
from tasklab.experiments.cost import cost, step_cost
from tasklab.experiments.cross_task import (
    cross_task,
    cross_task_addition,
    cross_task_negation,
    cross_task_sum,
)
from tasklab.experiments.curvature import foretold, pair_errors, theorem
from tasklab.experiments.disentanglement import (
    disentanglement,
    exact_alpha,
    own_coefficients,
    pairs,
)
from tasklab.experiments.editing import addition, negation, single, train
from tasklab.experiments.kernels import localization
from tasklab.experiments.lab import FULL, LINEAR, QUICK, REHEARSAL, Lab, Scale, is_rehearsal
from tasklab.experiments.layers import alignment, cosines, linear_gaps
from tasklab.experiments.learning_rates import learning_rates
from tasklab.experiments.scratch import emergence, scratch_linearity, segments, varied
from tasklab.experiments.stitching import averaging, stitched_addition, stitched_negation
from tasklab.experiments.subsets import subsets

__all__ = [
    "ALGORITHMS", "FULL", "LINEAR", "QUICK", "REHEARSAL", "SCHEMES", "Lab", "Scale", "across",
    "addition", "alignment", "averaging", "closed_addition", "closed_cost", "cosines", "cost",
    "cross_task", "cross_task_addition", "cross_task_negation", "cross_task_sum",
    "disentanglement", "emergence", "exact_alpha", "foretold", "is_rehearsal", "learning_rates",
    "linear_gaps", "localization", "negation", "own_coefficients", "pair_errors", "pairs",
    "probing", "scheme_models", "schemes", "scratch_linearity", "segments", "single", "step_cost",
    "stitched_addition", "stitched_negation", "subsets", "theorem", "train", "varied",
]  # fmt: skip
