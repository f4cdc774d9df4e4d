"""A model with the weights of a checkpoint in place of its published ones, which need not be here.

    clip = bases.clip_of("zeroshot.pt", "vitb32")

The checkpoint has the image tower, in any layout that `reading` knows. The text tower is the
checkpoint's; where it has none, that of the published weights.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import nn

from tasklab.errors import TasklabError
from tasklab.exchange import importing, reading
from tasklab.models import loading
from tasklab.models.loading import Clip
from tasklab.models.zoo import spec

_IMAGES = "visual."  # before the image tower's names


def clip_of(
    base: Path | str, model: str, *, texts: bool = True, device: torch.device | str = "cpu"
) -> Clip:
    """Return a model with the weights of a checkpoint.

    Args:
        base: A file, a folder, or a repository on the hub.
        model: Short name of the model that it belongs to.
        texts: Whether a CLIP needs its text tower.
        device: Where to compute.

    Raises:
        TasklabError: As `network` does.
    """
    made = network(base, model, texts=texts)
    entry = dataclasses.replace(spec(model), text=hasattr(made, "token_embedding"))
    return loading.as_clip(entry, made, device=device)


def network(base: Path | str, model: str, *, texts: bool = True) -> nn.Module:
    """Return a model's network with the weights of a checkpoint.

    Args:
        base: As of `clip_of`.
        model: As of `clip_of`.
        texts: Whether a CLIP needs its text tower; without, it is the image tower alone.

    Raises:
        TasklabError: If the checkpoint cannot be had or does not fit the model, or lacks what the
            published weights, which are not here either, would have.
    """
    entry = spec(model)
    texts = texts and entry.kind == "clip" and entry.text
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        made = loading.build(dataclasses.replace(entry, text=texts))
    names = [name for name in made.state_dict() if not name.startswith(_IMAGES)] if texts else ()
    if names:
        found = reading.contents(base, model, text=names)
    else:
        found = importing.base_of(base, model)
    needed = "a text tower, which makes the heads" if texts and not found.text else ""
    needed = "the projection to the model's features" if found.lacking else needed
    text, before = dict(found.text), _IMAGES if texts else ""
    if needed:
        try:
            published = loading.both_towers(model) if texts else loading.load(model).encoder.module
        except TasklabError as error:
            probes = "" if found.lacking else ", or fit heads to training images (--head probe)"
            raise TasklabError(
                f"{base} lacks {needed}, and the published weights of {model} are not here: give a "
                f"checkpoint of the whole model as --base{probes}."
            ) from error
        own = published.state_dict()
        text = text or {name: own[name] for name in names}
        found = reading.completed(found, {n: own[f"{before}{n}"] for n in found.lacking})
    images = {**(found.theta or {}), **found.buffers}
    state = made.state_dict() | text | {f"{before}{name}": x for name, x in images.items()}
    made.load_state_dict(state)
    return made
