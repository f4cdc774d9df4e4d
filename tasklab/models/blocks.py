"""Outputs of every block of an encoder: features layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.models.encoder import Encoder, TextEncoder
from tasklab.models.intercept import FEATURES, outputs

_Shapes = list[tuple[torch.Size, torch.Size]]
_KNOWN: WeakKeyDictionary[Encoder, dict[torch.Size, _Shapes]] = WeakKeyDictionary()


class Layers:
    """An encoder whose output is that of every block, and its features, side by side.

    It is a function of parameters and inputs like the encoder, so that `tangent.jvp` works on it.

        layers = Layers(encoder, x)
        hidden = layers.cut(layers(theta, x))       # {"...resblocks.0": (B, L * D), ...}

    An image's tokens, or pixels, are one long row, however a block orders its axes. A text's are
    averaged, since texts differ in length: over its tokens in the encoder, and in the decoder there
    is one, the first that is generated (cross-task linearity, appendix C.1.3).

    Args:
        x: Inputs (B, ...) as `preprocess` returns them; later inputs are images of the same size.
    """

    def __init__(self, encoder: Encoder, x: Tensor) -> None:
        self.encoder = encoder
        known = _KNOWN.setdefault(encoder, {})
        if x.shape[1:] not in known:
            inputs = (x[:1].expand(count, *x.shape[1:]) for count in (2, 3))
            with torch.no_grad():
                found = ([out.shape for out in self._run(encoder.params, few)] for few in inputs)
            known[x.shape[1:]] = list(zip(*found, strict=True))
        shapes = known[x.shape[1:]]
        self._axes = [_grown(*each) for each in shapes]
        pad = encoder.module.pad if isinstance(encoder, TextEncoder) else None
        self._pad: int | None = pad
        names = (*encoder.blocks, FEATURES)
        sizes = (two.numel() // 2 if pad is None else two[-1] for two, _ in shapes)
        self.sizes = dict(zip(names, sizes, strict=True))

    def __call__(self, params: Mapping[str, Tensor], x: Tensor) -> Float[Tensor, "B S"]:
        """Return the outputs of all layers, one row per image."""
        return torch.cat(list(self.parts(params, x).values()), 1)

    def parts(self, params: Mapping[str, Tensor], x: Tensor) -> dict[str, Float[Tensor, "B s"]]:
        """Return the outputs of each layer, one row per image, by the block's name."""
        given = zip(self._run(params, x), self._axes, strict=True)
        rows = [out.movedim(axis, 0) for out, axis in given]
        if self._pad is not None:
            rows = [_mean_token(out, x != self._pad) for out in rows]
        return {name: out.flatten(1) for name, out in zip(self.sizes, rows, strict=True)}

    def cut(self, rows: Float[Tensor, "B S"]) -> dict[str, Float[Tensor, "B s"]]:
        """Split the outputs of a call by layer, under the block's name."""
        return dict(zip(self.sizes, rows.split(list(self.sizes.values()), 1), strict=True))

    def _run(self, params: Mapping[str, Tensor], x: Tensor) -> list[Tensor]:
        return list(outputs(self.encoder, params, x).values())


def _mean_token(out: Tensor, mask: Tensor) -> Tensor:
    if out.dim() == 2:
        return out
    mask = mask[:, : out.shape[1], None].to(out.dtype)
    return (out * mask).sum(1) / mask.sum(1)


def _grown(two: torch.Size, three: torch.Size) -> int:
    """Return the axis that counts images, from the shapes of two images' and of three."""
    for axis, sizes in enumerate(zip(two, three, strict=True)):
        if sizes == (2, 3):
            return axis
    raise TasklabError(f"an output of shape {tuple(two)} has no axis for the images.")
