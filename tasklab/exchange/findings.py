"""Findings about a checkpoint: missing parts, left-out parts, rounding, statistics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasklab.errors import TasklabError, abridged, shown
from tasklab.exchange import naming, precision, sources
from tasklab.exchange.layouts import Weights
from tasklab.storage import state_dicts
from tasklab.taskvector import TaskVector

_TOLD = 1e-3  # of a vector's norm: less rounding is not worth a word
_SMALL = 0.5  # norm relative to theta_0's, and cosine, below which it is a difference
_SAME = 1e-3  # relative distance of statistics: half precision rounds by up to 5e-4
_SAMPLED = 4096  # numbers of a tensor that are compared
_STATISTICS = "running statistics of batch normalisation"
_ROUNDED = "its numbers are rounded"
_FAR = 0.5  # from here on the norm of a task vector, relative to theta_0's, is worth a word
AWAY = "norms of theta_0 away"  # in the note of a vector that is too long
USUAL = ("names the activation", "tensors of other parts are left out")  # in notes
_NUMBERED = re.compile(r"(model|pytorch_model)_\d+\.(safetensors|bin)")
_COUNTER = "num_batches_tracked"  # of batch normalisation; evaluation does not read it


def around(stored: Any) -> list[str]:
    """Describe the other entries of a training run."""
    place, others = state_dicts.place(stored), state_dicts.beside(stored)
    notes = []
    if others:
        taken = f"those in {shown(place)} are read" if place else "they are not read"
        notes.append(
            f"it has other weights in {abridged(map(shown, others))}: {taken}. If others are "
            "meant, save them alone"
        )
    if state_dicts.averaged(place):
        notes.append(f"its weights, in {shown(place)}, are averaged over training")
    return notes


def passed_over(file: Path) -> list[str]:
    """Describe other weights in the folder of the checkpoint.

    Beside the usual names, those of several models that accelerate saves: `model_1.safetensors`.
    """
    others = [x for x in sources.FILES if x != file.name and (file.parent / x).is_file()]
    others = [name for name in others if name not in sources.ADAPTERS]
    others += sorted(x.name for x in file.parent.iterdir() if _NUMBERED.fullmatch(x.name))
    return [f"{file.name} is read, and not {abridged(others)} beside it"] if others else []


def left(named: Weights, tensors: Mapping[str, Tensor], file: Path, kept: int = 0) -> list[str]:
    """Describe tensors of a checkpoint that are no part of the encoder.

    Args:
        named: The encoder's tensors.
        tensors: All tensors of the file.
        file: Its path, beside which adapters may be.
        kept: How many of them are kept, as a head.
    """
    notes = []
    if named.left > kept:
        plain = [naming.bare(name) for name in tensors]
        read = (named.prefix, "visual_projection.") if "proj" in named.theta else (named.prefix,)
        outside = [x for x in plain if named.prefix and not x.startswith(read)]
        heads = dict.fromkeys(name.partition(".")[0] for name in outside)
        which = f" ({abridged(heads, 4)})" if heads else ""
        notes.append(f"{named.left - kept} tensors of other parts are left out{which}")
    averaged = [name for name in tensors if state_dicts.averaged(name)]
    if averaged and state_dicts.averaged(named.prefix):
        notes.append(f"its weights, in {shown(named.prefix)}, are averaged over training")
    elif averaged:
        notes.append(f"its names tell of averaged weights ({abridged(averaged, 2)})")
    if any((file.parent / name).is_file() for name in sources.ADAPTERS):
        notes.append("the adapters in a file beside it are not merged into it")
    return notes


def statistics(
    theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], source: str
) -> list[str]:  # fmt: skip
    """Describe buffers of a checkpoint that differ: a task vector has none, so that theta_0's stay.

    Args:
        theirs: Buffers of the checkpoint.
        ours: Buffers of theta_0.
        source: Name of theta_0's weights.
    """
    absent = [name for name in ours if name not in theirs and not name.endswith(_COUNTER)]
    notes = []
    if absent:
        notes.append(f"it has no {abridged(absent, 2)} (running statistics): theta_0's stay")
    other = []
    for name, x in theirs.items():
        if name in ours and not name.endswith(_COUNTER):
            start = ours[name].double().cpu()
            same = x.shape == start.shape and (x.double() - start).norm() <= _SAME * start.norm()
            other += [] if same else [name]
    if other:
        notes.append(
            f"{_STATISTICS}, or other buffers, differ from those of "
            f"{source} in {len(other)} tensors ({abridged(other, 2)}), and are in no task vector: "
            "theta_0 + tau computes other features than the checkpoint, until they are estimated "
            "anew"
        )
    return notes


def sample(x: Tensor) -> Tensor:
    """Return every k-th number of a tensor, a few thousand in all, in float32 (n,)."""
    return x.detach().flatten()[:: max(1, x.numel() // _SAMPLED)].float().cpu().clone()


def texts(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor], source: str) -> list[str]:
    """Describe a text tower that is not theta_0's: heads are made by theta_0's.

    The temperature alone changes no prediction. Tensors are compared by samples.

    Args:
        theirs: Tensors of the checkpoint's text tower.
        ours: Those of theta_0.
        source: Name of theta_0's weights.
    """
    other = []
    for name in theirs.keys() & ours.keys() - {"logit_scale"}:
        one, start = sample(theirs[name]), sample(ours[name])  # of a sample: itself
        same = one.shape == start.shape and (one - start).norm() <= _SAME * start.norm()
        other += [] if same else [name]
    if not other:
        return []
    return [
        f"its text tower is not that of {source}: {len(other)} tensors differ "
        f"({abridged(sorted(other), 2)}). It is in no task vector, and zero-shot heads are made "
        f"by that of {source}: accuracies are other than the checkpoint's own"
    ]


def lost(notes: Iterable[str]) -> list[str]:
    """Return the notes about parts of the checkpoint that theta_0 + tau lacks."""
    marks = (_STATISTICS, _ROUNDED, "running statistics): theta_0")
    return [one for one in notes if any(mark in one for mark in marks)]


def difference(
    theta: Mapping[str, Tensor],
    kinds: Mapping[str, torch.dtype],
    start: Mapping[str, Tensor],
    start_kinds: Mapping[str, torch.dtype],
) -> tuple[TaskVector, list[str]]:
    """Return the vector theta - theta_0, and notes about rounding.

    Parameters that differ from theta_0 by rounding alone count as unchanged.

    Args:
        theta: Parameters of the checkpoint.
        kinds: Types that they are rounded to, by name.
        start: Parameters theta_0.
        start_kinds: Types that those are rounded to.
    """
    vector = TaskVector.between(start, theta)
    same = [
        name
        for name, kind in kinds.items()
        if vector[name].any() and precision.only_rounded(start[name], theta[name], kind)
    ]
    vector = TaskVector(dict(vector) | {name: torch.zeros_like(vector[name]) for name in same})
    # Weights published in float16 (OpenAI's) are a start that nothing was rounded from.
    half = torch.float16
    start_kinds = {n: kind for n, kind in start_kinds.items() if n in kinds or kind != half}
    notes = rounding(vector, [(theta, kinds), (start, start_kinds)])
    alike = [n for n, x in theta.items() if n in vector and _constant(x) and vector[n].any()]
    if alike := [name for name in alike if not _constant(start[name])]:
        notes.append(
            f"{abridged(alike, 2)} {'has' if len(alike) == 1 else 'have'} one number everywhere, "
            "as before any training, and not in theta_0: was all of it loaded and saved?"
        )
    if same:
        notes.append(f"{len(same)} parameters differ by rounding alone, and count as unchanged")
    return vector, notes


def _constant(x: Tensor) -> bool:
    return x.numel() > 1 and bool((x == x.flatten()[0]).all())


def rounding(
    vector: TaskVector, sides: list[tuple[Mapping[str, Tensor], Mapping[str, torch.dtype]]]
) -> list[str]:
    """Describe how much of a vector is the rounding of the numbers that it is made of."""
    lost, types = precision.share(vector, sides)
    named = " and ".join(str(kind).removeprefix("torch.") for kind in types)
    share = f"{float(f'{100 * lost:.2g}'):g} % of the task vector's norm"
    return [f"{_ROUNDED} to {named}: that is about {share}"] if lost > _TOLD else []


def check_weights(file: Path, theta: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> None:
    """Raise if weights look like a task vector: small, and in another direction than theta_0.

    Args:
        file: The checkpoint, for the message.
        theta: Its parameters.
        start: Parameters theta_0.
    """
    one = TaskVector({name: x for name, x in theta.items() if name in start})
    two = TaskVector({name: start[name] for name in one})
    share = one.norm() / (two.norm() or 1)
    if 0 < share < _SMALL and one.cosine(two) < _SMALL:
        raise TasklabError(
            f"{file} looks like a task vector and not like weights: its norm is {share:.2g} of "
            "theta_0's, and its direction another one. Save it by TaskVector.save, or as "
            "torch.save({'vector': ...})."
        )


def far(distance: float | None) -> list[str]:
    """Describe a vector that is too long to come from fine-tuning."""
    if distance is None or distance <= _FAR:
        return []
    return [f"it is {distance:.2g} {AWAY}: was it trained from there?"]
