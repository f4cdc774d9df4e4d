"""Chapter 2: fine-tuning the attention projections only."""

from tasklab.evidence.chapters.chapter import (
    ALL_PAIRS,
    HEADLINE,
    ICONS,
    TABLES,
    TRAINED,
    WORDNET,
    Chapter,
    Work,
    on,
)

METHODS = ("nonlinear", "posthoc", "linearized", "attention")
_FURTHER = ("attention_bias", "attention_mlp", "attention_mlp_bias")
_CUT = (*METHODS, "attention_posthoc")  # with models that were linearized after fine-tuning
_EDITING = (
    Work(_CUT, TABLES, seeds=HEADLINE),
    Work(_FURTHER, {"single": {}, "addition": {"n_tasks": (8,)}}),
)
_LAYERS = (
    Work(
        TRAINED,
        {"cosines": {}, "alignment": {}},
        metrics=("cosine", "norm", "predicted_ratio", "change_ratio", "lost"),
    ),
    Work(TRAINED, {"linear_gaps": {}}),
)

CHAPTER = Chapter(
    name="linear_layers",
    number=2,
    title="Fine-tuning the attention projections only",
    label="Linear layers",
    methods=METHODS,
    attention=True,
    boxes={"box": (0.0, 1.0), "beyond": (1.01, 2.0)},
    live=(
        Work(("nonlinear", "attention"), {"addition": {}, "cosines": {}}, page="example"),
        Work(TRAINED, {**TABLES, "disentanglement": {}, "cosines": {}, "linear_gaps": {}}),
        Work(("attention", *_FURTHER), TABLES),
        Work((), {"step_cost": {}}),
        Work(_CUT, TABLES, page="more"),
        Work(METHODS, {"disentanglement": {}}, page="more"),
        Work(TRAINED, {"alignment": {}}, page="more"),
        Work((), {"step_cost": {}}, page="more"),
    ),
    parts={
        "editing": _EDITING,
        "maps": (Work(METHODS, {"disentanglement": {"reach": 2.0, "points": 15}}),),
        "budgets": (Work(("attention",), {"budgets": {"lengths": None}}),),  # beside chapter 1's
        "lengths": (Work(("attention",), {"budgets": {"rates": None}}),),
        "cost": (Work((), {"step_cost": {}}),),
        "layers": _LAYERS,
        "icons": on(ICONS, *_EDITING, *_LAYERS),
        # what headlines compare, before all else; "wordnet" has it again
        "wordnet_sums": on(
            WORDNET,
            Work(
                ("attention",),
                {"single": {}, "addition": {"n_tasks": (8,)}, "search_box": {}},
                seeds=HEADLINE,
            ),
        ),
        "wordnet": on(WORDNET, *_EDITING, *_LAYERS),
    },
    elsewhere=(
        (
            "tangent",
            ("pretraining", "replicas", "icons_replicas"),
            ("single", "addition", "search_box"),
        ),
        ("tangent", ("wordnet",), ("search_box",)),
        ("tangent", ("wordnet_sums",), ("single", "addition", "search_box")),
        ("tangent", ("budgets", "icons_budgets", "wordnet_budgets"), ("budget",)),
        ALL_PAIRS,
    ),
    full_size=(
        "The paper trains all methods at one rate, and in CLIP attention-only vectors then add "
        "best. Here each method has its own rate."
    ),
)
