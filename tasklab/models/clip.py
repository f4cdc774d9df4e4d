"""A pre-trained model: its encoder and, where it has one, its text tower."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tasklab.errors import TasklabError
from tasklab.models.encoder import Encoder
from tasklab.models.zoo import Spec


@dataclasses.dataclass(frozen=True, eq=False)
class Clip:
    """An encoder, and the text tower that zero-shot heads are made of."""

    encoder: Encoder
    #: Texts (n) -> features (n, D), not normalised; `None` where there is no text tower.
    text: Callable[[list[str]], Tensor] | None
    logit_scale: float = 1.0  #: The trained inverse temperature, exponential taken
    #: Whether the features and those of texts are compared by their angle, as CLIP does, or by
    #: their inner product, as T5 does with its output embedding.
    cosine: bool = True
    #: Hash of the text tower and the running statistics, where a checkpoint has others; of a
    #: sentence encoder's embeddings and tokenizer.
    beside: str = ""

    @property
    def identity(self) -> dict[str, str]:
        """All that keys of results hold of the model."""
        known = {"weights": self.encoder.weights_hash}
        return known | {"beside": self.beside} if self.beside else known

    def __repr__(self) -> str:
        encoder, text = self.encoder, "no text tower" if self.text is None else "text tower"
        size = sum(tensor.numel() for tensor in encoder.params.values()) / 1e6
        return f"Clip({encoder.name}, {encoder.init}, {size:.1f} M parameters, {text})"


def encoder_of(
    kind: type[Encoder],
    entry: Spec,
    init: str,
    module: nn.Module,
    device: torch.device,
    **more: Any,
) -> Encoder:
    """Return a network as an encoder, its blocks in their order.

    Args:
        kind: Class of the encoder.
        entry: Entry of the model in the registry.
        init: `"pretrained"` or `"random"`.
        module: The network.
        device: Where it is.
        **more: Further fields of the class: its images or texts.

    Raises:
        TasklabError: If the network has another number of blocks than the registry.
    """
    pattern = entry.block or _blocks(module)
    blocks = [name for name, _ in module.named_modules() if re.fullmatch(pattern, name)]
    if entry.blocks and len(blocks) != entry.blocks:
        raise TasklabError(
            f"model {entry.name!r} should have {entry.blocks} blocks named {entry.block}, not "
            f"{len(blocks)}: its library names its modules differently in this version."
        )
    params = dict(module.named_parameters())
    return kind(
        name=entry.name, init=init, module=module, params=params, blocks=tuple(blocks),
        device=device, **more,
    )  # fmt: skip


def _blocks(module: nn.Module) -> str:
    """Return the pattern of timm's block names in a model of its own."""
    patterns = module.group_matcher(coarse=False)["blocks"]
    if isinstance(patterns, str):
        return patterns
    return next(pattern for pattern, place in patterns if place is None)
