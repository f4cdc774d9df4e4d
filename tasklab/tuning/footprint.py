"""How much memory fine-tuning takes: a bound, from the shapes of the encoders alone.

No model is built for it, so that it can be told of models whose weights are not there. Where the
whole batch does not fit, a step is computed in parts, and blocks twice (`tasklab.tuning.memory`).
"""

from __future__ import annotations

import dataclasses

from tasklab.models.zoo import Spec
from tasklab.tuning.recipe import MINI_BATCH, PAPER_BATCH


@dataclasses.dataclass(frozen=True)
class Tower:
    """The shape of an encoder, as far as its memory goes.

    Attributes:
        parameters: Of the encoder.
        text: Parameters of the text tower, which is not trained.
        activations: Values that a training step keeps of one image until its backward pass.
        blocks: In which they are.
        batch: Images in a step.
    """

    parameters: int
    text: int
    activations: int
    blocks: int
    batch: int = PAPER_BATCH


def transformer(width: int, depth: int) -> int:
    """Return the parameters of blocks with biases and an MLP four times as wide: 12 w^2 + 13 w."""
    return depth * (12 * width**2 + 13 * width)


def activations(width: int, depth: int, tokens: int, heads: int) -> int:
    """Return a bound of the values that blocks keep of one image for the backward pass.

    Each token of a block keeps, in units of the width: both norms' inputs and results (4), q, k and
    v (3), what attention gives (1), and in the MLP, three of its four-fold width (12); and, for
    each head, two rows of attention weights.
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


def _convnext() -> Tower:
    """Return ConvNeXt-B with the projection and text tower of open_clip's `convnext_base_w`."""
    own, kept, embed = 3 * 16 * 128 + 3 * 128, 0, 640
    for stage, depth in enumerate((3, 3, 27, 3)):
        width, side = 128 * 2**stage, 64 // 2**stage
        own += depth * (8 * width**2 + 58 * width)
        own += 8 * width**2 + 4 * width if stage < 3 else 2 * width + width * embed
        kept += depth * 12 * width * side**2
    words = (49408 + 77) * embed + transformer(embed, 12) + 2 * embed + embed**2 + 1
    return Tower(own, words, kept, 36)


def _t5() -> Tower:
    """Return T5-base; texts are at most 48 tokens long (`mini.text.LENGTH`)."""
    width, inner, depth = 768, 3072, 12
    layer = 4 * width**2 + width  # attention and its norm
    mlp = 2 * width * inner + width
    own = 32128 * width + depth * (3 * layer + 2 * mlp) + 2 * (32 * 12 + width)
    return Tower(own, 0, activations(width, 2 * depth, 48, 12), 2 * depth)


TOWERS = {
    "ViT-B-32-quickgelu": vit(768, 12, 32, embed=512),
    "ViT-B-16-quickgelu": vit(768, 12, 16, embed=512),
    "ViT-B-16": vit(768, 12, 16, embed=512),
    "ViT-L-14-quickgelu": vit(1024, 24, 14, embed=768),
    "ViT-L-14": vit(1024, 24, 14, embed=768),
    "vit_base_patch16_224": vit(768, 12, 16),
    "vit_large_patch16_224": vit(1024, 24, 16),
    "convnext_base_w": _convnext(),
    "t5-base": _t5(),
}
# The largest of those that ship stands for all of them. Its text tower is too small to count.
LARGEST_SHIPPED = dataclasses.replace(vit(192, 6, 8, side=32, embed=128), text=0, batch=MINI_BATCH)


def of(entry: Spec) -> Tower | None:
    """Return the shape of a model's encoder; `None` for a model of timm's that is not listed."""
    return LARGEST_SHIPPED if entry.shipped else TOWERS.get(entry.arch)


def needed(
    tower: Tower, images: int | None = None, *, recompute: bool = False, text: bool = True
) -> int:
    """Return the bytes that fine-tuning an encoder takes in float32, at most.

    Five copies of the encoder (theta_0, its change, two moments of AdamW, the gradient), the text
    tower if it is kept, and what a step keeps for its backward pass. Images and the libraries
    themselves come on top.

    Args:
        tower: Its shape.
        images: At a time; `None` is the recipe's batch.
        recompute: Whether blocks are computed a second time in the backward pass: then only their
            inputs are kept, a twentieth of all, and the insides of one.
        text: Whether the text tower is kept.
    """
    kept = tower.activations
    if recompute:
        kept = kept // 20 + kept // tower.blocks
    images = tower.batch if images is None else images
    return 4 * (5 * tower.parameters + text * tower.text + images * kept)


def span(entry: Spec) -> tuple[int, int] | None:
    """Return the least bytes that fine-tuning a model takes, and those of whole batches."""
    tower = of(entry)
    if tower is None:
        return None
    least = needed(tower, 1, recompute=True, text=entry.text)
    return least, needed(tower, text=entry.text)
