"""Settings of a checkpoint's network: the same weights can stand for two networks.

Activation, number of heads and the layer norms' epsilon leave no trace in the names and shapes of
parameters, nor does the normalisation of the images. A pickled module and transformers'
`config.json` hold the former; a bare state dict does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tasklab.errors import TasklabError
from tasklab.exchange import naming
from tasklab.storage import shards, state_dicts
from tasklab.storage.pickles import Inert

_MOST_HEADS = 1000
_EPS = 4  # digits: ports of one network have 1e-5, 1e-6 or 1e-12, and the same features
_IMAGES = "preprocessor_config.json"  # transformers'
_GELU = {"gelu", "geluactivation", "gelupython"}  # as libraries and configurations call it
_TANH = {  # its approximation by tanh, at most 0.0005 away
    *("gelutanh", "gelupytorchtanh", "pytorchgelutanh", "gelunew", "newgeluactivation"),
    *("gelufast", "fastgeluactivation", "gelupythontanh"),
}
_OTHERS = ": here it sees other numbers than those that it was fine-tuned on"


def facts_of_modules(stored: Any) -> dict[str, Any]:
    """Return activation, heads and epsilon of the image tower in a pickled module, if it is one."""
    named = {naming.bare(name): module for name, module in state_dicts.modules(stored)}
    first = [name for name in named if name.endswith("transformer.resblocks.0")]
    block = next((name for name in first if "visual." in name), first[0] if first else None)
    if block is not None:
        act, heads = named.get(f"{block}.mlp.gelu"), named.get(f"{block}.attn")
        return _checked(_class(act), _state(heads, "num_heads"), _state(named.get(f"{block}.ln_1")))
    for name, module in named.items():
        if re.fullmatch(r"(.*\.)?blocks\.(0\.)?0\.attn", name):  # timm's
            act, norm = (named.get(name[: -len("attn")] + part) for part in ("mlp.act", "norm1"))
            return _checked(_class(act), _state(module, "num_heads"), _state(norm))
        if name.endswith("encoder.layers.0.self_attn") and "text_model." not in name:
            settings = module.state.get("config")
            about = _told(settings.state) if isinstance(settings, Inert) else {}
            return about | _checked(heads=_state(module, "num_heads"))
    return {}


def facts_beside(settings: Path | None, file: Path) -> dict[str, Any]:
    """Return activation, heads and epsilon from a checkpoint's settings, if it has any.

    Args:
        settings: `config.json`, transformers' or open_clip's; `None` without one.
        file: The checkpoint. Beside `NAME.safetensors`, `--model-out` writes `NAME.json`.
    """
    try:
        content = shards.settings_in(settings or file.with_suffix(".json"))
        if isinstance(own := content.get("model_cfg", content), Mapping) and "vision_cfg" in own:
            return _told_by_open_clip(own)
        about = content.get("vision_config", content)
        usual = {"hidden_act": "quick_gelu"} if "clip" in str(content.get("model_type")) else {}
        return _told(usual | about)
    except (ValueError, AttributeError, TypeError, OSError):
        return {}  # it is only a further check


def check_images(settings: Path | None, mean: Sequence[float], std: Sequence[float]) -> list[str]:
    """Compare the image normalisation in a checkpoint's settings with a model's.

    Args:
        settings: `config.json` of the checkpoint; `None` without one.
        mean, std: The model's, a number per channel.

    Returns:
        At most one note: normalisations differ, or images were not normalised.
    """
    for file in () if settings is None else (settings.with_name(_IMAGES), settings):
        try:
            content = shards.settings_in(file)
            content = content.get("preprocess_cfg") or content.get("pretrained_cfg") or content
            if content.get("do_normalize") is False:
                return [f"{file.name} does not normalise images, and the model does{_OTHERS}"]
            for what, ours in (("mean", mean), ("std", std)):
                told = content.get(f"image_{what}", content.get(what))
                if told is not None and not np.allclose(told, ours, atol=1e-3):
                    usual = [round(x, 4) for x in ours]
                    side = f"{file.name} normalises images by the {what} {told}"
                    return [f"{side}, and the model by {usual}{_OTHERS}"]
        except (ValueError, AttributeError, TypeError, OSError):
            continue  # it is only a further check
    return []


def differing(facts: Mapping[str, Any], tower: nn.Module, model: str) -> list[str]:
    """Compare a checkpoint's settings with an encoder.

    Args:
        facts: `activation`, `heads` and `layer_norm_eps`, where the checkpoint has them.
        tower: The encoder.
        model: Its name, for messages.

    Returns:
        Notes about settings that are not known or differ slightly.

    Raises:
        TasklabError: If a setting differs: the same weights compute other features.
    """
    blocks: Any = getattr(getattr(tower, "transformer", None), "resblocks", None)
    clip = blocks is not None
    blocks = blocks if clip else getattr(tower, "blocks", None)
    try:
        attention = blocks[0].attn
        act = blocks[0].mlp.gelu if clip else blocks[0].mlp.act
        norm = blocks[0].ln_1 if clip else blocks[0].norm1
        ours = {
            "activation": _activation(act),
            "heads": attention.num_heads,
            "layer_norm_eps": round(getattr(norm, "eps", 0.0), _EPS),
        }
    except (AttributeError, TypeError, IndexError):
        return []  # no transformer
    notes = []
    theirs = facts.get("activation")
    if theirs in _TANH | _GELU and ours["activation"] in _TANH | _GELU:
        facts = {**facts, "activation": ours["activation"]}
        if (theirs in _TANH) != (ours["activation"] in _TANH):
            notes = [
                f"its activation is {theirs}, and that of {model} {ours['activation']}: GELU and "
                "its approximation by tanh differ by at most 0.0005"
            ]
    for what, expected in ours.items():
        if facts.get(what, expected) != expected:
            raise TasklabError(
                f"its network has {what} {facts[what]}, and model {model!r} {expected}: with the "
                "same weights it computes something else."
            )
    if "activation" in facts or not clip:
        return notes
    return [
        f"no config.json names the activation (GELU or QuickGELU), so {ours['activation']} of "
        f"{model} is assumed"
    ]


def _told_by_open_clip(settings: Mapping) -> dict[str, Any]:
    vision = settings.get("vision_cfg")
    if not isinstance(vision, Mapping) or "timm_model_name" in vision:
        return {}
    width, head = vision.get("width", 768), vision.get("head_width", 64)
    whole = type(width) is int and type(head) is int and head > 0
    act = "quick_gelu" if settings.get("quick_gelu") else "gelu"
    return _checked(act if "act_kwargs" not in vision else None, width // head if whole else None)


def _told(settings: Any) -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        return {}
    names = ("hidden_act", "num_attention_heads", "layer_norm_eps")
    return _checked(*map(settings.get, names))


def _checked(activation: Any = None, heads: Any = None, eps: Any = None) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if isinstance(activation, str) and activation.isidentifier() and len(activation) <= 40:
        name = activation.replace("_", "").lower()
        facts["activation"] = name.replace("quickgeluactivation", "quickgelu")
    if type(heads) is int and 0 < heads <= _MOST_HEADS:
        facts["heads"] = heads
    if type(eps) is float and 0 < eps < 1:
        facts["layer_norm_eps"] = round(eps, _EPS)
    return facts


def _activation(module: nn.Module) -> str:
    tanh = getattr(module, "approximate", "none") == "tanh"
    name = type(module).__name__.lower().replace("_", "")
    return "gelutanh" if tanh else name.replace("quickgeluactivation", "quickgelu")


def _class(module: Inert | None) -> str | None:
    if module is None:
        return None
    tanh = isinstance(module.state, Mapping) and module.state.get("approximate") == "tanh"
    return "gelutanh" if tanh else module.name.rpartition(".")[2]


def _state(module: Inert | None, name: str = "eps") -> Any:
    return None if module is None else module.state.get(name)
