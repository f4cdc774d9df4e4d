"""What a checkpoint tells of its network: the same weights can stand for two of them.

Activation and number of heads leave no trace in the names and shapes of parameters. A pickled
module tells them, and so does transformers' `config.json`; a bare state dict does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tasklab.errors import TasklabError
from tasklab.exchange import naming, sources
from tasklab.storage import state_dicts
from tasklab.storage.pickles import Inert

_MOST_HEADS = 1000


def facts_of_modules(stored: Any) -> dict[str, Any]:
    """Return activation and heads of the image tower in a pickled module, if it is one."""
    named = {naming.bare(name): module for name, module in state_dicts.modules(stored)}
    first = [name for name in named if name.endswith("transformer.resblocks.0")]
    block = next((name for name in first if "visual." in name), first[0] if first else None)
    if block is not None:
        return _checked(_class(named.get(f"{block}.mlp.gelu")), _heads(named.get(f"{block}.attn")))
    for name, module in named.items():
        if re.fullmatch(r"(.*\.)?blocks\.(0\.)?0\.attn", name):  # timm's
            act = named.get(f"{name.removesuffix('attn')}mlp.act")
            return _checked(_class(act), _heads(module))
        if name.endswith("encoder.layers.0.self_attn") and "text_model." not in name:
            settings = module.state.get("config")
            about = _told(settings.state) if isinstance(settings, Inert) else {}
            return about | _checked(heads=_heads(module))
    return {}


def facts_of_settings(settings: Path | None) -> dict[str, Any]:
    """Return activation and heads that a `config.json` names, transformers' or open_clip's."""
    if settings is None:
        return {}
    try:
        content = sources.settings_in(settings)
        if isinstance(own := content.get("model_cfg"), Mapping):
            return _told_by_open_clip(own)
        about = content.get("vision_config", content)
        usual = {"hidden_act": "quick_gelu"} if "clip" in str(content.get("model_type")) else {}
        return _told(usual | about)
    except (ValueError, AttributeError, TypeError, OSError):
        return {}  # it is only a further check


def check(facts: Mapping[str, Any], tower: nn.Module, model: str) -> list[str]:
    """Compare what a checkpoint tells with an encoder; return what cannot be known."""
    blocks: Any = getattr(getattr(tower, "transformer", None), "resblocks", None)
    clip = blocks is not None
    blocks = blocks if clip else getattr(tower, "blocks", None)
    try:
        attention = blocks[0].attn
        act = blocks[0].mlp.gelu if clip else blocks[0].mlp.act
        ours = {"activation": type(act).__name__.lower(), "heads": attention.num_heads}
    except (AttributeError, TypeError, IndexError):
        return []  # no transformer
    for what, expected in ours.items():
        if facts.get(what, expected) != expected:
            raise TasklabError(
                f"its network has {what} {facts[what]}, and model {model!r} {expected}: with the "
                "same weights it computes something else."
            )
    if "activation" in facts or not clip:
        return []
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
    return _checked(settings.get("hidden_act"), settings.get("num_attention_heads"))


def _checked(activation: Any = None, heads: Any = None) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if isinstance(activation, str) and activation.isidentifier() and len(activation) <= 40:
        facts["activation"] = activation.replace("_", "").lower()
    if type(heads) is int and 0 < heads <= _MOST_HEADS:
        facts["heads"] = heads
    return facts


def _class(module: Inert | None) -> str | None:
    return None if module is None else module.name.rpartition(".")[2]


def _heads(module: Inert | None) -> Any:
    return None if module is None else module.state.get("num_heads")
