"""Recognise wrapped and adapted tensor names; escape names for Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tasklab.errors import TasklabError, abridged, shown
from tasklab.storage import forms

if TYPE_CHECKING:
    from torch import Tensor  # names are looked at without it

_WRAPPERS = {  # of torch.compile, FSDP, activation checkpoints, Lightning and DDP
    "_orig_mod", "_fsdp_wrapped_module", "_fpw_module", "_checkpoint_wrapped_module",
    "_forward_module", "module",
}  # fmt: skip
_ADAPTER = re.compile(
    r"(^|[._])(lora|ia3|hada|lokr|oft|boft|vera|fourierft|ssf|adapters?|prompt_embeddings|"
    r"base_layer|modules_to_save)([._]|$)"
)


def inert(text: object) -> str:
    r"""Return a name for Markdown, in which it is no markup, nor HTML.

    >>> print(inert("a|b <img src=x>"))
    a\|b \<img src=x\>
    """
    plain = str(text) if str(text).isprintable() else shown(text)
    return re.sub(r"([\\`*\[\]<>|&#!$~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", plain)


def bare(name: str) -> str:
    """Return a name without the words that wrappers of modules put into it.

    >>> bare("module.visual.transformer.resblocks.0._orig_mod.ln_1.bias")
    'visual.transformer.resblocks.0.ln_1.bias'
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS) or name


def unwrapped(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under their names without wrappers' words, which must differ."""
    plain: dict[str, Tensor] = {}
    if tensors and not any(x.numel() for x in tensors.values()):
        raise TasklabError(
            "its tensors are empty, as DeepSpeed's ZeRO-3 saves parameters that lie elsewhere: "
            "make a state dict of the whole checkpoint (zero_to_fp32.py)."
        )
    forms.check(tensors)
    for name, tensor in tensors.items():
        short = bare(name)
        if short in plain:
            raise TasklabError(f"{abridged([short])} is in it twice, once in a wrapper: save one.")
        plain[short] = tensor
    return plain


def adapters(names: Iterable[str]) -> list[str]:
    """Return those names that are of adapters: LoRA, (IA)3, OFT and others."""
    return [name for name in names if _ADAPTER.search(name) or "lora_" in name]


def refusal(names: Iterable[str]) -> TasklabError:
    """Return the error for adapters in place of weights, with the names of some."""
    return TasklabError(
        f"it holds adapters, alone or beside their model (low-rank adapters, LoRA, or others: "
        f"{abridged(names, 2)}): merge them into it first (peft's merge_and_unload), and save that."
    )
