"""The registry of pre-trained models: what a short name stands for. Reading it needs no torch."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from typing import Literal, get_args

from tasklab.errors import TasklabError, choose, unknown

MODELS = (
    "mini", "vitb32", "vitb16", "vitl14", "convnext", "vitb16_in1k", "t5_base",
    "mini_s", "mini_xs", "mini_convnext", "mini_sup_few", "mini_t5",
    "vitb16_in21k", "vitl16_in21k", "mae_b16", "dino_b16",
    "clip_b16_laion400m", "clip_b16_laion2b", "clip_l14_laion2b",
    "mini_few", "mini_many", "mini_mae", "mini_dino",
    "mini_clip_less", "mini_clip_more", "mini_clip_large",
)  # fmt: skip
TIMM = "timm/"  # before the name of any model of timm's: one without a text tower
TEXT_MODELS = ("t5_base", "mini_t5")
CLOSED_MODELS = (  # without a text tower
    "vitb16_in1k", "vitb16_in21k", "vitl16_in21k", "mae_b16", "dino_b16",
    "clip_b16_laion400m", "clip_b16_laion2b", "clip_l14_laion2b",
    "mini_sup_few", "mini_few", "mini_many", "mini_mae", "mini_dino",
    "mini_clip_less", "mini_clip_more", "mini_clip_large",
)  # fmt: skip
# Models that a chapter compares, by role. From `sup_few` on, they are the schemes of the
# closed-vocabulary paper, table 2: `few` and `many` classes, CLIP on `less` and on `more` data.
FAMILIES = (
    {
        "small": "mini_xs",
        "medium": "mini_s",
        "large": "mini",
        "convnext": "mini_convnext",
        "closed": "mini_sup_few",
        "text": "mini_t5",
        "sup_few": "mini_few",
        "sup_many": "mini_many",
        "mae": "mini_mae",
        "dino": "mini_dino",
        "clip_less": "mini_clip_less",
        "clip_more": "mini_clip_more",
        "sup_large": "mini_sup_few",  # on few classes; the paper's is on many
        "clip_large": "mini_clip_large",
    },
    {
        "small": "vitb32",
        "medium": "vitb16",
        "large": "vitl14",
        "convnext": "convnext",
        "closed": "vitb16_in1k",
        "text": "t5_base",
        "sup_few": "vitb16_in1k",
        "sup_many": "vitb16_in21k",
        "mae": "mae_b16",
        "dino": "dino_b16",
        "clip_less": "clip_b16_laion400m",
        "clip_more": "clip_b16_laion2b",
        "sup_large": "vitl16_in21k",
        "clip_large": "clip_l14_laion2b",
    },
)
Init = Literal["pretrained", "random"]
INITS = get_args(Init)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """What a short name stands for.

    Attributes:
        name: As the user writes it.
        kind: `"clip"` (open_clip: image and text tower), `"vit"` (timm: an image tower alone; the
            features are its class token after the final norm) or `"t5"` (transformers: text in,
            the first generated token out).
        arch: The library's name of the architecture; for shipped models their own.
        pretrained: The library's tag of the weights, or `"shipped"` for those in the package.
        source: Who trained the weights, on what.
        block: Pattern of the names of the blocks within the encoder; empty for what timm takes
            for blocks.
        blocks: How many modules it matches, in order from the input to the features; 0 for any
            number.
        text: Whether the text tower is kept, if there is one: the closed-vocabulary models that
            were trained with one discard it.
        repository: Of the weights on the Hugging Face hub; empty for shipped ones.
        file: Of the weights in the repository; empty for the library's usual one.
        layout: `"transformers"` where the checkpoint has that library's names, and the model its
            layer norms (epsilon 1e-12); empty where both are those of the library of `kind`.
        math: Whether attention takes the math kernel in every pass: with few tokens it is the
            faster one (1.3 to 2.5 times at 17 tokens on a CPU).
    """

    name: str
    kind: str = "clip"
    arch: str
    pretrained: str
    source: str
    block: str
    blocks: int
    text: bool = True
    repository: str = ""
    file: str = ""
    layout: str = ""
    math: bool = False

    @property
    def shipped(self) -> bool:
        """Whether the weights are in the package."""
        return self.pretrained == "shipped"

    @property
    def published(self) -> str:
        """The file of the weights in their repository."""
        usual = "open_clip_model" if self.kind == "clip" else "model"
        return self.file or f"{usual}.safetensors"


_RESBLOCK = r"transformer\.resblocks\.\d+"
_STAGE = r"trunk\.stages\.\d+\.blocks\.\d+"
_BLOCK = r"blocks\.\d+"
_T5_BLOCK = r"(?:encoder|decoder)\.block\.\d+"
_OPENAI = "OpenAI CLIP, 400 million image-text pairs"
_WORLD = "shipped with tasklab: drawn images (tasklab.mini)"
_SCALING = "laion/scaling-laws-openclip"  # where table 2's two CLIPs of closed vocabulary are

_SPECS = (
    Spec(
        name="mini",
        arch="tasklab-mini",
        pretrained="shipped",
        source="shipped with tasklab: drawn images and captions (tasklab.mini)",
        block=_RESBLOCK,
        blocks=6,
        math=True,
    ),
    Spec(
        name="vitb32",
        arch="ViT-B-32-quickgelu",  # OpenAI's weights were trained with QuickGELU
        pretrained="openai",
        source=_OPENAI,
        block=_RESBLOCK,
        blocks=12,
        repository="timm/vit_base_patch32_clip_224.openai",
    ),
    Spec(
        name="vitb16",
        arch="ViT-B-16-quickgelu",
        pretrained="openai",
        source=_OPENAI,
        block=_RESBLOCK,
        blocks=12,
        repository="timm/vit_base_patch16_clip_224.openai",
    ),
    Spec(
        name="vitl14",
        arch="ViT-L-14-quickgelu",
        pretrained="openai",
        source=_OPENAI,
        block=_RESBLOCK,
        blocks=24,
        repository="timm/vit_large_patch14_clip_224.openai",
    ),
    Spec(
        name="convnext",
        arch="convnext_base_w",
        pretrained="laion2b_s13b_b82k_augreg",
        source="OpenCLIP, LAION-2B",
        block=_STAGE,
        blocks=36,
        repository="laion/CLIP-convnext_base_w-laion2B-s13B-b82K-augreg",
    ),
    Spec(
        name="vitb16_in1k",
        kind="vit",
        arch="vit_base_patch16_224",
        pretrained="augreg_in1k",
        source="timm, supervised on ImageNet-1k",
        block=_BLOCK,
        blocks=12,
        repository="timm/vit_base_patch16_224.augreg_in1k",
    ),
    Spec(
        name="t5_base",
        kind="t5",
        arch="t5-base",
        pretrained="google-t5",
        source="T5, the Colossal Clean Crawled Corpus and supervised tasks",
        block=_T5_BLOCK,
        blocks=24,
        repository="google-t5/t5-base",
    ),
    Spec(
        name="mini_s",
        arch="tasklab-mini-s",
        pretrained="shipped",
        source=_WORLD,
        block=_RESBLOCK,
        blocks=4,
        math=True,
    ),
    Spec(
        name="mini_xs",
        arch="tasklab-mini-xs",
        pretrained="shipped",
        source=_WORLD,
        block=_RESBLOCK,
        blocks=3,
        math=True,
    ),
    Spec(
        name="mini_convnext",
        arch="tasklab-mini-convnext",
        pretrained="shipped",
        source=_WORLD,
        block=_STAGE,
        blocks=9,
        math=True,
    ),
    Spec(
        name="mini_sup_few",
        kind="vit",
        arch="tasklab-mini-vit",
        pretrained="shipped",
        source=f"{_WORLD}, supervised on 52 classes",
        block=_BLOCK,
        blocks=6,
        math=True,
    ),
    Spec(
        name="mini_t5",
        kind="t5",
        arch="tasklab-mini-t5",
        pretrained="shipped",
        source="shipped with tasklab: generated text (tasklab.mini.text)",
        block=_T5_BLOCK,
        blocks=5,
        math=True,
    ),
    # The checkpoints of the closed-vocabulary paper, table 2, and the CLIP ViT-L of its table 1.
    Spec(
        name="vitb16_in21k",
        kind="vit",
        arch="vit_base_patch16_224",
        pretrained="augreg_in21k",
        source="timm, supervised on ImageNet-21k",
        block=_BLOCK,
        blocks=12,
        repository="timm/vit_base_patch16_224.augreg_in21k",
    ),
    Spec(
        name="vitl16_in21k",
        kind="vit",
        arch="vit_large_patch16_224",
        pretrained="orig_in21k",
        source="Google, supervised on ImageNet-21k",
        block=_BLOCK,
        blocks=24,
        repository="google/vit-large-patch16-224-in21k",
        layout="transformers",
    ),
    Spec(
        name="mae_b16",
        kind="vit",
        arch="vit_base_patch16_224",
        pretrained="mae",
        source="Meta, masked autoencoder on ImageNet-1k",
        block=_BLOCK,
        blocks=12,
        repository="facebook/vit-mae-base",
        layout="transformers",
    ),
    Spec(
        name="dino_b16",
        kind="vit",
        arch="vit_base_patch16_224",
        pretrained="dino",
        source="Meta, DINO on ImageNet-1k",
        block=_BLOCK,
        blocks=12,
        repository="facebook/dino-vitb16",
        file="pytorch_model.bin",
        layout="transformers",
    ),
    Spec(
        name="clip_b16_laion400m",
        arch="ViT-B-16",
        pretrained="Model-B-16_Data-400M_Samples-34B_lr-1e-3_bs-88k",
        source="OpenCLIP, LAION-400M, text tower discarded",
        block=_RESBLOCK,
        blocks=12,
        text=False,
        repository=_SCALING,
        file="Model-B-16_Data-400M_Samples-34B_lr-1e-3_bs-88k.pt",
    ),
    Spec(
        name="clip_b16_laion2b",
        arch="ViT-B-16",
        pretrained="Model-B-16_Data-2B_Samples-34B_lr-1e-3_bs-88k",
        source="OpenCLIP, LAION-2B, text tower discarded",
        block=_RESBLOCK,
        blocks=12,
        text=False,
        repository=_SCALING,
        file="Model-B-16_Data-2B_Samples-34B_lr-1e-3_bs-88k.pt",
    ),
    Spec(
        name="clip_l14_laion2b",
        arch="ViT-L-14",
        pretrained="laion2b_s32b_b82k",
        source="OpenCLIP, LAION-2B, text tower discarded",
        block=_RESBLOCK,
        blocks=24,
        text=False,
        repository="laion/CLIP-ViT-L-14-laion2B-s32B-b82K",
    ),
    *(
        Spec(
            name=f"mini_{name}",
            kind="vit",
            arch="tasklab-mini-s-vit",
            pretrained="shipped",
            source=f"{_WORLD}, {scheme}",
            block=_BLOCK,
            blocks=4,
            math=True,
        )
        for name, scheme in (
            ("few", "supervised on 52 classes"),
            ("many", "supervised on 528 classes"),
            ("mae", "masked autoencoder"),
            ("dino", "DINO"),
        )
    ),
    *(
        Spec(
            name=f"mini_clip_{name}",
            arch=arch,
            pretrained="shipped",
            source=f"{_WORLD}, CLIP without its text tower, {which}",
            block=_RESBLOCK,
            blocks=blocks,
            text=False,
            math=True,
        )
        for name, arch, blocks, which in (
            ("less", "tasklab-mini-s", 4, "on few pairs"),
            ("more", "tasklab-mini-s", 4, "that of mini_s"),
            ("large", "tasklab-mini", 6, "that of mini"),
        )
    ),
)
REGISTRY: dict[str, Spec] = {spec.name: spec for spec in _SPECS}


def spec(name: str) -> Spec:
    """Return what a short name stands for.

    Args:
        name: In `REGISTRY`, or of a model of timm's, as in `"timm/resnet50.a1_in1k"`.

    Raises:
        TasklabError: If there is no such model; it suggests the nearest name.
    """
    if name.startswith(TIMM):
        return _of_timm(name)
    if name not in REGISTRY:
        raise unknown("model", name, REGISTRY)
    return REGISTRY[name]


@functools.cache
def _of_timm(name: str) -> Spec:
    """Return the entry of a model of timm's."""
    import timm  # here, for it takes seconds

    try:
        known = timm.models.get_pretrained_cfg(name.removeprefix(TIMM))
    except RuntimeError:  # no such weights
        known = None
    if known is None or not known.hf_hub_id:
        near = difflib.get_close_matches(name.removeprefix(TIMM), timm.list_pretrained(), n=3)
        hint = (
            " did you mean " + " or ".join(repr(TIMM + one) for one in near) + "?" if near else ""
        )
        raise TasklabError(
            f"timm has no pre-trained model {name.removeprefix(TIMM)!r}:{hint} "
            "timm.list_pretrained() returns all names."
        )
    return Spec(
        name=name,
        kind="vit",
        arch=known.architecture,
        pretrained=known.tag,
        source="timm",
        block="",
        blocks=0,
        repository=known.hf_hub_id,
        file=known.hf_hub_filename or "",
    )


def closed(model: str) -> bool:
    """Return whether a model has no text tower."""
    return model in CLOSED_MODELS or model.startswith(TIMM)


def family(model: str) -> dict[str, str]:
    """Return the models that a model is compared with, by role; a model of timm's has none.

    >>> family("vitb16")["large"]
    'vitl14'
    """
    choose_model(model)
    return next((dict(roles) for roles in FAMILIES if model in roles.values()), {})


def choose_model(name: object) -> None:
    """Raise if there is no such model; whether timm has one by that name is seen on loading it."""
    if not (isinstance(name, str) and re.fullmatch(re.escape(TIMM) + r"[\w.-]{1,200}", name)):
        choose("model", name, MODELS)
