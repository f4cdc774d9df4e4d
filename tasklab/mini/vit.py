"""Small vision transformers without a text tower, for the closed-vocabulary experiments.

All are in timm's layout: features are the class token after the final norm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

# timm's settings; the architecture is that of the image towers of `mini` and `mini_s`.
_LARGER = {"embed_dim": 192, "depth": 6, "num_heads": 3}
_SMALLER = {"embed_dim": 128, "depth": 4, "num_heads": 2}
TOWERS: dict[str, dict] = {
    "mini_sup_few": _LARGER,
    "mini_few": _SMALLER,
    "mini_many": _SMALLER,
    "mini_mae": _SMALLER,
    "mini_dino": _SMALLER,
}
SIZE, PATCH = 32, 8
# Names of transformers' ViT and ViTMAE -> timm's: as checkpoints on the hub have them, and as the
# library's modules do since its version 5.
_RENAMED = (
    (r"^(?:vit\.)?(?:encoder\.)?layers?\.(\d+)\.", r"blocks.\1."),
    (r"^(?:vit\.)?embeddings\.cls_token$", "cls_token"),
    (r"^(?:vit\.)?embeddings\.position_embeddings$", "pos_embed"),
    (r"^(?:vit\.)?embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^(?:vit\.)?layernorm\.", "norm."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.(?:attention\.)?(?:query|q_proj)\.", ".attn.q."),
    (r"\.attention\.(?:attention\.)?(?:key|k_proj)\.", ".attn.k."),
    (r"\.attention\.(?:attention\.)?(?:value|v_proj)\.", ".attn.v."),
    (r"\.attention\.(?:output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"^(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
)
_DROPPED = r"^(?:vit\.)?(?:pooler|decoder|classifier)\.|^(?:vit\.)?embeddings\.mask_token$"


def build(name: str, classes: int = 0, **settings: object) -> torch.nn.Module:
    """Return a timm vision transformer with random weights from torch's global seed.

    Args:
        name: One of `TOWERS`.
        classes: Outputs of its head; 0 for features.
        **settings: Overrides, e.g. `patch_drop_rate=0.25`.
    """
    from timm.models.vision_transformer import VisionTransformer

    shape = {"img_size": SIZE, "patch_size": PATCH, "num_classes": classes}
    return VisionTransformer(**{**shape, **TOWERS[name], **settings})


def from_transformers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of transformers' ViT or ViTMAE under timm's names.

    Query, key and value become one matrix `qkv`, in this order. What comes after the encoder's
    final norm (pooler, decoder, classifier) is left out; other names stay as they are, so that a
    model which they do not fit can name them.
    """
    result: dict[str, Tensor] = {}
    for old, tensor in tensors.items():
        if re.search(_DROPPED, old):
            continue
        name = old
        for pattern, new in _RENAMED:
            name = re.sub(pattern, new, name)
        result[name] = tensor
    for name in [name for name in result if ".attn.q." in name]:
        parts = [name.replace(".attn.q.", f".attn.{x}.") for x in "qkv"]
        if all(part in result for part in parts):
            whole = torch.cat([result.pop(part) for part in parts])
            result[name.replace(".attn.q.", ".attn.qkv.")] = whole
    return result
