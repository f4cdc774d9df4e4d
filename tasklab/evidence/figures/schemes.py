"""Pre-training schemes: a colour, marker and label of each."""

from __future__ import annotations

import itertools

import pandas as pd

from tasklab.evidence.figures.rows import methods_in, where
from tasklab.evidence.figures.style import METHOD_LABEL, Looks
from tasklab.models.zoo import REGISTRY, family

# A hue for each sort of pre-training, darker with more data or a larger model; markers repeat it.
SCHEMES = {  # role -> label, colour, marker
    "sup_few": ("supervised, fewer classes", "#E69F00", "o"),
    "sup_many": ("supervised, more classes", "#D55E00", "s"),
    "mae": ("masked autoencoder", "#009E73", "^"),
    "dino": ("DINO", "#CC79A7", "v"),
    "clip_less": ("CLIP, fewer pairs", "#56B4E9", "<"),
    "clip_more": ("CLIP, more pairs", "#0072B2", ">"),
    "sup_large": ("supervised, larger model", "#7A4B00", "D"),
    "clip_large": ("CLIP, larger model", "#000000", "P"),
}
_MODELS = {  # the other embedded ones
    "mini": "CLIP",
    "mini_s": "smaller CLIP",
    "mini_xs": "smallest CLIP",
    "mini_convnext": "ConvNeXt",
    "mini_t5": "T5",
}
_OTHERS = (("#595959", "*"), ("#999999", "X"), ("#7FC9AF", "h"), ("#B2DF8A", "d"))


def role(model: str) -> str:
    """Return a model's role among the compared schemes, or its own name."""
    roles = family(model) if model in REGISTRY else {}
    return next((name for name in SCHEMES if roles.get(name) == model), model)


def looks(df: pd.DataFrame) -> dict[str, tuple[str, str, str]]:
    """Return label, colour and marker of each model in a table, in the paper's order."""
    roles = {model: role(model) for model in dict.fromkeys(df["model"])}
    compared = [model for name in SCHEMES for model in roles if roles[model] == name]
    others = [model for model in roles if roles[model] not in SCHEMES]
    spare = {model: (scheme(model), *look) for model, look in zip(others, itertools.cycle(_OTHERS))}
    return {model: SCHEMES[roles[model]] for model in compared} | spare


def broken(named: Looks) -> dict[str, str]:
    """Return the labels of models, broken at their commas."""
    return {model: label.replace(", ", ",\n") for model, (label, _, _) in named.items()}


def scheme(model: str) -> str:
    """Return a model's label: its pre-training if that is compared, or its kind."""
    return SCHEMES[role(model)][0] if role(model) in SCHEMES else _MODELS.get(model, model)


def ways(df: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return a label for each model and method of a table; models but the first have their own.

    The first model's ways of fine-tuning come first.
    """
    there = set(zip(df["model"], df["method"], strict=True))
    models = list(dict.fromkeys(df["model"]))
    return {
        (model, method): METHOD_LABEL[method] if model == models[0] else scheme(model)
        for model, method in itertools.product(models, methods_in(df))
        if (model, method) in there
    }


def of_vocabulary(df: pd.DataFrame, vocabulary: str) -> pd.DataFrame:
    """Return the records of one vocabulary, or all without such a column."""
    return where(df, vocabulary=vocabulary) if "vocabulary" in df else df
