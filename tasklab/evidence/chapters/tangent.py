"""Chapter 1: fine-tuning in the tangent space."""

from tasklab.evidence.chapters.chapter import (
    ALL_PAIRS,
    BLIND,
    HEADLINE,
    ICON_REPLICAS,
    ICONS,
    ONE_PAIR,
    RANDOM,
    REPLICAS,
    TABLES,
    TEXT,
    THREE_PAIRS,
    TRAINED,
    WORDNET,
    XI,
    XI_BOX,
    Chapter,
    Names,
    Work,
    on,
)

METHODS = ("nonlinear", "posthoc", "linearized")
_LINEAR = ("posthoc", "linearized")
# What grows with pre-training, and what depends on its seed: the headline quantities.
_HEADLINES: Names = {
    **{"single": {}, "addition": {"n_tasks": (8,)}, "negation": {}},
    **{"search_box": {}, "cross_task": {"alphas": (0.5,)}},
}
# The paper's further models: sizes, a convolutional network, a closed vocabulary. Of each: what is
# compared in sums, and what in maps.
_FAMILY = {
    "mini_s": (METHODS, ("nonlinear", "posthoc")),
    "mini_xs": (METHODS, ("nonlinear", "posthoc")),
    "mini_convnext": (("nonlinear", "linearized"), ("nonlinear", "linearized")),
    "mini_sup_few": (("nonlinear", "linearized"), ("nonlinear", "posthoc")),
}
_MAP: Names = {"disentanglement": {}}
_EDITING = (
    Work(METHODS, {"single": {}, "addition": {}, "negation": {}}, seeds=HEADLINE),
    Work(METHODS, {"own_coefficients": {}}),
    Work(_LINEAR, {"exact_negation": {}}, seeds=HEADLINE),
    Work(_LINEAR, {"exact_alpha": {}}),
)
_MAPS = Work(METHODS, _MAP, metrics=XI)
# Grids of the third world, fixed beforehand (book/protocol.md).
TEXT_RATES = (2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4, 8e-4)
LINEARIZED_TEXT_RATES = (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3)
_SEARCHED_LINEARIZED = LINEARIZED_TEXT_RATES[:4]  # goes on while the last is the best


def _searched(rates: tuple[float, ...]) -> Names:
    return {"rate_search": {"rates": rates}}


def _along(rates: tuple[float, ...]) -> Names:
    return {"budgets": {"lengths": None, "rates": rates}}


CHAPTER = Chapter(
    name="tangent",
    number=1,
    title="Fine-tuning in the tangent space",
    label="Tangent space",
    methods=METHODS,
    live=(
        Work(("nonlinear", "linearized"), {"addition": {}}, page="example"),
        Work(METHODS, {"single": {}, "addition": {}, "negation": {}, **ONE_PAIR}),
        Work(("nonlinear",), _MAP, role="random"),
        Work((), {"localization": {}}),
        Work(METHODS, {"single": {}, "addition": {}, **_MAP}, page="more"),
        Work(METHODS, {"own_coefficients": {}}, page="more"),
        Work(("linearized",), {"exact_alpha": {}}, page="more"),
        *(
            Work(("nonlinear", "posthoc"), _MAP, role=role, page="more")
            for role in ("small", "medium", "large", "closed")
        ),
        Work(("nonlinear", "linearized"), {"single": {}}, role="random", page="more"),
        Work(("nonlinear", "linearized"), _MAP, role="convnext", page="more"),
        Work(("nonlinear", "linearized"), {"single": {}, **_MAP}, role="text", page="more"),
    ),
    parts={
        "editing": _EDITING,
        "rates": (Work((*TRAINED, "attention_mlp"), {"rate_search": {}}, seeds=1),),
        "text_rates": (Work(("nonlinear", "linearized"), {"rate_search": {}}, TEXT, seeds=1),),
        # what is compared at equal accuracy is along rates alone
        "budgets": (
            Work(METHODS, {"budgets": {"lengths": None}}),
            # whose sum is best at the last of the usual rates
            Work(("linearized",), {"budgets": {"lengths": None, "rates": (3.2e-3,)}}),
        ),
        "lengths": (Work(METHODS, {"budgets": {"rates": None}}),),
        "pretraining": tuple(
            Work((*TRAINED, "posthoc"), _HEADLINES, {"model": model}, seeds=n)
            for model, n in (("mini_3", 3), ("mini_10", 3), ("mini_30", 3), ("mini", HEADLINE))
        ),
        "replicas": tuple(Work((*TRAINED, "posthoc"), _HEADLINES, model) for model in REPLICAS),
        "family": (
            *(Work(sums, TABLES, {"model": m}) for m, (sums, _) in _FAMILY.items()),
            Work(("nonlinear", "linearized"), TABLES, RANDOM),
            *(Work(maps, ONE_PAIR, {"model": m}, metrics=XI) for m, (_, maps) in _FAMILY.items()),
            Work(("nonlinear",), ONE_PAIR, RANDOM, metrics=XI),
        ),
        # three pairs of tasks where `family` and `text` have one
        "family_boxes": (
            *(
                Work(maps, THREE_PAIRS, {"model": m}, metrics=XI_BOX)
                for m, (_, maps) in _FAMILY.items()
            ),
            Work(("nonlinear",), THREE_PAIRS, RANDOM, metrics=XI_BOX),
            Work(("nonlinear", "linearized"), THREE_PAIRS, TEXT, metrics=XI_BOX),
        ),
        "maps": (_MAPS,),
        "pair": (Work(("nonlinear",), ONE_PAIR, metrics=XI),),  # on the make of others' in `family`
        "text": (
            Work(("nonlinear",), TABLES, TEXT),
            Work(("nonlinear", "linearized"), ONE_PAIR, TEXT, metrics=XI),
        ),
        "kernels": (Work((), {"localization": {}}),),
        "icons": on(ICONS, *_EDITING),
        "icons_maps": on(ICONS, _MAPS),
        "icons_replicas": tuple(
            Work((*TRAINED, "posthoc"), _HEADLINES, model) for model in ICON_REPLICAS
        ),
        "blind": (Work((*TRAINED, "posthoc"), _HEADLINES, BLIND, seeds=HEADLINE),),
        # what headlines compare, before all else; "wordnet" has it again
        "wordnet_sums": on(
            WORDNET,
            Work(METHODS, {"single": {}, "addition": {"n_tasks": (8,)}}, seeds=HEADLINE),
            Work(("nonlinear", "linearized"), {"negation": {}, "search_box": {}}, seeds=HEADLINE),
        ),
        "wordnet": on(
            WORDNET, *_EDITING, Work((*METHODS, "attention"), {"search_box": {}}, seeds=HEADLINE)
        ),
        "wordnet_rates": on(
            WORDNET,
            Work(("nonlinear", "attention"), _searched(TEXT_RATES), seeds=1),
            Work(("linearized",), _searched(_SEARCHED_LINEARIZED), seeds=1),
        ),
        "wordnet_rates_mlp": on(WORDNET, Work(("attention_mlp",), _searched(TEXT_RATES), seeds=1)),
        "wordnet_budgets": on(
            WORDNET,
            Work(("nonlinear", "posthoc", "attention"), _along(TEXT_RATES)),
            Work(("linearized",), _along(LINEARIZED_TEXT_RATES)),
        ),
        "wordnet_maps": on(WORDNET, _MAPS),
        "icons_budgets": on(ICONS, Work((*METHODS, "attention"), {"budgets": {"lengths": None}})),
    },
    elsewhere=(("linear_layers", ("cost",), ("cost",)), ALL_PAIRS),
    full_size=(
        "The gaps that the paper prints for CLIP are larger: linearized vectors forget more, and "
        "post-hoc linearization loses more."
    ),
)
