"""Small networks of the libraries' kinds, which tests of gradients go through."""

import functools

import timm
from open_clip.transformer import QuickGELU, VisionTransformer
from torch import nn

OUT = 8  # features
SIDE = 32  # of images


def vit(quick: bool = False, layers: int = 3) -> nn.Module:
    return VisionTransformer(
        image_size=SIDE, patch_size=8, width=16, layers=layers, heads=2, mlp_ratio=4,
        output_dim=OUT, act_layer=QuickGELU if quick else nn.GELU,
    )  # fmt: skip


def timm_vit() -> nn.Module:
    return timm.models.VisionTransformer(
        img_size=SIDE, patch_size=8, embed_dim=16, depth=3, num_heads=2, num_classes=OUT,
        init_values=0.5,
    )  # fmt: skip


def convnext() -> nn.Module:
    return timm.models.ConvNeXt(depths=(1, 1, 2, 1), dims=(4, 8, 8, 8), num_classes=OUT)


MODELS = {  # how each is made, and what begins the names of its blocks
    "vit": (vit, "transformer.resblocks."),
    "quick": (functools.partial(vit, quick=True), "transformer.resblocks."),
    "timm": (timm_vit, "blocks."),
    "convnext": (convnext, "stages.2.blocks."),
}
