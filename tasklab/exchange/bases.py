"""A model with the weights of a checkpoint in place of its published ones, which need not be here.

    clip = bases.clip_of("zeroshot.pt", "vitb32")

The checkpoint has the image tower, in any layout that `reading` knows. The text tower is the
checkpoint's; where it has none, that of the published weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from tasklab.errors import TasklabError, abridged
from tasklab.exchange import importing, reading
from tasklab.exchange.reading import Checkpoint
from tasklab.models import loading
from tasklab.models.loading import Clip
from tasklab.models.zoo import spec

_IMAGES = "visual."  # before the image tower's names


def clip_of(
    base: Path | str, model: str, *, texts: bool = True, device: torch.device | str = "cpu"
) -> Clip:
    """Return a model with the weights of a checkpoint; `texts` as of `network`.

    Args:
        base: The checkpoint.
        model: Short name of a model (`tasklab list models`).
        texts: Whether a text tower is needed, as for zero-shot heads.
        device: Where the model or the images are to be.
    """
    found, made = importing.base_of(base, model), network(base, model, texts=texts)
    texts = hasattr(made, "token_embedding")
    beside = _beside(made.state_dict(), model, texts) if found.text or found.buffers else ""
    clip = loading.as_clip(dataclasses.replace(spec(model), text=texts), made, device=device)
    return dataclasses.replace(clip, beside=beside)


def _beside(own: Mapping[str, Tensor], model: str, texts: bool) -> str:
    """Return the hash of a network's parts beside theta_0; empty if they are as published."""
    theta0 = {f"{_IMAGES if texts else ''}{name}" for name in reading.shapes(model)}
    others = {n: x for n, x in own.items() if n not in theta0 and x.is_floating_point()}
    with contextlib.suppress(TasklabError):  # the published weights may not be here
        if loading.locate(model, fetch=False) is not None:
            made = loading.both_towers(model) if texts else loading.load(model).encoder.module
            published = made.state_dict()
            if all(torch.equal(x.float(), published[name].float()) for name, x in others.items()):
                return ""
    return importing.hash_of(others, model)


def network(base: Path | str, model: str, *, texts: bool = True) -> nn.Module:
    """Return a model's network with the weights of a checkpoint.

    Without `texts`, a CLIP is its image tower alone.

    Args:
        base: The checkpoint.
        model: Short name of a model (`tasklab list models`).
        texts: Whether a text tower is needed, as for zero-shot heads.
    """
    texts, found = texts and bool(reading.text_shapes(model)), completed(base, model, texts=texts)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        made = loading.build(dataclasses.replace(spec(model), text=texts))
    images = {**(found.theta or {}), **found.buffers}
    before = _IMAGES if texts else ""
    state = made.state_dict() | {f"{before}{name}": x for name, x in images.items()}
    state |= {name: x.float() for name, x in found.text.items()} if texts else {}
    made.load_state_dict(state, assign=True)  # no second copy in memory
    return made


@functools.cache  # a model is completed several times
def _tell(text: str) -> None:
    logging.getLogger(__name__).warning("%s", text)


def completed(base: Path | str, model: str, *, texts: bool = True) -> Checkpoint:
    """Complete a checkpoint from the published weights, if these are here.

    Args:
        base: The checkpoint.
        model: Short name of a model (`tasklab list models`).
        texts: Whether a text tower is needed, as for zero-shot heads.
    """
    found = importing.base_of(base, model)
    names = [name for name in reading.text_shapes(model) if name not in found.text] if texts else []
    if not names and not found.lacking:
        return found
    try:
        published = loading.both_towers(model) if names else loading.load(model).encoder.module
    except TasklabError as error:
        needed, probes = "a projection to the model's features", ""
        if not found.lacking:
            needed = "a text tower, which makes zero-shot heads"
            probes = ", or fit heads to training images (--head probe)"
        raise TasklabError(
            f"{base} lacks {needed}, and the published weights of {model} are not here: give a "
            f"checkpoint of the whole model as --base{probes}."
        ) from error
    own = published.state_dict()
    before = _IMAGES if names else ""
    if found.lacking:
        found = reading.completed(found, {n: own[f"{before}{n}"] for n in found.lacking})
    if names and found.text:
        taken = f"{abridged(names, 2)} of its text tower are those of the published weights"
        _tell(f"{base}: {taken}")
    return dataclasses.replace(found, text={**found.text, **{n: own[n] for n in names}})
