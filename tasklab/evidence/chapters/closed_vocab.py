"""Chapter 4: models without a text tower."""

from typing import Literal

from tasklab.evidence.chapters.chapter import (
    ALL_PAIRS,
    HEADLINE,
    ICONS,
    ONE_PAIR,
    PROBED,
    RANDOM,
    SCHEMES,
    SORTS,
    THREE_PAIRS,
    WORDNET,
    XI,
    XI_BOX,
    Chapter,
    Names,
    Work,
)
from tasklab.models.zoo import FAMILIES
from tasklab.tuning.methods import JOINT

_SORTS = tuple(PROBED[role] for role in SORTS)
_DRAWINGS = {**ICONS, "head": "probe"}
_DEFINITIONS = {**WORDNET, "head": "probe"}
_UNTRAINED = {**PROBED["sup_few"], **RANDOM}
_TABLE = (*PROBED.values(), _UNTRAINED)
_OPEN = {"model": FAMILIES[0]["medium"]}
_SHARES = ("single", "absolute", "normalised", "lambda")  # without the seconds they took
_SUMS: Names = {"closed_addition": {}}
_SUBSETS: Names = {"subsets": {"most": 10}}  # of each size, where every sum takes passes of its own
_RATES: Names = {"learning_rates": {"rates": (1e-5, 1e-4, 1e-3, 1e-2)}}
_PAGES: tuple[tuple[Literal["chapter", "more"], Names], ...] = (
    ("chapter", {**_SUMS, **ONE_PAIR}),
    ("more", {**_SUMS, "cross_task": {"alphas": (0.5,)}}),
)

CHAPTER = Chapter(
    name="closed_vocab",
    number=4,
    title="Models without a text tower",
    label="Closed vocabulary",
    methods=("nonlinear", JOINT),
    apart=True,
    boxes={"box": (-1.0, 1.0)},
    elsewhere=(ALL_PAIRS,),
    # A model without relatives is the only one, of the role "".
    live=(
        *(
            Work(
                ("nonlinear", JOINT) if role in ("", SCHEMES[0]) else ("nonlinear",),
                names,
                role=role,
                probed=bool(role),
                full=role not in ("", *SORTS),
                page=page,
            )
            for page, names in _PAGES
            for role in ("", *SCHEMES)
        ),
        *(
            Work(("nonlinear",), _SUMS, role=role, probed=bool(role), page="example")
            for role in ("", "clip_more")
        ),
        *(
            Work(("probe", "nonlinear"), _RATES, role=role, probed=bool(role), page="more")
            for role in ("", SCHEMES[0])
        ),
    ),
    parts={
        "editing": (
            *(Work((), {"probing": {}}, m, seeds=HEADLINE) for m in _TABLE),
            *(Work(("nonlinear",), _SUMS, m, seeds=HEADLINE, metrics=_SHARES) for m in _TABLE),
        ),
        "together": tuple(Work((JOINT,), _SUMS, m, metrics=_SHARES) for m in PROBED.values()),
        "rates": tuple(
            Work(("nonlinear", JOINT), {"rate_search": {}}, model, seeds=1) for model in _SORTS
        ),
        "maps": (
            *(Work(("nonlinear",), ONE_PAIR, m, metrics=XI) for m in PROBED.values()),
            *(Work((JOINT,), ONE_PAIR, m, metrics=XI) for m in _SORTS),
            Work(("nonlinear",), ONE_PAIR, _UNTRAINED, metrics=XI),
        ),
        # three pairs of tasks where `maps` has one
        "boxes": tuple(
            Work(("nonlinear",), THREE_PAIRS, m, metrics=XI_BOX)
            for m in (_UNTRAINED, *PROBED.values())
        ),
        "open": (
            Work((), {"probing": {}}, _OPEN),
            Work(("nonlinear", JOINT), _SUMS, _OPEN, metrics=_SHARES),
        ),
        "icons": (
            Work((), {"probing": {}}, _DRAWINGS),
            Work(("nonlinear", JOINT), _SUMS, _DRAWINGS, metrics=_SHARES),
        ),
        "wordnet": (
            Work((), {"probing": {}}, _DEFINITIONS),
            Work(("nonlinear", JOINT), _SUMS, _DEFINITIONS, metrics=_SHARES),
        ),
        "subsets": (
            *(Work((JOINT,), _SUBSETS, PROBED[r]) for r in (*SORTS, "sup_many", "sup_large")),
            *(
                Work((method,), _SUBSETS, PROBED[role])
                for method in ("nonlinear", "linearized")
                for role in ("sup_few", "clip_more")
            ),
        ),
        "search": tuple(
            Work(("probe", "nonlinear", JOINT), {"learning_rates": {}}, model) for model in _SORTS
        ),
        "beyond": (
            *(
                Work(("linearized", "posthoc", "attention"), _SUMS, PROBED[role], metrics=_SHARES)
                for role in ("sup_few", "dino", "clip_more")
            ),
            *(
                Work(("nonlinear",), {"cross_task": {"alphas": (0.5,)}}, model)
                for model in PROBED.values()
            ),
        ),
    },
    full_size=(
        "The paper's encoders are pre-trained on ImageNet and LAION. Our masked autoencoder and "
        "supervised encoders are weaker."
    ),
)
