"""Labels of merges, methods, metrics and protocols, in the book's order."""

from __future__ import annotations

from collections.abc import Mapping

from tasklab.analyses.merging.registry import METHODS, SOLVED
from tasklab.evidence.figures.style import METHOD_LABEL
from tasklab.evidence.records.schema import LEADING_MERGES

_BEST = {
    "best_span": "best on the span", "best": "best, 64 images",  # no longer made
    "best_loss": "least loss on the span",
    **{name: method.title for name, method in SOLVED.items()},
}  # fmt: skip
MERGE_LABEL = {name: method.title for name, method in METHODS.items()} | _BEST
BOUND_LABEL = {"single": "one model a task", "joint": "joint training"}  # what merges may reach
METRIC_LABEL = {
    "single": "single-task accuracy",
    "absolute": "accuracy of the sum of all",
    "normalised": "the same, normalised",
    "lost_sum": "loss in the sum of all",
    **{f"lost_{name}": f"loss in the merge: {MERGE_LABEL[name]}" for name in LEADING_MERGES},
    "target": "target accuracy, negated",
    "control": "control accuracy, negated",
    "lost": "loss in a pair",
    "xi_pair": "ξ of the sum of a pair",
    "xi_classifier": "ξ at one coefficient",
    "xi_representation": "ξ of representations",
    "distance": "distance from linearity",
    "coef": "coefficient of linearity",
    "base": "distance between models",
    "gap": "gap from the linearization",
    "cosine": "cosine of the vectors",
    "norm": "norm of the vector",
    "gradient_cosine": "cosine of the gradients",
    "gradient_distance": "distance of the gradients",
    "share": "localization of the kernel",
    "seconds_finetune": "seconds of fine-tuning",
    "trainable": "trained parameters",
}
COST_LABEL = {  # of a merge
    "seconds": "seconds",
    "memory_ratio": "memory / the vectors'",
    "passed": "images passed",
    "searched": "images searched",
}
PROTOCOL_LABEL = {
    "here": "here",
    "task_vectors": "task_vectors",
    "tall_masks": "TALL, TSV",
    "fusionbench": "FusionBench",
}
#: Column of records -> the label of each of its values, in the order of rows and columns.
LABELS: Mapping[str, Mapping[str, str]] = {
    "merge": BOUND_LABEL | MERGE_LABEL,
    "method": METHOD_LABEL,
    "metric": METRIC_LABEL | COST_LABEL,
    "protocol": PROTOCOL_LABEL,
}
