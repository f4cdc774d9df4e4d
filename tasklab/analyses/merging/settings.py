"""Settings of an adapter of peft (LoRA): whether it is read, and the scale of each module."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasklab.errors import TasklabError, shown
from tasklab.storage import shards

CONFIG = "adapter_config.json"
#: How an adapter begins whose base's weights are changed at its beginning, too
_OWN_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_NOT_ADDED = ("layer_replication", "alora_invocation_tokens", "use_qalora")
_OTHERS = (  # have no matrices of their own names, or change them in another way
    *("target_parameters", "trainable_token_indices", "kasa_config", "use_bdlora", "arrow_config"),
    *("monteclora_config", "velora_config"),
)
_MOST = 1e9  # of a rank or alpha
_PATTERNS = {"r": "rank_pattern", "lora_alpha": "alpha_pattern"}


def read(place: Path) -> Mapping[str, Any]:
    """Return the settings in an adapter's folder.

    Args:
        place: The folder.

    Raises:
        TasklabError: If they cannot be read, or are those of another adapter than LoRA.
    """
    try:
        config = shards.settings_in(place / CONFIG)
    except (OSError, ValueError) as error:
        raise TasklabError(f"{str(place / CONFIG)!r} cannot be read: {error}.") from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise TasklabError(
            f"{str(place)!r} is an adapter of kind {shown(kind)}: only LORA is read."
        )
    if config.get("use_dora"):
        raise of_dora(place)
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(_OWN_BASE):
        raise TasklabError(
            f"{str(place)!r} began with {shown(start)}, which changed the base, too: merge it into "
            "that base by peft (merge_and_unload), and give the whole network."
        )
    if other := [name for name in _NOT_ADDED if config.get(name)]:
        raise TasklabError(
            f"{str(place)!r} has {other[0]}: it is not added to the base's weights, as a merge "
            "needs."
        )
    if other := [name for name in _OTHERS if config.get(name)]:
        raise not_read(place, other[0])
    for name, pattern in _PATTERNS.items():
        given = config.get(pattern) or {}
        if not _is_positive(config.get(name)):
            raise TasklabError(
                f"{str(place / CONFIG)!r} needs a positive number {name!r}, not "
                f"{shown(config.get(name))}: save the adapter again."
            )
        if not isinstance(given, dict) or not all(_is_rule(*pair) for pair in given.items()):
            raise TasklabError(
                f"{str(place / CONFIG)!r} needs as {pattern!r} positive numbers by names of "
                f"modules, not {shown(given)}: save the adapter again."
            )
    return config


def scale(config: Mapping[str, Any], module: str) -> float:
    """Return alpha / r of a module, by the patterns of the settings as peft reads them.

    Args:
        config: As `read` returns it.
        module: Name of the module.
    """
    r, alpha = rank(config, module), _of(config, "lora_alpha", module)
    return alpha / (math.sqrt(r) if config.get("use_rslora") else r)


def rank(config: Mapping[str, Any], module: str) -> float:
    """Return the rank of a module, as `scale` does its factor."""
    return _of(config, "r", module)


def _of(config: Mapping[str, Any], name: str, module: str) -> float:
    rules = (config.get(_PATTERNS[name]) or {}).items()
    found = (x for key, x in rules if re.match(_of_module(key), module))
    return next(found, config[name])


def not_read(place: Path, what: str) -> TasklabError:
    """Return the error for an adapter with a part that is not read."""
    return TasklabError(
        f"{str(place)!r} has {what}, which is not read: merge it into its base by peft "
        "(merge_and_unload), and give the whole network."
    )


def of_dora(place: Path) -> TasklabError:
    """Return the error for a DoRA adapter."""
    return TasklabError(
        f"{str(place)!r} is a DoRA adapter, whose change is not a product of two matrices: merge "
        "it into its base by peft (merge_and_unload), and give that."
    )


def _is_positive(value: Any) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and 0 < value < _MOST


def _is_rule(key: str, value: Any) -> bool:
    try:
        re.compile(_of_module(key))
    except re.error:
        return False
    return _is_positive(value)


def _of_module(key: str) -> str:
    return rf"(.*\.)?({key})$"
