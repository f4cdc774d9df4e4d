"""The shapes of encoders, as far as memory goes; no model is built for it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tower:
    """The shape of an encoder, as far as its memory goes.

    Attributes:
        parameters: Of the encoder.
        text: Parameters of the text tower, which is not trained.
        activations: Values that a training step keeps of one image until its backward pass.
        blocks: In which they are.
    """

    parameters: int
    text: int
    activations: int
    blocks: int


def transformer(width: int, depth: int) -> int:
    """Return the parameters of blocks with biases and an MLP four times as wide: 12 w^2 + 13 w."""
    return depth * (12 * width**2 + 13 * width)


def activations(width: int, depth: int, tokens: int, heads: int) -> int:
    """Return a bound of the values that blocks keep of one image for the backward pass.

    Each token of a block keeps, in units of the width: both norms' inputs and results (4), q, k and
    v (3), what attention gives (1), and in the MLP, three of its four-fold width (12); and, for
    each head, two rows of attention weights.

    Args:
        width: Of the residual stream.
        depth: Blocks.
        tokens: Of one image.
        heads: Of attention.
    """
    return depth * tokens * (20 * width + 2 * heads * tokens)


def vit(width: int, depth: int, patch: int, *, side: int = 224, embed: int = 0) -> Tower:
    """Return an image tower, and the text tower that goes with it in CLIP.

    Args:
        width: Of the residual stream; a head has 64 of it.
        depth: Blocks.
        patch: Height and width of a patch.
        side: Height and width of the image.
        embed: Width of CLIP's features and of its text tower; 0 for a tower of timm's.
    """
    tokens = (side // patch) ** 2 + 1
    stem = 3 * patch**2 * width + (tokens + 1) * width  # patches, positions, class token
    more = 2 * width + width * embed if embed else width  # norm before and projection, or bias
    own = stem + more + transformer(width, depth) + 2 * width
    words = (49408 + 77) * embed + transformer(embed, 12) + 2 * embed + embed**2 + 1
    kept = activations(width, depth, tokens, width // 64)
    return Tower(own, words if embed else 0, kept, depth)


def convnext() -> Tower:
    """Return ConvNeXt-B with the projection and text tower of open_clip's `convnext_base_w`."""
    own, kept, embed = 3 * 16 * 128 + 3 * 128, 0, 640
    for stage, depth in enumerate((3, 3, 27, 3)):
        width, side = 128 * 2**stage, 64 // 2**stage
        own += depth * (8 * width**2 + 58 * width)
        own += 8 * width**2 + 4 * width if stage < 3 else 2 * width + width * embed
        kept += depth * 12 * width * side**2
    words = (49408 + 77) * embed + transformer(embed, 12) + 2 * embed + embed**2 + 1
    return Tower(own, words, kept, 36)


def t5() -> Tower:
    """Return T5-base; texts are at most 48 tokens long (`mini.lexicon.LENGTH`)."""
    width, inner, depth = 768, 3072, 12
    layer = 4 * width**2 + width  # attention and its norm
    mlp = 2 * width * inner + width
    own = 32128 * width + depth * (3 * layer + 2 * mlp) + 2 * (32 * 12 + width)
    return Tower(own, 0, activations(width, 2 * depth, 48, 12), 2 * depth)
