"""Which models are pre-trained, how, and in which order.

All image models learn from pools of the same stream (`pretraining.stream`), with one thread each:
a small model gains little from a second, two runs beside each other gain all of it, and a resumed
run ends bit for bit where an uninterrupted one does. Rates, batch and dropped patches were chosen
by speed and by zero-shot accuracy on validation images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pretraining.loop import Recipe

BASE = Recipe()
SHORTER = {3: 720, 10: 2400, 30: 7200}  # % of the samples -> steps; each with a decay of its own
KEEP = tuple(round(steps * (1 - BASE.decay_share)) for steps in SHORTER.values())
SEED = replace(BASE, steps=8000, pool=125)  # 2 million samples, a pool for each seed
FAMILY = replace(BASE, steps=8000)  # the same images for all of the closed vocabulary

# The second world, as long as the first: each drawing about thirty times. Of a drawing with half of
# its patches too little is known: 5.49 after 500 steps, and 5.30 with three quarters.
ICONS = replace(BASE, patch_dropout=0.25)
TEXTS = Recipe(
    batch_size=64, lr=5e-4, weight_decay=0.01, warmup=300, patch_dropout=0.0, shard=4096, pool=0,
    precision="float32",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Job:
    """One pre-training.

    Attributes:
        model: Which model.
        recipe: How it learns.
        source: The job whose kept checkpoint it begins with, if that is there.
        keep: Steps whose checkpoint is kept for others.
    """

    model: str
    recipe: Recipe
    source: str = ""
    keep: tuple[int, ...] = ()


JOBS: dict[str, Job] = {
    "mini": Job(model="mini", recipe=BASE, keep=KEEP),
    **{
        f"mini_{share}": Job(model="mini", recipe=replace(BASE, steps=steps), source="mini")
        for share, steps in SHORTER.items()
    },
    **{
        f"mini_s_seed{seed}": Job(model="mini_s", recipe=replace(SEED, seed=seed))
        for seed in range(3)
    },
    "mini_s": Job(model="mini_s", recipe=BASE),
    "mini_xs": Job(model="mini_xs", recipe=BASE),
    # The closed vocabulary: the image tower of mini_s, 2 million images each.
    "mini_clip_more": Job(model="mini_s", recipe=FAMILY),
    "mini_clip_less": Job(model="mini_clip_less", recipe=replace(FAMILY, pool=15)),
    "mini_few": Job(model="mini_few", recipe=replace(FAMILY, label_smoothing=0.1)),
    "mini_many": Job(model="mini_many", recipe=replace(FAMILY, label_smoothing=0.1)),
    "mini_mae": Job(model="mini_mae", recipe=replace(FAMILY, patch_dropout=0.0)),
    "mini_dino": Job(model="mini_dino", recipe=replace(FAMILY, patch_dropout=0.0)),
    "mini_sup_few": Job(model="mini_sup_few", recipe=replace(FAMILY, label_smoothing=0.1)),
    "mini_convnext": Job(model="mini_convnext", recipe=replace(FAMILY, patch_dropout=0.0)),
    # The second world: `python -m pretraining.icons` makes what they learn from.
    "icons_s": Job(model="icons_s", recipe=ICONS),
    "icons": Job(model="icons", recipe=ICONS),
    **{
        f"icons_s_seed{seed}": Job(model="icons_s", recipe=replace(ICONS, seed=seed))
        for seed in (1, 2)
    },
    "mini_t5": Job(model="mini_t5", recipe=TEXTS),
}
