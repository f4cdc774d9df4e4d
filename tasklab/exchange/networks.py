"""What a checkpoint tells of its network: the same weights can stand for two of them.

Activation and number of heads leave no trace in the names and shapes of parameters. A pickled
module tells them, and so does transformers' `config.json`; a bare state dict does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tasklab.errors import TasklabError
from tasklab.exchange import sources
from tasklab.storage import state_dicts
from tasklab.storage.pickles import Inert

_MOST_HEADS = 1000


def facts_of_modules(stored: Any) -> dict[str, Any]:
    """Return activation and heads of the image tower in a pickled module, if it is one.

    Args:
        stored: As `torch_files.read` returns it.
    """
    named = dict(state_dicts.modules(stored))
    first = [name for name in named if name.endswith("transformer.resblocks.0")]
    block = next((name for name in first if "visual." in name), first[0] if first else None)
    if block is not None:
        return _checked(_class(named.get(f"{block}.mlp.gelu")), _heads(named.get(f"{block}.attn")))
    for name, module in named.items():
        if name.endswith("encoder.layers.0.self_attn") and "text_model." not in name:
            settings = module.state.get("config")
            about = _told(settings.state) if isinstance(settings, Inert) else {}
            return about | _checked(heads=_heads(module))
    return {}


def facts_of_settings(settings: Path | None) -> dict[str, Any]:
    """Return activation and heads that transformers' `config.json` names."""
    if settings is None:
        return {}
    try:
        content = sources.settings_in(settings)
        return _told(content.get("vision_config", content))
    except (ValueError, AttributeError, OSError):
        return {}  # it is only a further check


def check(facts: Mapping[str, Any], tower: nn.Module, model: str) -> None:
    """Compare what a checkpoint tells with an encoder.

    Args:
        facts: As the functions above return them.
        tower: The encoder's module.
        model: Its name, for messages.

    Raises:
        TasklabError: If they differ.
    """
    blocks = getattr(getattr(tower, "transformer", None), "resblocks", None)
    if blocks is None:
        return
    ours = {
        "activation": type(blocks[0].mlp.gelu).__name__.lower(),
        "heads": blocks[0].attn.num_heads,
    }
    for what, expected in ours.items():
        if facts.get(what, expected) != expected:
            raise TasklabError(
                f"its network has {what} {facts[what]}, and model {model!r} {expected}: with the "
                "same weights it computes something else."
            )


def _told(settings: Any) -> dict[str, Any]:
    """Return what transformers' settings tell."""
    if not isinstance(settings, Mapping):
        return {}
    return _checked(settings.get("hidden_act"), settings.get("num_attention_heads"))


def _checked(activation: Any = None, heads: Any = None) -> dict[str, Any]:
    """Return facts that are what they should be; a file can have anything in their place."""
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
