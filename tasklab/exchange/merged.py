"""Read task vectors from any source; write merged vectors to files.

The header of a merged vector has the entries of an exported one, so that `checkpoints.load` and
`tasklab import` read it as well, and further ones: its sources and its rule.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasklab import sums
from tasklab.errors import TasklabError
from tasklab.exchange import findings, importing, places, reading, sources
from tasklab.models import loading
from tasklab.models.encoder import Encoder
from tasklab.storage import atomic, vectors
from tasklab.storage.store import Store
from tasklab.storage.tensors import explained, write_tensors
from tasklab.taskvector import TaskVector
from tasklab.tuning.methods import LINEAR

LIGHT = 2**25  # bytes of a vector that is held in memory: opening files takes longer
_LONGEST = 160  # characters of all tasks' names


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A task vector with its origin."""

    name: str  #: What the user calls it
    vector: TaskVector  #: The vector, read from a file tensor by tensor where there is one
    model: str  #: Short name of its model
    task: str  #: What it was fine-tuned on; the name where nothing tells
    method: str = "nonlinear"  #: By which method
    init: str = "pretrained"  #: From which encoder
    weights: str | None = None  #: Hash of theta_0; `None` if nothing tells
    sha256: str = ""  #: Checksum of the file that it is in, or was imported from
    notes: tuple[str, ...] = ()  #: What `tasklab import` tells of it
    #: Weight (C, D) and bias (C,) of classifiers by task: its checkpoint's or run's own under `""`,
    #: those of the checkpoints that it was merged of under their tasks.
    heads: Mapping[str, Mapping[str, Tensor]] = dataclasses.field(default_factory=dict)

    @property
    def linear(self) -> bool:
        """Whether it belongs in the linearized model."""
        return self.method in LINEAR


def named_source(
    text: str,
    store: Store,
    model: str | None = None,
    *,
    base: str | None = None,
    init: str | None = None,
    room: Path | None = None,
) -> Source:
    """Return the task vector that a text names.

    Args:
        text: A file, a folder, a repository on the hub, or the name of an imported vector.
        store: The store of results.
        model: Short name of the model that the vector must fit; `None` for any.
        base: The checkpoint that a published one starts from; by default the pre-trained one.
        init: Weights that a vector without a record starts from: a file of `TaskVector.save`.
        room: A folder for the vectors of published checkpoints, which are read from there;
            `None` holds them in memory.
    """
    if places.names_import(text):
        return _imported(text, store, model)
    file, _ = sources.locate(text)
    saved = sources.is_saved(sources.header(file))
    if model is None:
        known = TaskVector.load(file).base if saved else None
        model = known.model if known else reading.export_facts(file).get("model")
    if model is None:
        raise TasklabError(
            f"{text} does not tell of which model it is: give --model (`tasklab list models`). Of "
            "other networks `tasklab merge` and `tasklab inspect` take the weights, with their "
            "--base; their accuracy is measured by your own code."
        )
    if saved:
        return _saved(text, file, model, base, init)
    made = importing.compare(text, model, base=base)
    one = made.checkpoint
    kept = None if one.vector is None else file
    if kept is None and room is not None and not _is_light(made.vector):
        kept = room / f"{uuid.uuid4().hex}.safetensors"
        with explained(room, "write to", "--out"):
            write_tensors(made.vector, kept)
    return Source(
        name=text, model=model, method=one.method or "nonlinear", init=one.init,
        vector=made.vector if kept is None else read_from(kept, made.vector),
        task=one.task or (file if Path(text).is_file() else Path(text)).stem,
        weights=made.weights, sha256=one.sha256, heads=one.heads,
        notes=(*one.notes, *findings.far(made.distance)),
    )  # fmt: skip


def _saved(text: str, file: Path, model: str, base: str | None, init: str | None) -> Source:
    """Return the vector of a file of `TaskVector.save`."""
    found = reading.contents(file, model)
    if not found.vector:
        raise TasklabError(f"{text} is a task vector without tensors: leave it out.")
    start = found.init if found.weights else init or "pretrained"
    size, theirs = _start(model, start, base)
    if base is not None and found.weights not in (None, theirs):
        raise TasklabError(
            f"{text} starts from the weights {str(found.weights)[:12]}, and {base} has "
            f"{theirs[:12]}: give the checkpoint that it starts from as --base, or none."
        )
    return Source(
        name=text, vector=read_from(file, found.vector), model=model, task=file.stem,
        method=found.method or "nonlinear", init=start, sha256=found.sha256,
        weights=theirs if base is not None else found.weights,
        notes=tuple(findings.far(found.vector.norm() / size if size else None)),
    )  # fmt: skip


def read_from(file: Path, vector: TaskVector) -> TaskVector:
    """Return a vector that is read from its file tensor by tensor, but held if it is small."""
    return vector if _is_light(vector) else vector.on_disk(file)


def _is_light(vector: TaskVector) -> bool:
    return sum(x.nbytes for x in vector.values()) <= LIGHT


def parallel(sources: Sequence[Source], least: float) -> list[tuple[Source, Source, float]]:
    """Return the pairs of vectors of two tasks whose cosine is larger than a threshold.

    Copies of one file are no pair.
    """
    cosines = sums.cosines([one.vector for one in sources])
    return [
        (one, other, float(cosines[i, j]))
        for (i, one), (j, other) in itertools.combinations(enumerate(sources), 2)
        if one.task != other.task and one.sha256 != other.sha256 and cosines[i, j] > least
    ]


def together(sources: Sequence[Source]) -> str:
    """Return the hash of the theta_0 of all vectors, which must be of one model and one kind."""
    first, *rest = sources
    for one in rest:
        if one.model != first.model:
            raise TasklabError(f"{first.name} is of {first.model!r}, {one.name} of {one.model!r}.")
        if one.init != first.init:
            raise TasklabError(
                f"{first.name} starts from {first.init} weights, and {one.name} from {one.init} "
                "ones: give vectors of one start, and --init where they do not tell theirs."
            )
        if one.linear != first.linear:
            tangent, plain = (one, first) if one.linear else (first, one)
            raise TasklabError(
                f"{tangent.name} belongs in the linearized model, and {plain.name} does not: they "
                "make no model together."
            )
    starts = {one.weights: one.name for one in sources if one.weights is not None}
    if len(starts) > 1:
        (weights, name), (others, other) = list(starts.items())[:2]
        raise TasklabError(
            f"{name} starts from the weights {weights[:12]}, and {other} from "
            f"{others[:12]}: give vectors of the same pre-trained model."
        )
    if starts:
        return next(iter(starts))
    return loading.load(first.model, init=first.init).encoder.weights_hash


def check_start(encoder: Encoder, weights: str, base: Path | str | None = None) -> None:
    """Raise unless task vectors start from an encoder's weights; they may lack its projection.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        weights: Hash of theta_0 of the vectors.
        base: The checkpoint whose weights the encoder has, for messages.
    """
    if weights == encoder.weights_hash:
        return
    without = {name: x for name, x in encoder.params.items() if name != "proj"}
    if weights != importing.hash_of(without, encoder.name):
        raise TasklabError(
            f"the task vectors start from the weights {weights[:12]}, and "
            f"{encoder.name if base is None else base} has {encoder.weights_hash[:12]}: give the "
            "checkpoint that they start from as --base."
        )


def _start(model: str, init: str, base: Path | str | None) -> tuple[float, str]:
    try:
        file = sources.locate(base)[0] if base else loading.locate(model, init, fetch=False)
    except TasklabError:
        if base:
            raise
        return 0.0, ""
    stamp = file and (file.absolute(), file.stat().st_mtime_ns)
    return _measured(model, init, None if base is None else str(base), stamp)


@functools.lru_cache(maxsize=4)
def _measured(model: str, init: str, base: str | None, stamp: object) -> tuple[float, str]:
    if base is None:
        encoder = loading.load(model, init=init).encoder
        return TaskVector(encoder.params).norm(), encoder.weights_hash
    found = importing.base_of(base, model)
    if found.lacking:
        with contextlib.suppress(TasklabError):  # the published weights may not be here
            found = reading.completed(found, loading.load(model, init=init).encoder.params)
    theta0 = found.theta or {}
    return TaskVector(theta0).norm(), importing.hash_of(theta0, model)


def heads_of(sources: Sequence[Source]) -> dict[str, Mapping[str, Tensor]]:
    """Return the classifiers by task that stay with a merge; none of a task that has two."""
    found: dict[str, Mapping[str, Tensor]] = {}
    twice = set[str]()
    for task, head in ((t or one.task, h) for one in sources for t, h in one.heads.items()):
        same = found.setdefault(task, head)
        if any(not torch.equal(same.get(part, head[part]), head[part]) for part in head):
            twice.add(task)
    return {task: head for task, head in found.items() if task not in twice}


def write_vector(
    path: Path,
    vector: TaskVector,
    sources: Sequence[Source],
    made: Mapping[str, Any],
    model: AbstractContextManager | None = None,
    *,
    heads: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> None:
    """Write a merged vector to one file, atomically; an existing file must be a vector.

    Args:
        path: The file.
        vector: The merged vector.
        sources: The vectors that were merged.
        made: The rule and its options, for readers of the file.
        model: Context that writes the edited model (`publishing.written`): both are written, or
            neither.
        heads: Classifiers of the merged model by task, which are written along.
    """
    tasks = ", ".join(dict.fromkeys(one.task for one in sources))
    about = {
        "task": tasks if len(tasks) <= _LONGEST else f"{len(sources)} tasks",
        "method": sources[0].method,
        "model": sources[0].model,
        "init": sources[0].init,
        "weights": together(sources),
        "notes": [f"{one.name}: {note}" for one in sources for note in findings.lost(one.notes)],
        "merge": {
            **made,
            "vectors": [one.name for one in sources],
            "sha256": [one.sha256 for one in sources],
        },
    }
    with explained(path.parent, "write to", "--out"):
        places.check_free(path)
        # the vector first: one that is there is replaced if this is killed and repeated
        with model or contextlib.nullcontext(), atomic.replacing(path) as draft:
            vectors.export(draft, {**vector, **vectors.named(heads or {})}, about)


def _imported(name: str, store: Store, model: str | None) -> Source:
    kept = places.imported(name, store, model)
    about = {part: kept.record[part] for part in ("task", "method", "weights", "sha256")}
    about |= {"init": kept.record.get("init", "pretrained")}  # older ones do not tell
    about |= {"model": kept.config["model"], "notes": tuple(kept.record["notes"])}
    vector, about["heads"] = vectors.parted(kept.tensors())
    return Source(name=name, vector=read_from(kept.file, TaskVector(vector)), **about)
