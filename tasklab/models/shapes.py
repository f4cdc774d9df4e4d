"""The shapes of encoders, as far as memory and time go; no model is built for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Tower:
    """The shape of an encoder, as far as its memory and time go."""

    parameters: int  #: Of the encoder
    text: int  #: Parameters of the text tower, which is not trained
    activations: int  #: Values that a training step keeps of one image until its backward pass
    blocks: int  #: In which they are
    products: int  #: Multiplications of matrix products in a pass of one image


def transformer(width: int, depth: int) -> int:
    """Return the parameters of blocks with biases and an MLP four times as wide: 12 w^2 + 13 w."""
    return depth * (12 * width**2 + 13 * width)


def _activations(width: int, depth: int, tokens: int, heads: int) -> int:
    """Return a bound of the values that blocks store of one image for the backward pass.

    Each token of a block keeps, in units of the width: both norms' inputs and results (4), q, k and
    v (3), attention's output (1), and in the MLP, three of its four-fold width (12); and, for
    each head, two rows of attention weights.
    """
    return depth * tokens * (20 * width + 2 * heads * tokens)


def vit_products(width: int, depth: int, patch: int, side: int = 224) -> int:
    """Return the multiplications of a pass: 12 w^2 + 2 L w for each of L tokens in each block.

    Args:
        width: w, of tokens.
        depth: Number of blocks.
        patch, side: Pixels along a patch and along an image.
    """
    patches = (side // patch) ** 2
    tokens = patches + 1
    return depth * tokens * (12 * width**2 + 2 * tokens * width) + patches * 3 * patch**2 * width


def convnext_products(
    widths: Sequence[int], depths: Sequence[int], kernels: Sequence[int], patch: int, side: int
) -> int:
    """Return the multiplications of a pass: 8 w^2 + k^2 w for each position in each block.

    Args:
        widths, depths: Channels w and number of blocks of each stage.
        kernels: Side k of the convolution of each stage.
        patch, side: Pixels along a patch of the stem and along an image.
    """
    places = (side // patch) ** 2
    total = places * 3 * patch**2 * widths[0]
    stages = zip(widths, (*widths[1:], 0), depths, kernels, strict=True)
    for width, following, depth, kernel in stages:
        total += depth * places * (8 * width**2 + kernel**2 * width) + places * width * following
        places //= 4
    return total


def t5_products(width: int, inner: int, depths: tuple[int, int], tokens: int = 48) -> int:
    """Return the multiplications of a pass up to the first token that is generated.

    Args:
        width, inner: Of tokens, and within the MLP.
        depths: Blocks of encoder and decoder.
        tokens: Length of a text.
    """
    mlp, attention = 2 * width * inner, 4 * width**2
    encoder = tokens * (attention + 2 * tokens * width + mlp)
    decoder = 2 * attention + (tokens - 1) * 2 * width**2 + mlp  # keys and values of all tokens
    return depths[0] * encoder + depths[1] * decoder


def vit(width: int, depth: int, patch: int, *, side: int = 224, embed: int = 0) -> Tower:
    """Return an image tower, and the text tower that goes with it in CLIP.

    Args:
        width, depth: Of tokens; number of blocks.
        patch, side: Pixels along a patch and along an image.
        embed: Width of CLIP's features and of its text tower; 0 for a tower of timm's.
    """
    tokens = (side // patch) ** 2 + 1
    stem = 3 * patch**2 * width + (tokens + 1) * width  # patches, positions, class token
    more = 2 * width + width * embed if embed else width  # norm before and projection, or bias
    own = stem + more + transformer(width, depth) + 2 * width
    words = (49408 + 77) * embed + transformer(embed, 12) + 2 * embed + embed**2 + 1
    kept = _activations(width, depth, tokens, width // 64)
    products = vit_products(width, depth, patch, side)
    return Tower(own, words if embed else 0, kept, depth, products)


def small(products: int) -> Tower:
    """Return a shipped model's tower: `mini`'s, whose text tower is too small to count.

    The largest stands for the memory of all of them.
    """
    largest = vit(192, 6, 8, side=32, embed=128)
    return dataclasses.replace(largest, text=0, products=products)


def convnext() -> Tower:
    """Return ConvNeXt-B with the projection and text tower of open_clip's `convnext_base_w`."""
    own, kept, embed = 3 * 16 * 128 + 3 * 128, 0, 640
    widths, depths = (128, 256, 512, 1024), (3, 3, 27, 3)
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        side = 64 // 2**stage
        own += depth * (8 * width**2 + 58 * width)
        own += 8 * width**2 + 4 * width if stage < 3 else 2 * width + width * embed
        kept += depth * 12 * width * side**2
    words = (49408 + 77) * embed + transformer(embed, 12) + 2 * embed + embed**2 + 1
    return Tower(own, words, kept, 36, convnext_products(widths, depths, (7,) * 4, 4, 256))


def t5() -> Tower:
    """Return T5-base; texts are at most 48 tokens long (`mini.lexicon.LENGTH`)."""
    width, inner, depth = 768, 3072, 12
    layer = 4 * width**2 + width  # attention and its norm
    mlp = 2 * width * inner + width
    own = 32128 * width + depth * (3 * layer + 2 * mlp) + 2 * (32 * 12 + width)
    products = t5_products(width, inner, (depth, depth))
    return Tower(own, 0, _activations(width, 2 * depth, 48, 12), 2 * depth, products)


def bert(width: int, inner: int, depth: int, heads: int, tokens: int = 32) -> Tower:
    """Return a BERT whose embeddings and their norm do not train.

    Args:
        width, inner: Of tokens, and within the MLP.
        depth, heads: Number of blocks, and of attention heads in each.
        tokens: Length of a text.
    """
    layer = 4 * width**2 + 4 * width + 2 * width * inner + width + inner + 4 * width
    products = depth * tokens * (4 * width**2 + 2 * width * inner + 2 * tokens * width)
    return Tower(depth * layer, 0, _activations(width, depth, tokens, heads), depth, products)
