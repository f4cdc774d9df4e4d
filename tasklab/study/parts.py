"""What is recorded of each chapter: the experiments of every part, on which models and seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tasklab.chapters import CHAPTERS, SCHEMES, SORTS
from tasklab.chapters import chapter as chapter_of
from tasklab.errors import choose
from tasklab.models.zoo import FAMILIES, MODELS
from tasklab.records.comparisons import conditions
from tasklab.records.judgement import REPLICA
from tasklab.records.schema import LEADING_MERGES
from tasklab.tuning.methods import JOINT

PARADIGMS = ("attention", "attention_bias", "attention_mlp", "attention_mlp_bias")


@dataclasses.dataclass(frozen=True)
class Work:
    """Experiments on one model.

    Attributes:
        methods: What they compare; none for an experiment that fine-tunes nothing.
        names: Of the experiments in `tasklab.experiments`, each with its options.
        changes: Of the study's parameters, e.g. another model.
        seeds: The first so many of the study's seeds.
        metrics: Only these metrics are recorded; `None` for all.
    """

    methods: Sequence[str]
    names: Mapping[str, Mapping[str, Any]]
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int = 3
    metrics: Sequence[str] | None = None


HEADLINE = 5  # seeds of the tables of addition and negation; three for all else
_TANGENT = CHAPTERS["tangent"].methods
_TRAINED = ("nonlinear", "linearized", "attention")
_PENALISED = ("tau_jp", "ortho_reg", "off_diagonal")
_TABLES = {"single": {}, "addition": {}}
_ONE_PAIR = {"disentanglement": {"n_pairs": 1}}
# The paper's further models: sizes, a convolutional network, a closed vocabulary. Of each: what is
# compared in sums, and what in maps.
FAMILY = {
    "mini_s": (_TANGENT, ("nonlinear", "posthoc")),
    "mini_xs": (_TANGENT, ("nonlinear", "posthoc")),
    "mini_convnext": (("nonlinear", "linearized"), ("nonlinear", "linearized")),
    "mini_sup_few": (("nonlinear", "linearized"), ("nonlinear", "posthoc")),
}
_TEXT = {"model": "mini_t5"}
_XI = ("xi_classifier",)
# Cross-task linearity in the middle of all pairs, and what it may foretell.
_PAIRS = {"cross_task": {"alphas": (0.5,)}, "pair_errors": {"coefficients": (0.5,)}}
_NETWORKS = tuple({"network": name, "wider": n} for name in ("mlp", "resnet18") for n in (1, 4))
_RANDOM = {"init": "random"}
# What grows with pre-training, and what depends on its seed: the headline quantities.
_HEADLINES = {
    **{"single": {}, "addition": {"n_tasks": (8,)}, "negation": {}},
    **{"search_box": {}, "cross_task": {"alphas": (0.5,)}},
}
_OVER_RATES, _OVER_LENGTHS = {"budgets": {"lengths": None}}, {"budgets": {"rates": None}}
_LENGTHS = ("mini_3", "mini_10", "mini_30", "mini")
# Pre-training schemes with probed heads: all of them, and one of each sort.
_PROBED = {role: {"model": FAMILIES[0][role], "head": "probe"} for role in SCHEMES}
_SORTS = {role: _PROBED[role] for role in SORTS}
_UNTRAINED = {**_PROBED["sup_few"], **_RANDOM}
_SHARES = ("single", "absolute", "normalised", "lambda")  # without the seconds they took
_SUMS = {"closed_addition": {}}
# Merges of all tasks; of several pre-trainings that differ in their seed alone, too.
_MERGED = {"single": {}, "merging": {"n_tasks": (8,)}}
_LEADING = ("arithmetic", *LEADING_MERGES)
_LEADING_MERGED = {"single": {}, "merging": {"merges": _LEADING, "n_tasks": (8,)}}
_REPLICATED = {"single": {}, "merging": {"merges": _LEADING, "n_tasks": (2, 4, 8)}}
_ENCODERS = (
    *({"model": FAMILIES[0][role]} for role in ("small", "convnext", "closed")),
    *_SORTS.values(),
)
_REPLICAS = tuple({"model": name} for name in MODELS if REPLICA.search(name))
_SUBSETS = {"subsets": {"most": 10}}  # of each size, where every sum takes passes of its own
PARTS: dict[str, dict[str, tuple[Work, ...]]] = {
    "tangent": {
        "editing": (
            Work(_TANGENT, {"single": {}, "addition": {}, "negation": {}}, seeds=HEADLINE),
            Work(_TANGENT, {"own_coefficients": {}}),
            Work(("posthoc", "linearized"), {"exact_negation": {}}, seeds=HEADLINE),
            Work(("posthoc", "linearized"), {"exact_alpha": {}}),
        ),
        "rates": (Work((*_TRAINED, "attention_mlp"), {"rate_search": {}}, seeds=1),),
        "text_rates": (Work(("nonlinear", "linearized"), {"rate_search": {}}, _TEXT, seeds=1),),
        # what is compared at equal accuracy is along rates alone
        "budgets": (Work(_TANGENT, _OVER_RATES),),
        "lengths": (Work(_TANGENT, _OVER_LENGTHS),),
        "pretraining": (
            *(Work((*_TRAINED, "posthoc"), _HEADLINES, {"model": m}) for m in _LENGTHS),
        ),
        "replicas": (*(Work((*_TRAINED, "posthoc"), _HEADLINES, model) for model in _REPLICAS),),
        "family": (
            *(Work(sums, _TABLES, {"model": m}) for m, (sums, _) in FAMILY.items()),
            Work(("nonlinear", "linearized"), _TABLES, _RANDOM),
            *(Work(maps, _ONE_PAIR, {"model": m}, metrics=_XI) for m, (_, maps) in FAMILY.items()),
            Work(("nonlinear",), _ONE_PAIR, _RANDOM, metrics=_XI),
        ),
        "maps": (Work(_TANGENT, {"disentanglement": {}}, metrics=_XI),),
        "text": (
            Work(("nonlinear",), _TABLES, _TEXT),
            Work(("nonlinear", "linearized"), _ONE_PAIR, _TEXT, metrics=_XI),
        ),
        "kernels": (Work((), {"localization": {}}),),
    },
    "linear_layers": {
        "editing": (
            Work(
                (*CHAPTERS["linear_layers"].methods, "attention_posthoc"), _TABLES, seeds=HEADLINE
            ),
            Work(PARADIGMS[1:], {"single": {}, "addition": {"n_tasks": (8,)}}),
        ),
        "maps": (
            Work(
                CHAPTERS["linear_layers"].methods, {"disentanglement": {"reach": 2.0, "points": 15}}
            ),
        ),
        "budgets": (Work(("attention",), _OVER_RATES),),  # beside those of chapter 1
        "lengths": (Work(("attention",), _OVER_LENGTHS),),
        "cost": (Work((), {"step_cost": {}}),),
        "layers": (
            Work(
                _TRAINED,
                {"cosines": {}, "alignment": {}},
                metrics=("cosine", "norm", "predicted_ratio", "change_ratio", "lost"),
            ),
            Work(_TRAINED, {"linear_gaps": {}}),
        ),
    },
    "ctl": {
        "editing": (
            Work(
                ("nonlinear",),
                {"cross_task_addition": {}, "cross_task_negation": {}, "cross_task_sum": {}},
            ),
            Work(("nonlinear",), {"cross_task_sum": {"coefficient": 0.1}}),  # 9 of it: inside
            Work((), {"averaging": {}}),
        ),
        "methods": (
            Work(
                CHAPTERS["ctl"].methods,
                _PAIRS,
                metrics=("distance", "base", "coef", "endpoint", "xi_pair", "lost"),
            ),
            Work(("nonlinear",), _PAIRS, {"model": "mini_sup_few"}),
        ),
        "text": (
            Work(
                ("nonlinear",),
                {"cross_task_addition": {}, "cross_task_negation": {}},
                _TEXT,
            ),
        ),
        "stitching": (
            Work(
                ("nonlinear",),
                {"stitched_addition": {"n_pairs": 10}, "stitched_negation": {"n_tasks": 8}},
            ),
        ),
        "scratch": (
            *(Work((), {"scratch_linearity": net, "segments": net}) for net in _NETWORKS),
            *(Work((), {"emergence": {"what": k, "values": v}}) for k, v in conditions().items()),
        ),
        "theorem": (*(Work((), {"theorem": {"network": name}}) for name in ("mlp", "resnet18")),),
    },
    "closed_vocab": {
        "editing": (
            *(Work((), {"probing": {}}, model) for model in (*_PROBED.values(), _UNTRAINED)),
            *(Work(("nonlinear",), _SUMS, m, metrics=_SHARES) for m in _PROBED.values()),
            Work(("nonlinear",), _SUMS, _UNTRAINED, metrics=_SHARES),
        ),
        "together": (*(Work((JOINT,), _SUMS, m, metrics=_SHARES) for m in _PROBED.values()),),
        "rates": (
            *(
                Work(("nonlinear", JOINT), {"rate_search": {}}, model, seeds=1)
                for model in _SORTS.values()
            ),
        ),
        "maps": (
            *(Work(("nonlinear",), _ONE_PAIR, m, metrics=_XI) for m in _PROBED.values()),
            *(Work((JOINT,), _ONE_PAIR, m, metrics=_XI) for m in _SORTS.values()),
            Work(("nonlinear",), _ONE_PAIR, _UNTRAINED, metrics=_XI),
        ),
        "open": (
            Work((), {"probing": {}}, {"model": FAMILIES[0]["medium"]}),
            Work(("nonlinear", JOINT), _SUMS, {"model": FAMILIES[0]["medium"]}, metrics=_SHARES),
        ),
        "subsets": (
            *(
                Work((JOINT,), _SUBSETS, _PROBED[role])
                for role in (*_SORTS, "sup_many", "sup_large")
            ),
            *(
                Work((method,), _SUBSETS, _PROBED[role])
                for method in ("nonlinear", "linearized")
                for role in ("sup_few", "clip_more")
            ),
        ),
        "search": (
            *(
                Work(("probe", "nonlinear", JOINT), {"learning_rates": {}}, model)
                for model in _SORTS.values()
            ),
        ),
        "beyond": (
            *(
                Work(("linearized", "posthoc", "attention"), _SUMS, _PROBED[role], metrics=_SHARES)
                for role in ("sup_few", "dino", "clip_more")
            ),
            *(
                Work(("nonlinear",), {"cross_task": {"alphas": (0.5,)}}, model)
                for model in _PROBED.values()
            ),
        ),
    },
    "merging": {
        "editing": (Work(("nonlinear",), _MERGED, seeds=HEADLINE),),
        "fewer": (Work(("nonlinear",), {"single": {}, "merging": {"n_tasks": (2, 4)}}),),
        "ways": (
            Work(("linearized", "attention"), _MERGED, seeds=3),
            Work(_PENALISED, _LEADING_MERGED, seeds=3),
            *(Work(("nonlinear",), _REPLICATED, model, 3) for model in _REPLICAS),
        ),
        "encoders": (*(Work(("nonlinear",), _MERGED, model) for model in _SORTS.values()),),
        "joint": (Work(_TRAINED, {"joint": {}}),),
        "joint_encoders": (
            *(Work(("nonlinear",), {"joint": {}}, model) for model in _SORTS.values()),
        ),
        "models": (
            Work(("nonlinear", "linearized"), {"merged": {"n_tasks": (8,)}}, seeds=3),
            Work(("nonlinear",), {"merging_cost": {}}, seeds=1),
        ),
        "rates": (Work(_TRAINED, {"merging_rates": {}}, seeds=3),),
        "fewer_rates": (
            Work(_TRAINED, {"merging_rates": {"merges": _LEADING, "n_tasks": (2, 4)}}, seeds=3),
        ),
        "strengths": (Work(_PENALISED, {"penalty_strengths": {}}, seeds=3),),
        "matrix": (
            Work((*_TANGENT, "attention", *_PENALISED), {"crossing": {}}, seeds=3),
            *(Work(("nonlinear",), {"crossing": {}}, model, 3) for model in _ENCODERS),
        ),
    },
}


def works_of(chapter: str, part: str) -> tuple[Work, ...]:
    """Return a part's work, or raise a `TasklabError` with the nearest name."""
    choose(f"part of chapter {chapter!r},", part, chapter_of(chapter).parts)
    return PARTS[chapter][part]
