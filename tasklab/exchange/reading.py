"""Checkpoints as they are found: under our names, complete, and of the network that is meant.

A checkpoint is a safetensors file, a file of `torch.save` (a state dict, or a whole pickled module
of which nothing is executed), a folder of transformers' `save_pretrained` (in one file or in
several) or of open_clip's, a repository on the Hugging Face hub, or what `tasklab export` or
`TaskVector.save` writes. A parameter that is missing, unexpected or of another shape is an error,
and so is a network that makes something else of the same weights (GELU for QuickGELU, another
number of heads), if the checkpoint records it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import safetensors
import torch
from torch import Size, Tensor, nn

from tasklab.errors import TasklabError, abridged, first_line, is_out_of_memory
from tasklab.exchange import findings, layouts, networks, precision, sources
from tasklab.machine import gib
from tasklab.models import loading, weights
from tasklab.models.zoo import INITS, closed, spec
from tasklab.storage import shards, state_dicts, torch_files, vectors
from tasklab.storage.checksums import file_sha256
from tasklab.storage.tensors import read_tensors, text_sha256
from tasklab.taskvector import Base, TaskVector
from tasklab.tuning.methods import METHODS, of_sum

_BROKEN = (  # what a file that is damaged, or made to do harm, can raise in the code below
    ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
    safetensors.SafetensorError, struct.error,
)  # fmt: skip
_TOLD = ("task", "method", "model", "init", "weights")  # by an exported task vector
_MOST_TEXT, _MOST_NOTE = 200, 2000  # characters of one of these, and of a note
_MOST_TIMES = 64  # bytes of a checkpoint beside the encoder's: a text tower, Adam's state, float64
_ROOM = 1 << 30  # bytes that it may have in any case


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """A checkpoint before its comparison with pre-trained weights."""

    path: Path  #: The file; the index of a checkpoint that is split over several
    sha256: str  #: Its checksum; of an index, that of its files' checksums
    layout: str  #: In which layout it is, in words
    notes: tuple[str, ...] = ()  #: What else was found, for the reader
    task: str | None = None  #: What an exported task vector says it was fine-tuned on
    method: str | None = None  #: By which method it was fine-tuned, as far as the file tells
    init: str = "pretrained"  #: From which encoder it was fine-tuned
    theta: dict[str, Tensor] | None = None  #: Parameters by our names; `None` in a task vector
    theta0: dict[str, Tensor] | None = None  #: Those that an encoder was linearized around
    #: What the network holds beside parameters: running statistics.
    buffers: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    #: To which types of 16 or 8 bits parameters were rounded.
    kinds: Mapping[str, torch.dtype] = dataclasses.field(default_factory=dict)
    lacking: tuple[str, ...] = ()  #: What its layout has not: the projection
    vector: TaskVector | None = None  #: A task vector, exported or saved
    weights: str | None = None  #: Hash of theta_0, which an exported task vector tells
    #: What it has of the text tower under open_clip's names, if that is asked for.
    text: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    #: Weight (C, D) and bias (C,) of its classifiers by task; `""` is the one that it is of.
    heads: Mapping[str, Mapping[str, Tensor]] = dataclasses.field(default_factory=dict)


def inspect(path: Path | str, model: str) -> Checkpoint:
    """Return the content of a checkpoint, with the model's own projection if it has none."""
    checkpoint = contents(path, model)
    if not checkpoint.lacking:
        return checkpoint
    return completed(checkpoint, loading.load(model).encoder.params)


def contents(
    path: Path | str,
    model: str,
    start: Callable[[], Mapping[str, Tensor]] | None = None,
    *,
    text: Literal["none", "found", "checked"] = "none",
) -> Checkpoint:
    """Return the content of a checkpoint, which needs no pre-trained weights.

    Args:
        path: Checkpoint, or repository on the hub.
        model: Short name of the model.
        start: Returns the pre-trained parameters: called if a list can be named in two ways.
        text: Whether its text tower is read as well, if it has one: as it is `found`, or `checked`
            against the model's shapes.
    """
    entry = spec(model)
    file, settings = sources.locate(path)
    with _explained(file):
        parts, own = sources.parts(file), shapes(model)
        _check_size(parts, own)
        about = export_facts(file)
        if about:
            return _exported(file, settings, about, model)
        if sources.is_saved(sources.header(file)):
            return _saved(file, model)
        if entry.kind == "t5":
            raise TasklabError(f"checkpoints of T5 are not read: give a model other than {model}.")
        tower, (tensors, facts, notes, changes) = _tower(model), _stored(parts)
        if changes is not None:
            return _of_others(file, changes, model)
        notes += findings.passed_over(file) if Path(path).expanduser().is_dir() else []
        notes += networks.differing(facts | networks.facts_beside(settings, file), tower, model)
        if not entry.reads_text:
            images = loading.images_of(entry, tower)
            notes += networks.check_images(settings, images["mean"], images["std"])
        named = layouts.recognise(tensors, own, start)
        lacking = () if named.projected or "proj" not in own else ("proj",)
        _check_whole(named, own)
        begin, kept = named.theta0, dict(tower.named_buffers())
        head = {n: x.float() for n, x in layouts.classifier(tensors, named, own).items()}
        rounded = {n: precision.kind_of(x) for n, x in named.theta.items() if n in own}
        return Checkpoint(
            path=file,
            sha256=_digest(parts),  # last: a file of something else may be large
            layout=named.layout,
            notes=(*notes, *findings.left(named, tensors, file, closed(model) * len(head))),
            method="linearized" if begin is not None else None,
            theta=_fitted(tower, named.theta, file, lacking),
            theta0=_fitted(_tower(model), begin, file) if begin is not None else None,
            buffers={name: x for name, x in named.theta.items() if name in kept},
            kinds={name: kind for name, kind in rounded.items() if kind is not None},
            lacking=lacking,
            text=_text_tower(tensors, named, file, model, text),
            heads={"": head} if head else {},
        )


def _stored(
    parts: Sequence[Path],
) -> tuple[dict[str, Tensor], dict[str, Any], list[str], Mapping[str, Tensor] | None]:
    """Return the tensors of files, facts of their modules, and notes; or another tool's vector."""
    tensors, facts, notes = dict[str, Tensor](), dict[str, Any](), list[str]()
    for part in parts:
        if sources.is_safetensors(part):
            more = read_tensors(part)
            if twice := more.keys() & tensors.keys():
                raise TasklabError(f"{abridged(sorted(twice))} is in two of its files.")
            tensors |= more
            continue
        stored = torch_files.read(part)
        if (changes := state_dicts.vector(stored)) is not None:
            return {}, {}, [], changes
        tensors |= state_dicts.tensors(stored)
        facts |= networks.facts_of_modules(stored)
        notes += findings.around(stored)
    return tensors, facts, notes, None


def completed(checkpoint: Checkpoint, theta0: Mapping[str, Tensor]) -> Checkpoint:
    """Return a checkpoint with the pre-trained parameters that its layout has not."""
    taken = dict(checkpoint.theta or {}) | {name: theta0[name] for name in checkpoint.lacking}
    note = "it has no projection: the pre-trained one is taken"
    return dataclasses.replace(checkpoint, theta=taken, lacking=(), notes=(*checkpoint.notes, note))


@functools.lru_cache(maxsize=2)
def shapes(model: str) -> Mapping[str, Size]:
    """Return the shapes of an encoder's parameters by name, without making one."""
    named = _tower(model).named_parameters()
    return MappingProxyType({name: parameter.shape for name, parameter in named})


@functools.lru_cache(maxsize=2)
def text_shapes(model: str) -> dict[str, Size]:
    """Return the shapes of a CLIP's text parameters by open_clip's names; none of other models."""
    entry = spec(model)
    if entry.kind != "clip" or not entry.text:
        return {}
    with torch.device("meta"):
        state = loading.build(entry).state_dict()
    return {name: x.shape for name, x in state.items() if not name.startswith("visual.")}


def _text_tower(
    tensors: Mapping[str, Tensor], named: layouts.Weights, file: Path, model: str, how: str
) -> dict[str, Tensor]:
    own = {} if how == "none" else text_shapes(model)
    found = layouts.text_tower(tensors, named, list(own))
    found |= {name: x.reshape(own[name]) for name, x in found.items() if x.numel() == 1}
    if how != "checked":
        return found
    if wrong := [
        f"{name} {tuple(x.shape)} for {tuple(own[name])}"
        for name, x in found.items()
        if x.shape != own[name]
    ]:
        raise TasklabError(f"its text tower does not fit model {model!r}: {abridged(wrong, 3)}.")
    _check_numbers(found, file)
    return found


def export_facts(file: Path) -> dict[str, Any]:
    """Return the metadata of an exported or merged vector; empty for any other file."""
    header = sources.header(file).get("tasklab")
    if header is None:
        return {}
    try:
        told = json.loads(header)
        about = {name: told[name] for name in _TOLD}
        known = about["method"] in METHODS and about["init"] in INITS
        notes = tuple(told.get("notes", ()))  # of a merged one
        known = known and all(is_plain(text) for text in about.values())
        known = known and all(text.isprintable() and len(text) <= _MOST_NOTE for text in notes)
    except (AttributeError, ValueError, LookupError, TypeError, RecursionError):
        known = False
    if not known:
        raise TasklabError(f"{file} does not say what it is: export it again.")
    return {**about, "notes": notes}


def is_plain(text: str) -> bool:
    """Return whether a text can be shown on a line: not blank, not too long, no control codes."""
    return bool(text.strip()) and text.isprintable() and len(text) <= _MOST_TEXT


def is_name(text: str) -> bool:
    """Return whether a vector of that name can be named where files, runs and weights can be, too.

    >>> [is_name(text) for text in ("Cars_2", "a/b", "a@b", "a=b", "a:2", "-a", "..")]
    [True, False, False, False, False, False, False]
    """
    return is_plain(text) and not re.search(r"[/\\@=:]|^[-~]|^\.*$", text)


def _exported(
    file: Path, settings: Path | None, about: Mapping[str, Any], model: str
) -> Checkpoint:
    owner, task, method = about["model"], about["task"], about["method"]
    if owner != model:
        raise TasklabError(f"{file} is a task vector of model {owner!r}, not of {model!r}.")
    layout = f"task vector exported by tasklab ({task})"
    base = Base(owner, about["init"], about["weights"], method)
    more: dict[str, Any] = {"notes": about["notes"], "task": task, "method": method}
    tensors, more["heads"] = vectors.parted(read_tensors(file))
    beside = file.with_name(sources.HEAD_FILE)
    if file.name == sources.VECTOR_FILE and beside.is_file():
        trained = vectors.parted(read_tensors(beside))[1]
        # one made of prompts has no bias: it takes features of unit length
        more["heads"] = {task: head for task, head in trained.items() if "bias" in head}
    if any(head.get("weight", torch.ones(0)).ndim != 2 for head in more["heads"].values()):
        raise TasklabError(f"{file} has a head without a matrix of weights: write it again.")
    made = _vector(file, model, tensors, base, layout=layout, **more)
    if settings is not None and file.name == sources.VECTOR_FILE:
        if _recorded(settings, file.name) not in (None, made.sha256):
            raise TasklabError(
                f"{file} is damaged: its checksum is not the one in {settings.name}. Export it "
                "again, or fetch it again."
            )
    return made


def _saved(file: Path, model: str) -> Checkpoint:
    """Return a task vector that `TaskVector.save` wrote, with its base if that was known."""
    vector = TaskVector.load(file)
    base = vector.base
    known = base is None or {*base.method.split("+")} <= {"", *METHODS}
    if not known or base is not None and not (base.init in INITS and all(map(is_plain, base[:3]))):
        raise TasklabError(f"{file} does not say what it is: save it again.")
    if base is not None and base.model != model:
        raise TasklabError(f"{file} is a task vector of model {base.model!r}, not of {model!r}.")
    return _vector(file, model, vector, base, layout="task vector of TaskVector.save")


def _of_others(file: Path, changes: Mapping[str, Tensor], model: str) -> Checkpoint:
    """Return a task vector that other code saved, under the names of any layout."""
    own, buffers = shapes(model), dict(_tower(model).named_buffers())
    named = layouts.recognise(changes, own)
    tensors = {name: x for name, x in named.theta.items() if name not in buffers}
    absent = len(own) - len(tensors)
    notes = (f"{absent} parameters are not in it: they do not change",) if absent > 0 else ()
    layout = f"task vector of other code ({named.layout})"
    method = "linearized" if named.theta0 is not None else None
    return _vector(file, model, tensors, None, layout=layout, notes=notes, method=method)


def _vector(
    file: Path, model: str, tensors: Mapping[str, Tensor], base: Base | None, **about: Any
) -> Checkpoint:
    """Return a checkpoint that is a task vector, after comparing names and shapes with a model."""
    own = shapes(model)
    if wrong := [name for name, x in tensors.items() if own.get(name) != x.shape]:
        raise TasklabError(f"{file} does not fit model {model!r}: {abridged(wrong)}.")
    _check_numbers(tensors, file)
    vector = TaskVector({name: x.float() for name, x in tensors.items()}, base)
    kinds = {name: kind for name, x in tensors.items() if (kind := precision.kind_of(x))}
    about["notes"] = (*about.get("notes", ()), *findings.rounding(vector, [(vector, kinds)]))
    if base is None:
        unknown = "it does not tell from which weights it starts: the model's own are taken"
        about["notes"] = (unknown, *about["notes"])
    else:
        about |= {
            "init": base.init,
            "weights": base.weights,
            "method": of_sum(base.method) if base.method else None,
        }
    return Checkpoint(path=file, sha256=file_sha256(file), vector=vector, **about)


def _recorded(settings: Path, name: str) -> str | None:
    """Return the checksum that an export's `config.json` has of a file; `None` in older ones."""
    try:
        return shards.settings_in(settings).get("files", {}).get(name)
    except (ValueError, AttributeError) as error:
        raise TasklabError(
            f"{settings} is damaged ({str(error)[:100]}), so that the vector beside it cannot be "
            "checked. Export it again, or fetch it again."
        ) from error


def _tower(model: str) -> nn.Module:
    entry = spec(model)
    with torch.device("meta"):
        built = loading.build(entry)
    return built.visual if entry.kind == "clip" and entry.text else built


def _check_size(parts: Sequence[Path], own: Mapping[str, Size]) -> None:
    size = sum(part.stat().st_size for part in parts)
    most = _MOST_TIMES * sum(4 * shape.numel() for shape in own.values()) + _ROOM
    if size > most:
        raise TasklabError(
            f"it has {gib(size)}, and no checkpoint of this model has more than {gib(most)}: give "
            "the file of its weights."
        )


def _check_whole(named: layouts.Weights, own: Mapping[str, Size]) -> None:
    theta = named.theta
    if named.missing and all(name in own and x.shape == own[name] for name, x in theta.items()):
        raise TasklabError(
            f"it is not whole: {len(named.missing)} missing ({abridged(named.missing)}), and "
            "the others fit. Fetch it again, or choose the model with as many layers. If no others "
            "were trained, save all: the pre-trained weights with these in their place."
        )


def _fitted(
    tower: nn.Module, theta: Mapping[str, Tensor], file: Path, lacking: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Return parameters in float32, after comparing all names and shapes with the encoder's."""
    tower = tower.to_empty(device="cpu").requires_grad_(False)
    own, kept = dict(tower.named_parameters()), dict(tower.named_buffers())
    theta = {name: x for name, x in theta.items() if name not in kept}
    _check_numbers({name: x for name, x in theta.items() if name in own}, file)
    stay = {name: x for name, x in tower.state_dict().items() if name in lacking or name in kept}
    weights.fit(tower, theta | stay, str(file))
    return {name: x.detach() for name, x in own.items() if name not in lacking}


def _check_numbers(tensors: Mapping[str, Tensor], file: Path) -> None:
    if wrong := [name for name, x in tensors.items() if not x.is_floating_point()]:
        kind = str(tensors[wrong[0]].dtype).removeprefix("torch.")
        raise TasklabError(
            f"{file} has {kind} numbers in {abridged(wrong)}, where weights are floating-point "
            "ones: was it quantised? Give the checkpoint from before that."
        )
    if wrong := [name for name, x in tensors.items() if not x.float().isfinite().all()]:
        raise TasklabError(f"{file} has values that are not finite, in {abridged(wrong)}.")


def _digest(parts: Sequence[Path]) -> str:
    digests = [file_sha256(part) for part in parts]
    return digests[0] if len(digests) == 1 else text_sha256({"files": digests})


@contextlib.contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Turn errors of a broken file into one `TasklabError` that names the file."""
    try:
        yield
    except TasklabError as error:
        text = str(error)
        if str(file) in text:
            raise
        raise TasklabError(f"{file} cannot be read as a checkpoint: {text}") from error
    except OSError as error:
        raise TasklabError(f"{file} cannot be read: {error.strerror or error}.") from error
    except _BROKEN as error:
        if is_out_of_memory(error):
            raise TasklabError(
                f"{file} cannot be read: there is not enough memory for what it holds. End other "
                "programs, or ask for its weights as safetensors."
            ) from error
        raise TasklabError(
            f"{file} cannot be read as a checkpoint: {first_line(error)}. Fetch it again, or ask "
            "for its weights as safetensors."
        ) from error
