"""How much memory fine-tuning takes: a bound, from the shapes of the encoders alone.

It can be told of models whose weights are not there. Where the whole batch does not fit, a step is
computed in parts, and blocks twice (`tasklab.tuning.memory`).
"""

from __future__ import annotations

from tasklab.models.shapes import Tower
from tasklab.models.zoo import Spec
from tasklab.tuning.recipe import MINI_BATCH, PAPER_BATCH


def needed(
    tower: Tower, images: int = PAPER_BATCH, *, recompute: bool = False, text: bool = True
) -> int:
    """Return the bytes that fine-tuning an encoder takes in float32, at most.

    Five copies of the encoder (theta_0, its change, two moments of AdamW, the gradient), the text
    tower if it is kept, and what a step keeps for its backward pass. Images and the libraries
    themselves come on top.

    Args:
        tower: Its shape.
        images: At a time.
        recompute: Whether blocks are computed a second time in the backward pass: then only their
            inputs are kept, a twentieth of all, and the insides of one.
        text: Whether the text tower is kept.
    """
    kept = tower.activations
    if recompute:
        kept = kept // 20 + kept // tower.blocks
    return 4 * (5 * tower.parameters + text * tower.text + images * kept)


def span(entry: Spec) -> tuple[int, int] | None:
    """Return the least bytes that fine-tuning a model takes, and those of whole batches."""
    if entry.tower is None:
        return None
    batch = MINI_BATCH if entry.shipped else PAPER_BATCH
    least = needed(entry.tower, 1, recompute=True, text=entry.text)
    return least, needed(entry.tower, batch, text=entry.text)
