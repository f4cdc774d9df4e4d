"""Pre-trained models by their short names, with their weights.

`load` gives a `Clip`: an `Encoder` (the image tower with its pre-trained parameters theta_0) and,
for models that have one, the text tower from which zero-shot heads are made. Both are frozen. For
T5 the encoder is the model up to the first generated token, and the text tower gives the rows of
the output embedding. The models' libraries take seconds to load: they are imported where used.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tasklab import architectures, machine, mini, models
from tasklab.errors import TasklabError, choose
from tasklab.isolation import isolated
from tasklab.mini import vit
from tasklab.mini.clip import MEAN, STD
from tasklab.models.clip import Clip, encoder_of
from tasklab.models.encoder import Encoder, TextEncoder, math_attention
from tasklab.models.weights import compare, find, fit, read_weights, remember
from tasklab.models.zoo import INITS, REGISTRY, Spec, spec
from tasklab.storage import folders

__all__ = [
    "REGISTRY", "Clip", "Encoder", "Spec", "TextEncoder", "load", "math_attention", "outline",
    "shared", "spec",
]  # fmt: skip


_SHARED: weakref.WeakValueDictionary[tuple, Clip] = weakref.WeakValueDictionary()


@isolated
def load(
    name: str,
    *,
    init: str = "pretrained",
    seed: int = 0,
    device: torch.device | str = "cpu",
    weights: Path | str | None = None,
    blocks: int | None = None,
    patches: int | None = None,
) -> Clip:
    """Return a model by its short name.

    Args:
        name: A name in `REGISTRY`, or that of a library's model: `timm/` and one of timm's, `st/`
            and a BERT of sentence-transformers.
        init: `"random"` draws the encoder from `seed`. The text tower stays pre-trained for models
            whose weights ship with the package, and is random too for the others.
        seed: Of random weights.
        device: Where the model goes.
        weights: A checkpoint file to take instead of the usual one.
        blocks: Of each tower and stage its first blocks alone, at most so many: a rehearsal's.
        patches: Of images so small that a side has so many, for a random transformer of few
            `blocks` by open_clip; `None` is the model's own size.

    Raises:
        TasklabError: If the model is unknown, its weights are not on this machine and cannot be
            fetched (within five seconds), a checkpoint does not fit the model, or the device is
            not there or cannot run this build of torch.
    """
    entry = spec(name)
    machine.check_device(device)
    folders.check_working()
    if init == "random" and weights is not None:
        raise TasklabError("init='random' takes no weights: leave one of the two out.")
    model = _filled(entry, init, seed, weights, (blocks, patches))
    if blocks is not None:
        entry, model = dataclasses.replace(entry, blocks=0), _shortened(model, blocks)
    return as_clip(entry, model, init=init, device=device)


def as_clip(
    entry: Spec, model: nn.Module, *, init: str = "pretrained", device: torch.device | str = "cpu"
) -> Clip:
    """Return a network of `build` with its weights as an encoder and, of a CLIP, its text tower.

    Args:
        entry: Entry of the model in the registry.
        model: The network.
        init: `"pretrained"` or `"random"`.
        device: Where the model or the images are to be.
    """
    model = model.to(device=device, dtype=torch.float32).eval().requires_grad_(False)
    device = torch.device(device)
    if entry.kind == "t5":
        return models.text_models.text_to_text(entry, init, model, device)
    if entry.kind == "bert":
        return models.text_models.sentences(entry, init, model, device)
    image_tower = model.visual if _reads(entry) else model
    encoder = encoder_of(Encoder, entry, init, image_tower, device, **images_of(entry, image_tower))
    if not _reads(entry):
        return Clip(encoder=encoder, text=None)
    return Clip(encoder, _text(entry, model, device), model.logit_scale.exp().item())


@isolated
def both_towers(name: str, *, init: str = "pretrained") -> nn.Module:
    """Return open_clip's network of a model, with the text tower that its encoder may discard."""
    entry = spec(name)
    if entry.kind != "clip":
        raise TasklabError(f"model {name!r} is no CLIP.")
    model = _filled(dataclasses.replace(entry, text=True), init)
    return model.to(dtype=torch.float32).eval().requires_grad_(False)


@isolated
def shared(
    name: str,
    *,
    init: str = "pretrained",
    device: str = "cpu",
    blocks: int | None = None,
    patches: int | None = None,
) -> Clip:
    """Return a model as `load` does, with so many `blocks`; once while in use and unchanged.

    Args:
        name: Short name of a model.
        init: `"pretrained"` or `"random"`.
        device: Where the model or the images are to be.
        blocks: Number of blocks of each tower; `None` for all.
        patches: Number of patches on a side of its images; `None` for the model's own.
    """
    key = (name, init, device, blocks, patches)
    if (clip := _SHARED.get(key)) is None or not clip.encoder.origin.intact:
        clip = _SHARED[key] = load(name, init=init, device=device, blocks=blocks, patches=patches)
    return clip


def outline(name: str, *, init: str = "pretrained", device: str = "cpu") -> Clip:
    """Return a model as `shared` does, but a shipped one without its network, in milliseconds.

    Its encoder has theta_0 and all that keys of results hold; it cannot be called.

    Args:
        name: Short name of a model.
        init: `"pretrained"` or `"random"`.
        device: Where the model or the images are to be.
    """
    entry = spec(name)
    if not entry.shipped or init == "random":
        return shared(name, init=init, device=device)
    path = locate(name, init)
    assert path is not None  # shipped weights have one
    _compare(entry, path)  # so it is known to fit, and to hold nothing but parameters
    tensors = _tensors(entry, path)
    if _reads(entry):
        tensors = {k: x for k, x in tensors.items() if k.startswith("visual.")}
    params = {k.removeprefix("visual."): x.to(device).float() for k, x in tensors.items()}
    module = nn.Module()
    encoder = Encoder.of(module, name=name, init=init, **images_of(entry, module))
    return Clip(dataclasses.replace(encoder, params=params, device=torch.device(device)), text=None)


def locate(
    name: str,
    init: str = "pretrained",
    weights: Path | str | None = None,
    *,
    fetch: bool = True,
    reachable: bool | None = None,
) -> Path | None:
    """Return the checkpoint that `load` would read, fetched if need be; `None` if it needs none.

    Unless it is to `fetch` it, the answer is `None` too for one that could be fetched.

    Args:
        name: Short name of a model.
        init: `"pretrained"` or `"random"`.
        weights: A file in place of the published ones.
        fetch: Whether to fetch it.
        reachable: Whether the hub answers, where that is known; `None` asks it.
    """
    entry = spec(name)
    choose("init", init, INITS)
    if init == "random" and not (_reads(entry) and entry.shipped and not entry.both_random):
        return None  # the shipped CLIPs keep their text tower
    if weights is None and entry.shipped:
        path = mini.weights_path(entry.shipped_as)
        if entry.extra and not path.exists():
            raise TasklabError(
                f"the weights of {entry.name!r} do not ship: pre-train it by `python -m "
                f"pretraining.queue {entry.name}` in a clone, then put it where it is looked for "
                f"by `python -m pretraining.install {entry.name}` (both with --folder)."
            )
        if not path.exists():
            raise TasklabError(f"the weights {path} are missing: reinstall tasklab.")
        return path
    if entry.kind == "bert" and weights is None:
        return models.sentences.find_file(entry, fetch=fetch, reachable=reachable)
    return find(
        entry.name, entry.repository, weights,
        file=entry.published, revision=entry.revision, fetch=fetch, reachable=reachable,
    )  # fmt: skip


def _reads(entry: Spec) -> bool:
    return entry.kind == "clip" and entry.text


def _compare(entry: Spec, path: Path) -> None:
    if entry.shipped:
        compare(path, mini.card(entry.shipped_as)["sha256"], "Reinstall tasklab.")
    elif not entry.files:  # whose checksums are known, and compared when they are found
        remember(path, entry.repository)


def _filled(
    entry: Spec,
    init: str,
    seed: int = 0,
    weights: Path | str | None = None,
    less: tuple[int | None, int | None] = (None, None),
) -> nn.Module:
    path = locate(entry.name, init, weights)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        torch.manual_seed(seed)
        model = build(entry, *less) if path is None else build(entry)
    if path is not None:
        if weights is None:
            _compare(entry, path)
        tensors = _tensors(entry, path)
        if init == "random":
            tensors |= {f"visual.{key}": x for key, x in model.visual.state_dict().items()}
        fit(model, tensors, str(path))
    return model


def build(entry: Spec, blocks: int | None = None, patches: int | None = None) -> nn.Module:
    """Return the model with random weights from torch's global seed.

    Args:
        entry: Entry of the model in the registry.
        blocks: Of each tower of open_clip's transformers, at most so many; `None` for all.
        patches: On a side of the images of such a shortened one; `None` for its own size.
    """
    if entry.kind == "clip":
        if entry.shipped:
            model = mini.build(entry.shipped_as)
        else:
            import open_clip

            config = open_clip.get_model_config(entry.arch)
            if blocks is not None:
                _shorten(config, blocks, patches)
            model = open_clip.model.CLIP(**config)
        return model if entry.text else model.visual
    if entry.kind == "vit":
        if entry.shipped:
            return vit.build(entry.name)
        import timm

        norm = functools.partial(nn.LayerNorm, eps=1e-12)
        special = {"norm_layer": norm} if entry.layout == "transformers" else {}
        return timm.create_model(f"{entry.arch}.{entry.pretrained}", num_classes=0, **special)
    if entry.kind == "bert":
        return models.bert.Bert(entry.config)
    from transformers import T5Config, T5ForConditionalGeneration

    if entry.shipped:
        return mini.t5.build_t5()
    return architectures.FirstToken(T5ForConditionalGeneration(T5Config(**entry.config)))


def _shorten(config: dict[str, dict[str, Any]], blocks: int, patches: int | None) -> None:
    """Change a configuration of open_clip's to fewer blocks and smaller images."""
    for tower in (config["vision_cfg"], config["text_cfg"]):
        if isinstance(tower.get("layers"), int):  # no stages of a convolutional one
            tower["layers"] = min(blocks, tower["layers"])
            if patches is not None and "patch_size" in tower:
                tower["image_size"] = patches * tower["patch_size"]


def _shortened(model: nn.Module, count: int) -> nn.Module:
    """Return a network with the first blocks alone, in place of all of equal ones in a row."""
    for parent in list(model.modules()):
        for name, row in list(parent.named_children()):
            if isinstance(row, nn.ModuleList | nn.Sequential) and len(row) > max(count, 2):
                _, *later = row  # the first one may be special
                shapes = [(type(one), *(x.shape for x in one.parameters())) for one in later]
                if len(set(shapes)) == 1 and len(shapes[0]) > 1:
                    setattr(parent, name, row[:count])
    return model


def _tensors(entry: Spec, path: Path) -> dict[str, Tensor]:
    tensors = read_weights(path)
    if not entry.text:
        visual = "visual."
        return {k.removeprefix(visual): x for k, x in tensors.items() if k.startswith(visual)}
    if entry.shipped:
        return tensors
    if entry.layout == "transformers":
        return architectures.vit_from_transformers(tensors)
    if entry.kind == "vit":
        import timm

        names = timm.models.get_pretrained_cfg(f"{entry.arch}.{entry.pretrained}").classifier
        heads = (names,) if isinstance(names, str) else tuple(names or ())
        return {k: x for k, x in tensors.items() if k.rpartition(".")[0] not in heads}
    if entry.kind == "bert":
        return models.bert.from_transformers(tensors)
    if entry.kind == "t5":
        tied = ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        return {k: x for k, x in tensors.items() if k not in tied}  # to shared.weight
    return tensors


def timm_input(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the size of test images in a card of timm, the share that is cut out, and the resize.

    timm pads images where the share is above 1 (three models) or the card's crop mode is `border`
    (six); here all of the image is taken, and its centre cut out.
    """
    size = card.get("test_input_size") or card["input_size"]
    share = card.get("test_crop_pct") or card.get("crop_pct") or 1.0
    words = {"bilinear": card.get("interpolation"), "squash": card.get("crop_mode")}
    how = " ".join(word for word, value in words.items() if value == word)
    return {"image_size": size[-1], "crop": min(share, 1.0), "resize": how or None}


def images_of(entry: Spec, module: nn.Module) -> dict:
    """Return size, mean and standard deviation of the images that an image tower takes."""
    if entry.shipped:
        return {"image_size": 32, "mean": MEAN, "std": STD}
    if entry.kind == "vit":
        card = module.pretrained_cfg
        return {**timm_input(card), "mean": card["mean"], "std": card["std"]}
    import open_clip

    size, card = module.image_size, open_clip.get_pretrained_cfg(entry.arch, entry.pretrained)
    size = size if isinstance(size, int) else size[0]
    mean = card.get("mean", open_clip.OPENAI_DATASET_MEAN)  # open_clip's, if it knows no other
    std = card.get("std", open_clip.OPENAI_DATASET_STD)
    return {"image_size": size, "mean": tuple(mean), "std": tuple(std)}


def _text(entry: Spec, model: nn.Module, device: torch.device) -> Callable[[list[str]], Tensor]:
    @functools.cache
    def tokenizer() -> Callable[[list[str]], Tensor]:
        if entry.shipped:
            return functools.partial(mini.tokenize, name=entry.shipped_as)
        import open_clip

        return open_clip.get_tokenizer(entry.arch)

    @isolated
    @torch.no_grad()
    def text(texts: list[str]) -> Tensor:
        with math_attention(entry.math):
            tokens = tokenizer()(list(texts)).to(device)
            return torch.cat([model.encode_text(part) for part in tokens.split(256)])

    return text
