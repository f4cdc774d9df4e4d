"""Edited models as checkpoints that open_clip and transformers load, each with a card.

`NAME.safetensors` and `NAME.pt` are for open_clip or timm, a folder is for transformers'
`CLIPModel`. The image tower is theta_0 + tau, the text tower of a CLIP the pre-trained one. The
card is `NAME.md` or the folder's `README.md`. A model of the package's own gets open_clip's
configuration, `NAME.json`. Existing files are never replaced, except a card whose model is
absent.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tasklab import __version__
from tasklab.errors import TasklabError
from tasklab.exchange import bases, layouts, places
from tasklab.exchange.naming import inert
from tasklab.mini import clip as shipped
from tasklab.models import loading
from tasklab.models.encoder import Encoder
from tasklab.models.zoo import spec
from tasklab.storage import atomic
from tasklab.storage.checksums import file_sha256
from tasklab.storage.templates import filled
from tasklab.storage.tensors import canonical, explained, safe_open, write_tensors

_WEIGHTS, _SETTINGS, _IMAGES = "model.safetensors", "config.json", "preprocessor_config.json"


def check_model(into: places.Target, model: str, init: str, base: Path | str | None = None) -> None:
    """Raise unless a model can be written, before any vector of it is read.

    Its weights, or the checkpoint `base` in their place, must be on this machine; a CLIP's need a
    text tower.

    Args:
        into: Where the model is to be written.
        model: Short name of a model (`tasklab list models`).
        init: `"pretrained"` or `"random"`.
        base: A checkpoint whose weights stand in for the published ones; `None` for these.
    """
    places.check_library(into, model)
    entry = spec(model)
    texts = entry.kind == "clip"
    if base is not None:
        bases.completed(base, model, texts=texts)
    path = None if base is not None else loading.locate(model, init, fetch=False)
    if entry.shipped and path is not None:
        with safe_open(path) as file:
            if "token_embedding.weight" not in file.keys():  # noqa: SIM118
                raise TasklabError(
                    f"model {model!r} ships without a text tower, which open_clip and transformers "
                    f"need: {places.ADVICE}."
                )
    if into.folder:
        with torch.device("meta"):
            network = loading.build(dataclasses.replace(entry, text=True))
        if not hasattr(network.visual, "transformer"):
            raise TasklabError(
                f"transformers' CLIPModel has no image tower like that of {model!r}: give "
                f"{places.OPTION} a file for open_clip, e.g. merged_model.safetensors."
            )


@contextmanager
def written(
    into: places.Target,
    theta: Mapping[str, Tensor],
    encoder: Encoder,
    about: Mapping[str, Any],
    base: Path | str | None = None,
) -> Iterator[None]:
    """Write an edited model atomically, at the end of a block without error.

    Args:
        into: Where the model is written.
        theta: The edited parameters by name.
        encoder: The encoder that was edited.
        about: Record of the merge, for the card.
        base: A checkpoint whose weights stand in for the published ones; `None` for these.
    """
    texts = spec(encoder.name).kind == "clip"
    if base is not None:
        network = bases.network(base, encoder.name, texts=texts)
    elif texts:
        network = loading.both_towers(encoder.name, init=encoder.init)
    else:
        network = loading.load(encoder.name, init=encoder.init).encoder.module
    before = "visual." if texts else ""
    tensors = network.state_dict()
    tensors |= {f"{before}{name}": x for name, x in theta.items()}
    with explained(into.place.parent, "write to", places.OPTION):
        if into.folder:
            with atomic.folder(into.place) as draft:
                settings = transformers_settings(network, encoder.image_size)
                atomic.write(draft / _SETTINGS, json.dumps(settings, indent=1))
                atomic.write(draft / _IMAGES, json.dumps(_images(encoder), indent=1))
                write_tensors(in_transformers(tensors), draft / _WEIGHTS, _header(about))
                digest = file_sha256(draft / _WEIGHTS)
                atomic.write(draft / places.CARD, card(into, encoder, about, digest))
                yield
            return
        with ExitStack() as drafts:  # the card is the first that gets its name, the model the last
            draft = drafts.enter_context(atomic.replacing(into.place))
            if into.place.suffix == ".pt":
                plain = {name: x.detach().cpu().clone() for name, x in tensors.items()}
                with draft.open("wb") as stream:  # of a path, the draft's name would be in the file
                    torch.save(plain, stream)
            else:
                write_tensors(tensors, draft, _header(about))
            beside = {}
            if spec(encoder.name).shipped:
                settings = shipped.config(spec(encoder.name).shipped_as)
                beside["settings"] = json.dumps(settings, indent=1)
            beside["card"] = card(into, encoder, about, file_sha256(draft))
            for what, text in beside.items():
                one = drafts.enter_context(atomic.replacing(into.beside[what]))
                one.write_text(text, "utf-8")
            yield


def card(into: places.Target, encoder: Encoder, about: Mapping[str, Any], digest: str) -> str:
    """Return the card of a merged model: usage, merged vectors, and both as JSON.

    `about` has method, title, paper, options, weights, base, and of each of its vectors the vector,
    task, method, sha256 and notes; it may have heads, the tasks whose heads a file has. `digest` is
    the SHA-256 of the file of weights.

    Args:
        into: Where the model is written.
        encoder: The encoder, in eval mode; it is not changed.
        about: Record of the merge.
        digest: SHA-256 of the file of weights.
    """
    facts = {
        **about, "model": encoder.name, "init": encoder.init, "file_sha256": digest,
        "tasklab": __version__,
    }  # fmt: skip
    buffers = any(name.endswith("running_var") for name, _ in encoder.module.named_buffers())
    options = ", ".join(f"{name} {value}" for name, value in about["options"].items())
    return filled(
        "exchange/merged_card.md",
        statistics=buffers,
        inert=inert,
        library=places.library(into, encoder.name),
        model=encoder.name,
        options=options or "no options",
        vectors=about["vectors"],
        heads=about.get("heads", {}),
        noted=any(one.get("notes") for one in about["vectors"]),
        loading=_loading(into, encoder),
        size=encoder.image_size,
        mean=[*encoder.mean],
        std=[*encoder.std],
        facts=canonical(facts, indent=1),
        **{name: about[name] for name in ("title", "paper", "weights", "base")},
    )


def in_transformers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return both towers of open_clip's CLIP under the names of transformers' `CLIPModel`."""
    renamed = {}
    for name, tensor in tensors.items():
        own = name.removeprefix("visual.")
        theirs = layouts.in_transformers(own)
        tower = "text_model." if own == name else "vision_model."
        tensor = tensor.mT if own in layouts.LINEAR else tensor
        parts = tensor.chunk(3) if len(theirs) > 1 else (tensor,)
        for one, part in zip(theirs, parts, strict=True):
            renamed[one if own in layouts.BESIDE else f"{tower}{one}"] = part
    return renamed


def transformers_settings(network: nn.Module, image_size: int) -> dict[str, Any]:
    """Return the `config.json` of open_clip's CLIP as transformers' `CLIPModel`."""
    visual, words = network.visual, network.token_embedding.num_embeddings
    return {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": visual.proj.shape[1],
        "logit_scale_init_value": network.logit_scale.item(),
        "vision_config": {
            **_tower_settings(visual.transformer, visual.proj.shape[1]),
            "model_type": "clip_vision_model", "image_size": image_size,
            "patch_size": visual.conv1.kernel_size[0],
        },
        "text_config": {
            **_tower_settings(network.transformer, network.text_projection.shape[1]),
            "model_type": "clip_text_model", "vocab_size": words,
            "max_position_embeddings": network.positional_embedding.shape[0],
            # the last two words of open_clip's vocabularies; a text's feature is taken at its end
            "bos_token_id": words - 2, "eos_token_id": words - 1, "pad_token_id": words - 1,
        },
    }  # fmt: skip


def _tower_settings(transformer: nn.Module, features: int) -> dict[str, Any]:
    block = transformer.resblocks[0]
    kinds = {"quickgelu": "quick_gelu", "gelu": "gelu"}
    return {
        "hidden_size": transformer.width,
        "intermediate_size": block.mlp.c_fc.out_features,
        "num_hidden_layers": len(transformer.resblocks),
        "num_attention_heads": block.attn.num_heads,
        "hidden_act": kinds[type(block.mlp.gelu).__name__.lower()],
        "layer_norm_eps": block.ln_1.eps,
        "projection_dim": features,
    }


def _images(encoder: Encoder) -> dict[str, Any]:
    size = encoder.image_size
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True, "do_resize": True, "size": {"shortest_edge": size}, "resample": 3,
        "do_center_crop": True, "crop_size": {"height": size, "width": size},
        "do_rescale": True, "rescale_factor": 1 / 255,
        "do_normalize": True, "image_mean": [*encoder.mean], "image_std": [*encoder.std],
    }  # fmt: skip


def _loading(into: places.Target, encoder: Encoder) -> list[str]:
    place = into.place.name
    if into.folder:
        return ["import transformers", f"transformers.CLIPModel.from_pretrained({place!r})"]
    entry, lines = spec(encoder.name), ["import open_clip"]
    if entry.kind == "vit":
        special = ""
        lines = ["import timm"]
        if entry.layout == "transformers":
            lines = ["import functools", "import timm", "import torch"]
            special = "norm_layer=functools.partial(torch.nn.LayerNorm, eps=1e-12), "
        name = f"{entry.arch}.{entry.pretrained}"
        made = f"timm.create_model({name!r}, num_classes=0, {special}checkpoint_path={place!r})"
        return [*lines, made]
    arch = entry.arch
    if entry.shipped:
        settings = into.beside["settings"]
        arch = settings.stem
        lines.append(f"open_clip.add_model_config({settings.name!r})")
        if "timm_model_name" in shipped.config(entry.shipped_as)["vision_cfg"]:
            lines.append("tasklab.mini.clip.register_convnext()  # timm does not know it")
    more = f", image_mean={tuple(encoder.mean)}, image_std={tuple(encoder.std)}"
    return [*lines, f"open_clip.create_model_and_transforms({arch!r}, pretrained={place!r}{more})"]


def _header(about: Mapping[str, Any]) -> dict[str, str]:
    return {"format": "pt", "merged": canonical(about)}
