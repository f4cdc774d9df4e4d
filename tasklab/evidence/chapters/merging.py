"""Chapter 5: other ways of merging."""

import dataclasses

from tasklab.analyses.merging.registry import SOLVED
from tasklab.evidence.chapters.chapter import (
    BLIND,
    HEADLINE,
    ICON_REPLICAS,
    ICONS,
    LEADING,
    PENALISED,
    PROBED,
    REPLICAS,
    SORTS,
    TRAINED,
    WORDNET,
    Chapter,
    Names,
    Work,
    on,
)
from tasklab.models.zoo import FAMILIES

_LEAST = {"merges": tuple(n for n in SOLVED if n.startswith("least_")), "n_tasks": (8,)}
_LEAST_ICONS: Names = {
    "single": {},
    "merging": {
        "merges": ("arithmetic", "tsv_m", "regmean_plusplus", "least_few", "least_features"),
        "n_tasks": (8,),
    },
}
# What reads 256 unlabelled images of each task, beside the sum and the best that reads none.
_READING = {
    "merges": (
        "arithmetic",
        "tsv_m",
        "regmean_plusplus",
        "least_few",
        "distillation",
        "prodistill",
    ),
    "n_tasks": (8,),
}
_CLASS: Names = {"single": {}, "merging": _READING, "merge_loss": _READING}
_MERGED: Names = {"single": {}, "merging": {"n_tasks": (8,)}}
_EDITING = Work(("nonlinear",), _MERGED, seeds=HEADLINE)
# At recommended coefficients: nobody looks at an image.
_RECOMMENDED = Work(
    ("nonlinear",),
    {"single": {}, "recommended": {"merges": ("arithmetic", "ties", "tsv_m"), "n_tasks": (8,)}},
)
_JOINT = Work(("nonlinear",), {"joint": {}})
# Sums of sets of tasks at recommended coefficients, and at those that validation images choose.
_SUM = {"merges": ("arithmetic",)}
_RECOMMENDED_SETS: Names = {
    name: {**_SUM, "n_tasks": (2, 4, 8, 14, 20)} for name in ("merging", "recommended")
}
_RECOMMENDED_FEW: Names = {name: {**_SUM, "n_tasks": (2, 4, 8)} for name in _RECOMMENDED_SETS}
# Of every drawn set of the second world's tasks: curves over the number of tasks.
_CURVES = {"merges": ("arithmetic", "ties", "tsv_m", "regmean")}
_SETS: Names = {"single": {}, "merging": {**_CURVES, "n_tasks": (2, 4, 8)}}
_TEXT_SETS: Names = {
    "single": {},
    "merging": {**_CURVES, "n_tasks": (2, 4, 8, 12)},
    "recommended": {**_SUM, "n_tasks": (2, 4, 8, 12)},
}
_TEXT_EIGHTS: Names = {"single": {}, "merging": {**_SUM, "n_tasks": (8,)}}
_LARGE_SETS: Names = {"merging": {**_CURVES, "n_tasks": (14, 20)}}
_ERRORS: Names = {"crossing": {"merges": (), "kernels": False}}
_PREDICTED = ("arithmetic", "tsv_m", "ties", "regmean", "wudi", "consensus")
_BLIND = Work(
    ("nonlinear",),
    {"single": {}, "merging": {"merges": _PREDICTED, "n_tasks": (8,)}},
    seeds=HEADLINE,
)
_TWO_FOLD: Names = {"two_fold": {"n_tasks": (8,)}}
_TWO_FOLD_SETS: Names = {
    "two_fold": {"of": ("single",), "merges": ("arithmetic", "tsv_m"), "n_tasks": (8,)}
}
_SUMMED: Names = {"single": {}, "merging": {"merges": ("arithmetic", "tsv_m")}}
_SORTS = tuple(PROBED[role] for role in SORTS)
_ENCODERS = (*({"model": FAMILIES[0][role]} for role in ("small", "convnext", "closed")), *_SORTS)

CHAPTER = Chapter(
    name="merging",
    number=5,
    title="Other ways of merging",
    label="Merging",
    methods=("nonlinear",),
    live=(
        Work(("nonlinear",), {"single": {}, "merging": {}}, page="example"),
        Work(("nonlinear",), {"joint": {}}),
        Work(TRAINED, {"merging": {}}, role="small"),
        Work(("nonlinear",), {"merged": {}, "merging_cost": {}}, page="more"),
        Work(("nonlinear",), {"merging": {}}, role="closed", page="more"),
    ),
    parts={
        "editing": (_EDITING,),
        "fewer": (Work(("nonlinear",), {"single": {}, "merging": {"n_tasks": (2, 4)}}),),
        "ways": (
            Work(("linearized", "attention"), _MERGED),
            Work(PENALISED, {"single": {}, "merging": {"merges": LEADING, "n_tasks": (8,)}}),
            # of several pre-trainings that differ in their seed alone, too
            *(
                Work(
                    ("nonlinear",),
                    {"single": {}, "merging": {"merges": LEADING, "n_tasks": (2, 4, 8)}},
                    model,
                )
                for model in REPLICAS
            ),
        ),
        "icons_replicas": tuple(
            Work(("nonlinear",), {"single": {}, "merging": {"merges": LEADING, "n_tasks": (8,)}}, m)
            for m in ICON_REPLICAS
        ),
        "blind": (dataclasses.replace(_BLIND, changes=BLIND),),
        "encoders": tuple(Work(("nonlinear",), _MERGED, model) for model in _SORTS),
        "models": (
            Work(("nonlinear", "linearized"), {"merged": {"n_tasks": (8,)}}),
            Work(("nonlinear",), {"merging_cost": {}}, seeds=1),
        ),
        "minimum": (
            Work(
                ("nonlinear", "linearized"),
                {"merging": _LEAST, "merged": _LEAST, "merge_loss": {"n_tasks": (8,)}},
            ),
            # what labels choose, on the same machine
            Work(("nonlinear", "linearized"), {"merging": {"n_tasks": (8,)}}),
        ),
        "class": (Work(("nonlinear",), _CLASS),),
        "joint": (_JOINT,),
        "joint_ways": (Work(TRAINED[1:], {"joint": {}}),),
        "joint_encoders": tuple(Work(("nonlinear",), {"joint": {}}, model) for model in _SORTS),
        "rates": (Work(TRAINED, {"merging_rates": {}}),),
        "fewer_rates": (Work(TRAINED, {"merging_rates": {"merges": LEADING, "n_tasks": (2, 4)}}),),
        "strengths": (Work(PENALISED, {"penalty_strengths": {}}),),
        "distilled": (
            Work(("delta_even",), {"single": {}, "merging": {"merges": LEADING, "n_tasks": (8,)}}),
        ),
        "icons": on(ICONS, _EDITING, _JOINT),
        "icons_minimum": on(ICONS, Work(("nonlinear",), _LEAST_ICONS)),
        # drawings by the teams of the training drawings, without the shift of the test drawings
        "icons_two_fold": on(
            ICONS,
            Work(
                ("nonlinear",),
                {"two_fold": {"merges": _PREDICTED, "n_tasks": (8,)}},
                seeds=HEADLINE,
            ),
            Work(("posthoc", "linearized", "attention"), _TWO_FOLD, seeds=HEADLINE),
        ),
        "icons_two_fold_sets": (Work(TRAINED, _TWO_FOLD_SETS, ICONS, tasks="all"),),
        "icons_class": on(ICONS, Work(("nonlinear",), _CLASS)),
        # what is predicted of this world, before all else; "wordnet" has it again
        "wordnet_sums": on(WORDNET, _BLIND),
        "wordnet": on(WORDNET, _EDITING, _JOINT),
        "wordnet_minimum": on(WORDNET, Work(("nonlinear",), _LEAST_ICONS)),
        "recommended": (_RECOMMENDED,),
        "recommended_sets": (Work(TRAINED, _RECOMMENDED_FEW, tasks="all"),),
        "icons_recommended": on(ICONS, _RECOMMENDED),
        "icons_recommended_sets": (Work(("nonlinear",), _RECOMMENDED_SETS, ICONS, tasks="all"),),
        "wordnet_recommended": on(WORDNET, _RECOMMENDED),
        "wordnet_class": on(WORDNET, Work(("nonlinear",), _CLASS)),
        "wordnet_pairs": on(WORDNET, Work(TRAINED, _ERRORS)),
        # sums of eight, before all else; "wordnet_sets" has them again
        "wordnet_eights": (Work(("nonlinear",), _TEXT_EIGHTS, WORDNET, tasks="all"),),
        "wordnet_sets": (Work(("nonlinear",), _TEXT_SETS, WORDNET, tasks="all"),),
        "wordnet_sets_ways": (Work(("linearized", "attention"), _SUMMED, WORDNET, tasks="all"),),
        "sets": (Work(("nonlinear",), _SETS, ICONS, tasks="all"),),
        "sets_large": (Work(("nonlinear",), _LARGE_SETS, ICONS, tasks="all"),),
        "sets_ways": (Work(("linearized", "attention"), _SUMMED, ICONS, tasks="all"),),
        "pairs": (Work(TRAINED, _ERRORS, ICONS, tasks="all"),),
        "matrix": (
            Work(("nonlinear", "posthoc", "linearized", "attention", *PENALISED), {"crossing": {}}),
            *(Work(("nonlinear",), {"crossing": {}}, model) for model in _ENCODERS),
        ),
    },
    full_size=(
        "In published tables RegMean is less accurate, and TIES and WUDI are more accurate. They "
        "also have 14 and 20 tasks."
    ),
)
