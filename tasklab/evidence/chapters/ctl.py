"""Chapter 3: cross-task linearity."""

from tasklab.evidence.chapters.chapter import (
    HEADLINE,
    ICONS,
    TEXT,
    TRAINED,
    WORDNET,
    Chapter,
    Names,
    Work,
    on,
)

# Cross-task linearity in the middle of all pairs, and what it may foretell.
_PAIRS: Names = {"cross_task": {"alphas": (0.5,)}, "pair_errors": {"coefficients": (0.5,)}}
_SUMS: Names = {"cross_task_addition": {}, "cross_task_negation": {}}
_STITCHED: Names = {"stitched_addition": {}, "stitched_negation": {}}
_EXAMPLE: Names = {"cross_task": {}, "cross_task_addition": {}, "stitched_addition": {"block": -1}}
_FURTHER: Names = {"cross_task": {}, "averaging": {}, **_STITCHED, "cross_task_sum": {}}
_LIVE = ({"network": "mlp"}, {"network": "resnet18"})
_NETWORKS = tuple({"network": name, "wider": n} for name in ("mlp", "resnet18") for n in (1, 4))
_CONDITIONS = ("pretraining", "finetuning", "pretraining samples", "other samples")
_EMERGENCE = tuple(Work((), {"emergence": {"what": what}}) for what in _CONDITIONS)
_EDITING = (
    Work(("nonlinear",), {**_SUMS, "cross_task_sum": {}}, seeds=HEADLINE),
    # nine times 0.1: inside
    Work(("nonlinear",), {"cross_task_sum": {"coefficient": 0.1}}, seeds=HEADLINE),
    Work((), {"averaging": {}}, seeds=HEADLINE),
)
_METHODS = Work(
    TRAINED,
    _PAIRS,
    seeds=HEADLINE,
    metrics=("distance", "base", "coef", "endpoint", "xi_pair", "lost"),
)
_STITCHING = Work(
    ("nonlinear",), {"stitched_addition": {"n_pairs": 10}, "stitched_negation": {"n_tasks": 8}}
)

CHAPTER = Chapter(
    name="ctl",
    number=3,
    title="Cross-task linearity",
    label="Cross-task linearity",
    methods=("nonlinear", "linearized", "attention"),
    live=(
        Work(("nonlinear",), _EXAMPLE, pair=True, page="example"),
        Work(("nonlinear",), {**_PAIRS, **_SUMS, **_STITCHED, "averaging": {}}),
        *_EMERGENCE,
        Work(("nonlinear",), _FURTHER, page="more"),
        *(Work((), {"scratch_linearity": net, "segments": net}, page="more") for net in _LIVE),
        *(Work((), {"theorem": net}, page="more") for net in _LIVE),
        Work(TRAINED, {"cross_task": {}}, role="small", page="more"),
        Work(("nonlinear",), {"cross_task": {}}, role="sup_few", page="more"),
        Work(("nonlinear",), _SUMS, role="text", page="more"),
    ),
    parts={
        "editing": _EDITING,
        "methods": (_METHODS, Work(("nonlinear",), _PAIRS, {"model": "mini_sup_few"})),
        "text": (Work(("nonlinear",), _SUMS, TEXT),),
        "stitching": (_STITCHING,),
        "scratch": (
            *(Work((), {"scratch_linearity": net, "segments": net}) for net in _NETWORKS),
            *_EMERGENCE,
        ),
        "theorem": tuple(Work((), {"theorem": {"network": n}}) for n in ("mlp", "resnet18")),
        "icons": on(ICONS, *_EDITING, _METHODS, _STITCHING),
        # what headlines compare, before all else; "wordnet" has it again
        "wordnet_sums": on(
            WORDNET, Work(("nonlinear",), {"cross_task": {"alphas": (0.5,)}}, seeds=HEADLINE)
        ),
        "wordnet": on(WORDNET, *_EDITING, _METHODS, _STITCHING),
    },
    elsewhere=(("tangent", ("pretraining", "replicas", "icons_replicas"), ("ctl",)),),
    full_size=(
        "The paper measures the features of 12 or 24 blocks on 10,000 images for each pair of "
        "tasks, and averages more models."
    ),
)
