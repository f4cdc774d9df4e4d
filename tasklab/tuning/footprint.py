"""How much memory fine-tuning takes: a bound, from the shapes of the encoders alone.

The models' weights are not needed. Where the whole batch does not fit, a step is
computed in parts, and blocks twice (`tasklab.tuning.memory`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasklab import machine, tuning
from tasklab.models.shapes import Tower
from tasklab.models.zoo import REGISTRY, Spec
from tasklab.tuning.methods import LINEAR, TABLE
from tasklab.tuning.recipe import MINI_BATCH, PAPER_BATCH, FineTune

if TYPE_CHECKING:
    from tasklab.models.encoder import Encoder
    from tasklab.tuning.memory import Plan

_log = logging.getLogger(__name__)


def needed(
    tower: Tower, images: int = PAPER_BATCH, *, recompute: bool = False, text: bool = True
) -> int:
    """Return the bytes that fine-tuning an encoder takes in float32, at most.

    Five copies of the encoder (theta_0, its change, two moments of AdamW, the gradient), the text
    tower if it is loaded, and a step's tensors for its backward pass.

    Args:
        tower: The encoder's shape.
        images: Images per step.
        recompute: Whether blocks are computed a second time in the backward pass: then only their
            inputs are kept, a twentieth of all, and the insides of one.
        text: Whether the text tower is loaded, too.
    """
    kept = tower.activations
    if recompute:
        kept = kept // 20 + kept // tower.blocks
    return 4 * (5 * tower.parameters + text * tower.text + images * kept)


def span(entry: Spec) -> tuple[int, int] | None:
    """Return the least bytes that fine-tuning a model takes, and those of whole batches."""
    if entry.tower is None:
        return None
    batch = MINI_BATCH if entry.small else PAPER_BATCH
    least = needed(entry.tower, 1, recompute=True, text=entry.text)
    return least, needed(entry.tower, batch, text=entry.text)


def plans(config: FineTune, encoder: Encoder) -> Sequence[Plan]:
    """Return the plans of a step, without those that cannot fit into a processor's memory.

    A GPU says that its memory is full, and the next plan is tried; a system that has given away
    more than it has ends the process.
    """
    ways = tuning.memory.plans(config.batch_size, recompute=bool(encoder.blocks))
    room = machine.memory().available if encoder.device.type == "cpu" else None
    tower = REGISTRY[encoder.name].tower if encoder.name in REGISTRY else None
    if room is None or tower is None:
        return ways
    # values and their tangents
    passes = 2 if config.method in LINEAR or TABLE[config.method].teacher else 1

    def fits(plan: Plan) -> bool:
        images = passes * plan.size
        return needed(tower, images, recompute=plan.recompute, text=False) <= room

    first = next((i for i, plan in enumerate(ways) if fits(plan)), len(ways) - 1)
    if first:
        _log.warning(
            "fine-tuning on %s by %r: %s of memory are free. Images are computed %s, which gives "
            "the same result up to rounding.",
            config.task, config.method, machine.gib(room), ways[first],
        )  # fmt: skip
    return ways[first:]
