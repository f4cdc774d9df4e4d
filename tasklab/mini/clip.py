"""The small CLIPs of the embedded benchmark: open_clip models with their own vocabulary."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.mini.shipped import FOLDER
from tasklab.storage import shipped

CONTEXT = 12
MERGES = FOLDER / "bpe_merges.txt.gz"
ICONS = "icons"  # the second world: its models begin with this name, and have its vocabulary
ICON_MERGES = FOLDER / "icons_merges.txt.gz"
MEAN, STD = (0.5, 0.5, 0.5), (0.27, 0.27, 0.27)
_VIT = {"patch_size": 8, "image_size": 32}
_CONVNEXT = {"timm_model_name": "tasklab_convnext", "timm_pool": "avg", "timm_proj": "linear"}
# Image towers; the text tower is the same in all.
_LARGE = _VIT | {"layers": 6, "width": 192, "head_width": 64}
_MIDDLE = _VIT | {"layers": 4, "width": 128, "head_width": 64}
VISION: dict[str, dict] = {
    **dict.fromkeys(("mini", "mini_3", "mini_10", "mini_30"), _LARGE),
    **dict.fromkeys(("mini_s", "mini_s_seed0", "mini_s_seed1", "mini_s_seed2"), _MIDDLE),
    **dict.fromkeys(("mini_clip_less", "mini_clip_more"), _MIDDLE),
    "icons": _LARGE,
    **dict.fromkeys(("icons_s", "icons_s_seed1", "icons_s_seed2"), _MIDDLE),
    "mini_xs": _VIT | {"layers": 3, "width": 64, "head_width": 32},
    "mini_convnext": _CONVNEXT | {"image_size": 32},
}


@functools.cache
def tokenizer(world: str = "mini"):
    """Return open_clip's tokenizer over the small vocabulary of a world."""
    from open_clip.tokenizer import SimpleTokenizer

    merges = ICON_MERGES if world == ICONS else MERGES
    if not merges.exists():
        raise TasklabError(
            f"the vocabulary {merges} is missing: reinstall tasklab, or write it anew with "
            f"python -m pretraining.{'icons' if world == ICONS else 'vocabulary'} from a clone."
        )
    shipped.content(merges)
    return SimpleTokenizer(bpe_path=str(merges), context_length=CONTEXT)


def world_of(name: str) -> str:
    """Return the world that a model was pre-trained on: its vocabulary is that world's."""
    return ICONS if name.startswith(ICONS) else "mini"


def tokenize(texts: Sequence[str], name: str = "mini") -> Tensor:
    """Return token ids (n, 12) for a model, padded with zeros."""
    return tokenizer(world_of(name))(list(texts))


def config(name: str = "mini") -> dict:
    """Return the open_clip configuration of one of the models in `VISION`."""
    words = tokenizer(world_of(name)).vocab_size
    text = {"context_length": CONTEXT, "vocab_size": words, "width": 128, "heads": 4, "layers": 2}
    return {"embed_dim": 128, "vision_cfg": VISION[name], "text_cfg": text}


def build(name: str = "mini", **vision: object) -> torch.nn.Module:
    """Return a model with random weights from torch's global seed.

    `vision` overrides the image encoder's configuration, e.g. `patch_dropout=0.25`.
    """
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    settings = config(name)
    if "timm_model_name" in settings["vision_cfg"]:
        register_convnext()
    return CLIP(
        settings["embed_dim"],
        CLIPVisionCfg(**{**settings["vision_cfg"], **vision}),
        CLIPTextCfg(**settings["text_cfg"]),
    )


@functools.cache
def register_convnext() -> None:
    """Register the small ConvNeXt with timm: four stages on 8 x 8 to 1 x 1 positions."""
    from timm.models import register_model
    from timm.models.convnext import ConvNeXt

    def tasklab_convnext(pretrained: bool = False, **settings: object) -> ConvNeXt:
        for unused in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
            settings.pop(unused, None)
        sizes = {"depths": (1, 2, 4, 2), "dims": (32, 64, 128, 256), "kernel_sizes": (5, 5, 3, 3)}
        model = ConvNeXt(patch_size=2, ls_init_value=1e-2, **sizes, **settings)
        model.default_cfg = model.pretrained_cfg = {}  # open_clip asks for it
        return model

    register_model(tasklab_convnext)


def normalise(images: Tensor) -> Tensor:
    """Return uint8 images (n, 3, S, S) as the model expects them, float32."""
    mean, std = (torch.tensor(x, device=images.device).view(3, 1, 1) for x in (MEAN, STD))
    return (images.float() / 255 - mean) / std
