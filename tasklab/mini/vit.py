"""Small vision transformers without a text tower, for the closed-vocabulary experiments.

All are in timm's layout: features are the class token after the final norm.
"""

from __future__ import annotations

import torch

# timm's settings; the architecture is that of the image towers of `mini` and `mini_s`.
_LARGER = {"embed_dim": 192, "depth": 6, "num_heads": 3}
_SMALLER = {"embed_dim": 128, "depth": 4, "num_heads": 2}
TOWERS: dict[str, dict] = {
    "mini_sup_few": _LARGER,
    **dict.fromkeys(("mini_few", "mini_many", "mini_mae", "mini_dino"), _SMALLER),
}
SIZE, PATCH = 32, 8


def build(name: str, classes: int = 0, **settings: object) -> torch.nn.Module:
    """Return a timm vision transformer with random weights from torch's global seed.

    Its head has so many `classes`, 0 for features; `settings` override, e.g. `patch_drop_rate`.

    Args:
        name: timm's name of the architecture.
        classes: Outputs of the head; 0 for features.
        **settings: Of timm's model, e.g. `patch_drop_rate`.
    """
    from timm.models.vision_transformer import VisionTransformer

    shape = {"img_size": SIZE, "patch_size": PATCH, "num_classes": classes}
    return VisionTransformer(**{**shape, **TOWERS[name], **settings})
