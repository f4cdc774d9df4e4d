"""What every block of an encoder gives: features layer by layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.encoders import Encoder
from tasklab.errors import TasklabError

FEATURES = "features"  # what the encoder itself gives, after the last block


class Layers:
    """An encoder whose output is that of every block, and its features, side by side.

    It is a function of parameters and inputs like the encoder, so that whatever works on one works
    on all layers in one pass, `tangent.jvp` too.

        layers = Layers(encoder, x)
        hidden = layers.cut(layers(theta, x))       # {"...resblocks.0": (B, L * D), ...}

    An image's tokens, or pixels, are one long row, however a block orders its axes.

    Args:
        encoder: The encoder; its `blocks` say what is read.
        x: Any of the inputs that will come, (B, ...) as `preprocess` gives them: images of the same
            size, or texts of the same length.

    Raises:
        TasklabError: If a block's output does not grow with the number of images.
    """

    def __init__(self, encoder: Encoder, x: Tensor) -> None:
        self.encoder = encoder
        inputs = (x[:1].expand(count, *x.shape[1:]) for count in (2, 3))
        with torch.no_grad():
            two, three = ([out.shape for out in self._run(encoder.params, few)] for few in inputs)
        self._axes = [_grown(*shapes) for shapes in zip(two, three, strict=True)]
        names = (*encoder.blocks, FEATURES)
        self.sizes = {n: shape.numel() // 2 for n, shape in zip(names, two, strict=True)}

    def __call__(self, params: Mapping[str, Tensor], x: Tensor) -> Float[Tensor, "B S"]:
        """Return the outputs of all layers, a row an image.

        Args:
            params: As the encoder takes them.
            x: As the encoder's `preprocess` gives it.
        """
        rows = zip(self._run(params, x), self._axes, strict=True)
        return torch.cat([out.movedim(axis, 0).flatten(1) for out, axis in rows], 1)

    def cut(self, rows: Float[Tensor, "B S"]) -> dict[str, Float[Tensor, "B s"]]:
        """Return each layer's part of what a call returned, by the block's name."""
        return dict(zip(self.sizes, rows.split(list(self.sizes.values()), 1), strict=True))

    def _run(self, params: Mapping[str, Tensor], x: Tensor) -> list[Tensor]:
        found: dict[str, Tensor] = {}
        handles = []
        try:
            for name in self.encoder.blocks:
                module = self.encoder.module.get_submodule(name)
                handles.append(module.register_forward_hook(_keep(found, name)))
            features = self.encoder(params, x)
        finally:
            for handle in handles:
                handle.remove()
        return [*(found[name] for name in self.encoder.blocks), features]


def _keep(found: dict[str, Tensor], name: str):
    def hook(module: object, args: object, output: Tensor | tuple) -> None:
        found[name] = output if isinstance(output, Tensor) else output[0]

    return hook


def _grown(two: torch.Size, three: torch.Size) -> int:
    """Return the axis that counts images, from the shapes of two images' and of three."""
    for axis, sizes in enumerate(zip(two, three, strict=True)):
        if sizes == (2, 3):
            return axis
    raise TasklabError(f"an output of shape {tuple(two)} has no axis for the images.")
