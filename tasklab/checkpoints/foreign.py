"""Checkpoints as they are found: under our names, complete, and of the network that is meant.

A checkpoint is a safetensors file, a file of `torch.save` (a state dict, or a whole pickled module
of which nothing is executed), a folder of transformers' `save_pretrained`, a repository on the
Hugging Face hub, or what `tasklab export` writes. A parameter that is missing, unexpected or of
another shape is an error, and so is a network that makes something else of the same weights (GELU
for QuickGELU, another number of heads), as far as the checkpoint tells.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Size, Tensor, nn

from tasklab import models, sources, torchfiles, weights
from tasklab.checkpoints import layouts
from tasklab.errors import TasklabError
from tasklab.files import file_sha256, read_tensors
from tasklab.registry import spec
from tasklab.taskvector import TaskVector


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """A checkpoint as it was found, before it is compared with pre-trained weights.

    Attributes:
        path: The file.
        sha256: Its checksum.
        layout: In which layout it is, in words.
        notes: What else was found, for the reader.
        method: By which method it was fine-tuned, as far as the file tells.
        theta: Parameters by our names; `None` in an exported task vector.
        theta0: Those it was linearized around, if it is a linearized encoder.
        vector: An exported task vector.
        weights: Hash of theta_0, which an exported task vector tells.
    """

    path: Path
    sha256: str
    layout: str
    notes: tuple[str, ...] = ()
    method: str | None = None
    theta: dict[str, Tensor] | None = None
    theta0: dict[str, Tensor] | None = None
    vector: TaskVector | None = None
    weights: str | None = None


def inspect(
    path: Path | str, model: str, *, theta0: Mapping[str, Tensor] | None = None
) -> Checkpoint:
    """Return what is in a checkpoint.

    Args:
        path: A file, a folder, or a repository on the hub.
        model: Short name of the model that it belongs to.
        theta0: Pre-trained parameters. A checkpoint without a projection to the features that are
            compared with texts (transformers' `CLIPVisionModel`) gets the pre-trained one; `None`
            loads the model's if that is so.

    Raises:
        TasklabError: If the checkpoint cannot be had, or does not fit the model.
    """
    entry = spec(model)
    file, settings = sources.locate(path)
    digest, about = file_sha256(file), told(file)
    if about:
        return _exported(file, digest, about, model)
    if entry.kind == "t5":
        raise TasklabError(f"{file}: checkpoints are read for image encoders, and not for {model}.")
    tower, own = _tower(model), shapes(model)
    notes = []
    try:
        if sources.is_safetensors(file):
            tensors, facts = read_tensors(file), {}
        else:
            stored = torchfiles.read(file)
            tensors, facts = torchfiles.tensors(stored), _told_by_modules(stored)
        _check_network(facts | _told_by_settings(settings), tower, model)
        if entry.kind == "vit":  # the classifier of the pre-training task
            tensors = {name: x for name, x in tensors.items() if not name.startswith("head.")}
        found = layouts.recognise(tensors, own, theta0)
    except TasklabError as error:
        raise TasklabError(_naming(file, error)) from error
    if found.left:
        notes.append(f"{found.left} tensors of other parts are left out")
    theta = found.theta
    if set(own) - set(theta) == {"proj"}:
        theta0 = models.load(model).encoder.params if theta0 is None else theta0
        theta = {**theta, "proj": theta0["proj"]}
        notes.append("it has no projection: the pre-trained one is taken")
    begin = found.theta0
    return Checkpoint(
        path=file,
        sha256=digest,
        layout=found.layout,
        notes=tuple(notes),
        method="linearized" if begin is not None else None,
        theta=_fitted(tower, theta, file),
        theta0=_fitted(_tower(model), begin, file) if begin is not None else None,
    )


def shapes(model: str) -> dict[str, Size]:
    """Return the shapes of an encoder's parameters by name, without making one."""
    return {name: parameter.shape for name, parameter in _tower(model).named_parameters()}


def told(file: Path) -> dict[str, Any]:
    """Return what an exported task vector tells of itself; nothing for any other file.

    Raises:
        TasklabError: If it says too little.
    """
    header = sources.header(file).get("tasklab")
    if header is None:
        return {}
    try:
        about = json.loads(header)
        return {name: str(about[name]) for name in ("task", "method", "model", "init", "weights")}
    except (ValueError, KeyError, TypeError) as error:
        raise TasklabError(f"{file} does not say what it is: export it again.") from error


def _exported(file: Path, digest: str, about: Mapping[str, str], model: str) -> Checkpoint:
    """Return a task vector that `tasklab export` wrote."""
    owner = about["model"]
    if owner != model:
        raise TasklabError(f"{file} is a task vector of model {owner!r}, not of {model!r}.")
    vector, own = TaskVector(read_tensors(file)), shapes(model)
    wrong = [name for name, x in vector.items() if own.get(name) != x.shape]
    if wrong:
        raise TasklabError(f"{file} does not fit model {model!r}: {', '.join(wrong[:6])}.")
    _check_finite(vector, file)
    return Checkpoint(
        path=file,
        sha256=digest,
        layout=f"task vector exported by tasklab ({about['task']})",
        method=about["method"],
        vector=vector,
        weights=about["weights"],
    )


def _tower(model: str) -> nn.Module:
    """Return the encoder's module without memory: its names and shapes."""
    entry = spec(model)
    with torch.device("meta"):
        built = models.build(entry)
    return built.visual if entry.kind == "clip" else built


def _fitted(tower: nn.Module, theta: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """Return parameters in float32, after comparing all names and shapes with the encoder's."""
    tower = tower.to_empty(device="cpu").requires_grad_(False)
    weights.fit(tower, theta, str(file))
    fitted = {name: parameter.detach() for name, parameter in tower.named_parameters()}
    _check_finite(fitted, file)
    return fitted


def _check_finite(tensors: Mapping[str, Tensor], file: Path) -> None:
    wrong = [name for name, x in tensors.items() if not x.isfinite().all()]
    if wrong:
        raise TasklabError(f"{file} has values that are not finite, in {', '.join(wrong[:6])}.")


def _told_by_modules(stored: Any) -> dict[str, Any]:
    """Return activation and heads of the image tower in a pickled module, if it is one."""
    named = dict(torchfiles.modules(stored))
    first = [name for name in named if name.endswith("transformer.resblocks.0")]
    towers = [name for name in first if "visual." in name] or first
    if not towers:
        return {}
    facts: dict[str, Any] = {}
    if f"{towers[0]}.mlp.gelu" in named:
        facts["activation"] = named[f"{towers[0]}.mlp.gelu"].name.rpartition(".")[2].lower()
    if f"{towers[0]}.attn" in named:
        facts["heads"] = named[f"{towers[0]}.attn"].state.get("num_heads")
    return facts


def _told_by_settings(settings: Path | None) -> dict[str, Any]:
    """Return activation and heads that transformers' `config.json` names."""
    if settings is None:
        return {}
    try:
        found = json.loads(settings.read_text())
        found = found.get("vision_config", found)
        facts = {"activation": found.get("hidden_act"), "heads": found.get("num_attention_heads")}
    except (ValueError, AttributeError, OSError):
        return {}
    if facts["activation"] is not None:
        facts["activation"] = str(facts["activation"]).replace("_", "")
    return {what: value for what, value in facts.items() if value is not None}


def _check_network(facts: Mapping[str, Any], tower: nn.Module, model: str) -> None:
    blocks = getattr(getattr(tower, "transformer", None), "resblocks", None)
    if blocks is None:
        return
    ours = {
        "activation": type(blocks[0].mlp.gelu).__name__.lower(),
        "heads": blocks[0].attn.num_heads,
    }
    for what, expected in ours.items():
        if facts.get(what, expected) != expected:
            raise TasklabError(
                f"its network has {what} {facts[what]}, and model {model!r} {expected}: with the "
                "same weights it computes something else."
            )


def _naming(file: Path, error: TasklabError) -> str:
    text = str(error)
    return text if str(file) in text else f"{file} cannot be read as a checkpoint: {text}"
