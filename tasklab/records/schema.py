"""What records there are: every experiment with its metrics, their units, and its own columns.

A record is one row per (experiment, model, suite, init, method, task, subset, split, n_tasks,
seed, metric, alpha) and the experiment's own columns: one `value` measured on `n` images. Rows are
per task; averages over tasks are computed when they are needed, so there are no rows for means.
**Accuracies are in percent** (0 to 100), as in the papers' tables. Where several groups of the same
number of tasks are added, `subset` names the group. `hits` tells of every image whether it was
answered, of a pair's maps on which images of either task the prediction changed (`images.packed`);
`table.tidy` refuses what is not listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasklab.tuning.methods import EDITS

COLUMNS = (
    "experiment", "model", "suite", "init", "method", "task", "subset", "split", "n_tasks", "seed",
    "metric", "alpha", "value", "n",
)  # fmt: skip
METHODS = ("pretrained", *EDITS, "probe")
MAKE = "make"  # further column of all recorded results: of the processor a row was measured on
# Merges beside the sum whose losses are crossed with all metrics: masks, singular directions, two
# quadratic distances (with images and without), and the best on the span.
LEADING_MERGES = ("ties", "tsv_m", "regmean", "wudi_exact", "best_span")
MEASURED = (  # columns that do not say which run a row is of
    "value", "n", "hits", "low", "middle", "high", "trials", "option", "size", "curvature",
    "distance", "bound", "second_order", MAKE,
)  # fmt: skip
ACCURACIES = ("single", "absolute", "target", "control")  # proportions of n images, in percent


@dataclass(frozen=True)
class Experiment:
    """One sort of records.

    Attributes:
        row: What a row is.
        metrics: Its metrics with their units; no unit is the empty string.
        columns: Further columns than `COLUMNS`.
    """

    row: str
    metrics: Mapping[str, str]
    columns: tuple[str, ...] = ()


def _in(unit: str, *metrics: str) -> dict[str, str]:
    return dict.fromkeys(metrics, unit)


_SHARES = _in("%", "absolute", "normalised")
_SUM = Experiment(
    "the sum of `n_tasks` vectors at the chosen `alpha` (the value of `lambda`, of all tasks)",
    {**_SHARES, "lambda": ""},
    ("vocabulary", "hits"),
)
_SCRATCH = ("pretraining", "finetuning", "lr", "finetuning_lr", "ratio", "replaced", "wider")
_LINEARITY = Experiment(
    "merged features against merged weights' on the segment, in the sum, ... of models; `distance` "
    "1 - cos, `coef` the coefficient, the others the models' own distances; quartiles over images",
    _in("", "distance", "coef", "base", "base_merged", "endpoint", "first"),
    ("block", "low", "middle", "high", *_SCRATCH),
)
_STITCHED = Experiment(
    "the pre-trained back on a `front` up to `block`", _in("%", "stitched"), ("block", "front")
)
EXPERIMENTS = {
    "single": Experiment(
        "one task vector at coefficient 1 on its own task; `pretrained`, `probe`: no vector",
        _in("%", "single"),
        ("vocabulary", "hits"),
    ),
    "addition": _SUM,
    "addition_fine": _SUM,  # at the best of finer coefficients
    "sweep": Experiment(
        "the sum at every `alpha`; `split` says on which images", _SHARES, ("vocabulary",)
    ),
    "negation": Experiment(
        "one vector subtracted; `task` is its target for both metrics",
        _in("%", "target", "control"),
        ("hits",),
    ),
    "joint": Experiment(
        "one model fine-tuned on all tasks together, on each", _in("%", "absolute"), ("hits",)
    ),
    "exact_negation": Experiment(
        "one vector subtracted in the linearized model, at the exact coefficient",
        _in("%", "target", "control"),
        ("hits",),
    ),
    "subsets": Experiment(
        "the mean over the tasks of `subset`, whose vectors are added", _SHARES, ("vocabulary",)
    ),
    "merging": Experiment(
        "vectors merged by `merge`, at the best of `trials` looks at validation images, with its "
        "`option`; what the tangent model loses (task `all`) relative to no edit",
        {**_SHARES, "objective": ""},
        ("merge", "trials", "option"),
    ),
    "merged": Experiment(
        "the vector that `merging` chose, `edited` in the network or the tangent model, against "
        "each task's own model; its length over theirs, and what it loses beside the best one",
        {
            **_SHARES,
            "xi_classifier": "%",
            "xi_representation": "nats",
            **_in("", "distance", "coef", "norm", "objective", "excess"),
        },
        ("merge", "edited", "option", "hits"),
    ),
    "merging_rates": Experiment(
        "a task's own vector, trained at the rate `lr`, and all of them merged",
        _in("%", "single", "absolute"),
        ("merge", "lr"),
    ),
    "penalty_strength": Experiment(
        "vectors trained with `penalty` times what keeps them apart: alone, and their sum",
        {**_in("%", "single", "absolute"), "diverged_at": "steps"},
        ("penalty",),
    ),
    "merging_cost": Experiment(
        "what a merge of `n_tasks` vectors takes, without the search for its coefficient; "
        "`memory_ratio` over the vectors' own; images passed, and looked at in the search",
        {
            "seconds": "s",
            "peak_memory": "MiB",
            "memory_ratio": "times",
            **_in("images", "passed", "searched"),
        },
        ("merge", "option"),
    ),
    "exact_alpha": Experiment(
        "the sum along `alpha`: between knots of the exact curve, and on the grid",
        _in("%", "normalised_exact", "normalised_grid", "chosen_exact", "chosen_grid"),
    ),
    "own_coefficients": Experiment(
        "the sum with one coefficient for all, and with one of each task's own, its `alpha`",
        _in("%", "absolute_shared", "absolute_own", "normalised_shared", "normalised_own"),
    ),
    "learning_rate": Experiment(
        "one vector, or probe, trained at the rate `lr`, on validation images",
        {"single": "%", "exact": "%", "diverged_at": "steps"},
        ("lr", "vocabulary"),
    ),
    "rate_search": Experiment(
        "one vector trained at the rate `lr`, on validation images",
        {"single": "%", "diverged_at": "steps"},
        ("lr",),
    ),
    "budget": Experiment(
        "vectors trained for `steps` at the rate `lr`: alone, summed, subtracted, their length, "
        "and one pair's error in the search box",
        {**_in("%", "single", "absolute", "target", "control", "xi_classifier_box"), "norm": ""},
        ("lr", "steps", "hits"),
    ),
    "disentanglement": Experiment(
        "error of a pair of tasks at two coefficients; with `_box` the mean over a square of them",
        {
            **_in("%", "xi_classifier", "xi_classifier_box", "xi_classifier_beyond"),
            **_in("nats", *(f"xi_representation{end}" for end in ("", "_box", "_beyond"))),
        },
        ("alpha1", "alpha2", "hits"),
    ),
    "search_box": Experiment(
        "error of a pair of tasks, the mean over 5 by 5 coefficients from 0 to 1",
        {"xi_classifier_box": "%", "xi_representation_box": "nats"},
        ("hits",),
    ),
    "pair_errors": Experiment(
        "what adding two vectors changes on their tasks' images", _in("%", "xi_pair", "lost")
    ),
    "crossing": Experiment(
        "a metric of the book for one task, a pair (`T1+T2`) or `all`: `n_tasks` says which; of "
        "`pair_errors` at the same `alpha`; `lost_sum` is `single` less `absolute`, "
        "`lost_ties`, ... the same of a merge of all",
        {
            **_in("%", "single", *_SHARES, "lost_sum", "target", "control", "xi_pair", "lost"),
            **_in("%", "xi_classifier", *(f"lost_{merge}" for merge in LEADING_MERGES)),
            "xi_representation": "nats",
            **_in("", "distance", "coef", "base", "cosine", "norm", "gap", "share"),
            "seconds_finetune": "s",
            "trainable": "parameters",
        },
    ),
    "localization": Experiment(
        "energy of eigenfunctions of one class (`subset`) on image `x` of a `side`, or its share",
        _in("", "energy", "share", "unseen_share"),
        ("side", "x"),
    ),
    "cosines": Experiment(
        "a vector against another task's, whole or in a part; its length over theta_0's",
        _in("", "cosine", "cosine_part", "norm"),
        ("other", "block", "projection"),
    ),
    "alignment": Experiment(
        "what vectors do to a task's inputs of one projection, relative to its own",
        _in("", "relative", "random"),
        ("part", "block", "projection"),
    ),
    "interference": Experiment(
        "what the others' vectors do to a task's features and accuracy",
        {
            **_in("", "predicted", "predicted_ratio", "change", "change_ratio"),
            **_in("%", "alone", "together", "lost"),
        },
    ),
    "linearity": Experiment(
        "remainder over linear part of the features, or of a block, at distance `alpha`",
        _in("", "gap", "gap_along", "gap_block"),
        ("size", "block"),
    ),
    "ctl": _LINEARITY,
    "ctl_addition": _LINEARITY,
    "ctl_negation": _LINEARITY,
    "ctl_sum": _LINEARITY,
    "ctl_average": _LINEARITY,
    "averaging": Experiment(
        "the mean of weights, and of logits, of the models in `subset`",
        _in("%", "averaged", "ensemble", "alone"),
        ("hits",),
    ),
    "stitched_addition": _STITCHED,
    "stitched_negation": _STITCHED,
    "segment": Experiment(
        "the model at `alpha` between the two of `subset`",
        {"accuracy": "%", "loss": "nats"},
        _SCRATCH,
    ),
    "theorem": Experiment(
        "both sides of theorem 5.1 for the models `one` and `other` of a `group`",
        _in("nats", "delta"),
        (*_SCRATCH, "group", "one", "other", "curvature", "distance", "bound", "second_order"),
    ),
    "cost": Experiment(
        "what a training step of one task takes, in `n` rounds; `time_ratio` over a standard one "
        "of the same round; quartiles over rounds",
        {
            "seconds_per_step": "s",
            "time_ratio": "times",
            "peak_memory": "MiB",
            "trainable": "parameters",
        },
        ("variant", "low", "high"),
    ),
    "closed_cost": Experiment(
        "what probing, fine-tuning and the search for coefficients took",
        {
            **_in("s", "seconds_features", "seconds_probe", "seconds_finetune"),
            **_in("s", "seconds_sweep", "seconds_subsets"),
            "tried": "",
        },
        ("vocabulary",),
    ),
}
UNITS = {name: unit for one in EXPERIMENTS.values() for name, unit in one.metrics.items()}
