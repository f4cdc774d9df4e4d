"""The methods, and which parameters each trains: all, or some linear layers of every block."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tasklab.errors import TasklabError, unknown

if TYPE_CHECKING:
    from torch import Tensor

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
JOINT = "full"  # the name that records have; the preset of that name is another thing
EDITS = (*METHODS, *POSTHOC, JOINT)

# Parameters by name. open_clip's q, k and v are one matrix, `in_proj`; versions that split them,
# and towers from timm (`qkv`, `proj`, `fc1`, `fc2`), are covered too.
BLOCK = r"(?:^|\.)(?:resblocks|blocks|layers)\.(\d+)\."
PARTS = {
    "q, k, v weights": r"attn\.(?:in_proj_weight|(?:in_proj|qkv|[qkv]_proj)\.weight)$",
    "attention output weights": r"attn\.(?:out_proj|proj)\.weight$",
    "q, k, v biases": r"attn\.(?:in_proj_bias|(?:in_proj|qkv|[qkv]_proj)\.bias)$",
    "attention output biases": r"attn\.(?:out_proj|proj)\.bias$",
    "MLP input weights": r"mlp\.(?:c_fc|fc1)\.weight$",
    "MLP output weights": r"mlp\.(?:c_proj|fc2)\.weight$",
    "MLP input biases": r"mlp\.(?:c_fc|fc1)\.bias$",
    "MLP output biases": r"mlp\.(?:c_proj|fc2)\.bias$",
}
# The four paradigms of linear layers, section 3.3: (1) q, k, v and output weights; (2) and their
# biases; (3) the weights of all linear layers of a block; (4) and all their biases.
_WEIGHTS = ("q, k, v weights", "attention output weights")
_BIASES = ("q, k, v biases", "attention output biases")
_MLP_WEIGHTS = ("MLP input weights", "MLP output weights")
_MLP_BIASES = ("MLP input biases", "MLP output biases")
_PARADIGMS = {
    "attention": _WEIGHTS,
    "attention_bias": _WEIGHTS + _BIASES,
    "attention_mlp": _WEIGHTS + _MLP_WEIGHTS,
    "attention_mlp_bias": _WEIGHTS + _BIASES + _MLP_WEIGHTS + _MLP_BIASES,
}


def trainable(params: Mapping[str, Tensor], method: str, arch: str) -> tuple[str, ...]:
    """Return the names that a method trains, in the order of `params`.

    Args:
        params: Parameters of the image encoder.
        method: One of `METHODS`; `nonlinear` and `linearized` train everything.
        arch: Name of the encoder, for messages.

    Raises:
        TasklabError: If a pattern of the method matches nothing, or not every block alike.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if method not in _PARADIGMS:
        return tuple(params)
    chosen: set[str] = set()
    counts: dict[str, dict[str, int]] = {}  # how many of each part a block has
    for part in _PARADIGMS[method]:
        for name in params:
            if match := re.search(BLOCK + PARTS[part], name):
                chosen.add(name)
                count = counts.setdefault(name[: match.end(1)], {})
                count[part] = count.get(part, 0) + 1
        if not any(part in count for count in counts.values()):
            raise TasklabError(
                f"method {method!r} trains {part}, and {arch} has no parameter whose name matches "
                f"{PARTS[part]!r}. A network without attention, such as ConvNeXt, can only be "
                "fine-tuned by 'nonlinear' or 'linearized'."
            )
    usual = next(iter(counts.values()))
    odd = [block for block, count in counts.items() if count != usual]
    if odd:
        raise TasklabError(f"method {method!r}: blocks of {arch} differ from the first: {odd}.")
    return tuple(name for name in params if name in chosen)
