"""The names that can be chosen: methods, models and their families, suites, heads, presets."""

from __future__ import annotations

import re

from tasklab.errors import unknown

METHODS = (
    "nonlinear",
    "linearized",
    "attention",
    "attention_bias",
    "attention_mlp",
    "attention_mlp_bias",
)
# Post-hoc: the vector of another method, used in the linearized model.
POSTHOC = {"posthoc": "nonlinear", "attention_posthoc": "attention"}
# Encoder and head together: method `nonlinear` with a head that trains (closed vocabulary, app. G).
FULL = "full"
EDITS = (*METHODS, *POSTHOC, FULL)
MODELS = (
    "mini", "vitb32", "vitb16", "vitl14", "convnext", "vitb16_in1k", "t5_base",
    "mini_s", "mini_xs", "mini_convnext", "mini_sup_few", "mini_t5",
    "vitb16_in21k", "vitl16_in21k", "mae_b16", "dino_b16",
    "clip_b16_laion400m", "clip_b16_laion2b", "clip_l14_laion2b",
    "mini_few", "mini_many", "mini_mae", "mini_dino",
    "mini_clip_less", "mini_clip_more", "mini_clip_large",
)  # fmt: skip
TIMM = "timm/"  # before the name of any model of timm's: one without a text tower
TEXT_MODELS = ("t5_base", "mini_t5")
CLOSED_MODELS = (  # without a text tower
    "vitb16_in1k", "vitb16_in21k", "vitl16_in21k", "mae_b16", "dino_b16",
    "clip_b16_laion400m", "clip_b16_laion2b", "clip_l14_laion2b",
    "mini_sup_few", "mini_few", "mini_many", "mini_mae", "mini_dino",
    "mini_clip_less", "mini_clip_more", "mini_clip_large",
)  # fmt: skip
# Models that a chapter compares, by role. From `sup_few` on, they are the schemes of the
# closed-vocabulary paper, table 2: `few` and `many` classes, CLIP on `less` and on `more` data.
FAMILIES = (
    {
        "small": "mini_xs",
        "medium": "mini_s",
        "large": "mini",
        "convnext": "mini_convnext",
        "closed": "mini_sup_few",
        "text": "mini_t5",
        "sup_few": "mini_few",
        "sup_many": "mini_many",
        "mae": "mini_mae",
        "dino": "mini_dino",
        "clip_less": "mini_clip_less",
        "clip_more": "mini_clip_more",
        "sup_large": "mini_sup_few",  # on few classes; the paper's is on many
        "clip_large": "mini_clip_large",
    },
    {
        "small": "vitb32",
        "medium": "vitb16",
        "large": "vitl14",
        "convnext": "convnext",
        "closed": "vitb16_in1k",
        "text": "t5_base",
        "sup_few": "vitb16_in1k",
        "sup_many": "vitb16_in21k",
        "mae": "mae_b16",
        "dino": "dino_b16",
        "clip_less": "clip_b16_laion400m",
        "clip_more": "clip_b16_laion2b",
        "sup_large": "vitl16_in21k",
        "clip_large": "clip_l14_laion2b",
    },
)
SUITES = ("mini", "mini_text", "paper")
OWN = "own"  # the suite of the tasks that a Lab is given, in place of one of these
HEADS = ("zero_shot", "trained", "probe", "zero_shot_trained")
USUAL_HEADS = HEADS[:3]  # of a notebook; the last is what `full` makes of the first
SOLVERS = ("adamw", "lbfgs")
INITS = ("pretrained", "random")
PRESETS = ("quick", "full")
PRECISIONS = ("float32", "bfloat16")


def closed(model: str) -> bool:
    """Return whether a model has no text tower."""
    return model in CLOSED_MODELS or model.startswith(TIMM)


def family(model: str) -> dict[str, str]:
    """Return the models that a model is compared with, by role; a model of timm's has none.

    >>> family("vitb16")["large"]
    'vitl14'
    """
    choose_model(model)
    return next((dict(roles) for roles in FAMILIES if model in roles.values()), {})


def choose_model(name: object) -> None:
    """Raise if there is no such model; whether timm has one by that name is seen on loading it."""
    if not (isinstance(name, str) and re.fullmatch(re.escape(TIMM) + r"[\w.-]+", name)):
        choose("model", name, MODELS)


def choose(kind: str, name: object, choices: tuple[str, ...]) -> None:
    """Raise if a name is none of the choices."""
    if name not in choices:
        raise unknown(kind, name, choices)
