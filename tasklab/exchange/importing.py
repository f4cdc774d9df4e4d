"""Import published checkpoints of image encoders, as parameters or task vectors.

    theta = checkpoints.read("tanganke/clip-vit-base-patch32_sun397", "vitb32")
    vector = checkpoints.vector_of("checkpoints/ViT-B-32/Cars/finetuned.pt", "vitb32")

An imported vector has a name and can be used like one of your own:

    checkpoints.add(Store(), "finetuned.pt", "vitb32", "Cars")
    vector = checkpoints.imported(Store(), "vitb32", "Cars_nonlinear")
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tasklab.errors import TasklabError, shown, unknown
from tasklab.exchange import findings, places, precision, reading, sources
from tasklab.exchange.reading import Checkpoint
from tasklab.models import loading
from tasklab.models.encoder import Encoder
from tasklab.models.zoo import closed
from tasklab.storage import vectors
from tasklab.storage.store import Artifact, Store
from tasklab.taskvector import Base, TaskVector
from tasklab.tuning import finetune
from tasklab.tuning.methods import METHODS, TABLE

_log = logging.getLogger(__name__)
_BASES = weakref.WeakValueDictionary[tuple[str, Path, int], Checkpoint]()
_CLOSE = 1e-3  # relative distance of two theta_0: half precision rounds by up to 5e-4
KIND = places.IMPORTED
_PARTIAL = tuple(name for name, one in TABLE.items() if one.parts and not one.vectors)


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """A checkpoint compared with the weights that it starts from."""

    checkpoint: Checkpoint  #: As it was found, with what the comparison adds to its notes
    vector: TaskVector  #: theta - theta_0
    weights: str | None  #: Hash of theta_0; `None` if that is not known
    base: str  #: Where theta_0 is from, in words
    distance: float | None  #: Norm of the vector relative to theta_0's; `None` without theta_0


def read(path: Path | str, model: str) -> dict[str, Tensor]:
    """Return a checkpoint's parameters by the encoder's names, in float32.

    Of a linearized encoder these are theta_0 + tau, which belong in the linearized model. The
    checkpoint may lack the projection to the features that are compared with texts (transformers'
    `CLIPVisionModel`): then it is the pre-trained one.
    """
    checkpoint = reading.inspect(path, model)
    if checkpoint.theta is None:
        raise TasklabError(f"{checkpoint.path} holds a task vector: read it with vector_of().")
    if checkpoint.buffers:
        with contextlib.suppress(TasklabError):  # the model's own weights may not be here
            ours = dict(loading.load(model).encoder.module.named_buffers())
            log_notes(path, findings.statistics(checkpoint.buffers, ours, f"{model} (pretrained)"))
    return checkpoint.theta


def vector_of(path: Path | str, model: str, *, base: Path | str | None = None) -> TaskVector:
    """Return a checkpoint's task vector: its change by fine-tuning.

    `base` is the checkpoint that it starts from (the papers' `zeroshot.pt`); `None` is the model's
    pre-trained one.

    Args:
        path: The checkpoint.
        model: Short name of a model (`tasklab list models`).
        base: The checkpoint that it starts from; by default the published weights.
    """
    made = compare(path, model, base=base)
    log_notes(path, (*made.checkpoint.notes, *findings.far(made.distance)))
    return made.vector


def load(path: Path | str, encoder: Encoder) -> TaskVector:
    """Return a task vector that `tasklab export` wrote, which must start from an encoder."""
    checkpoint = reading.contents(path, encoder.name)
    if checkpoint.vector is None:
        raise TasklabError(f"{checkpoint.path} is no exported vector: read it with vector_of().")
    if checkpoint.weights != encoder.weights_hash:
        raise TasklabError(_elsewhere(checkpoint, "the encoder", encoder.weights_hash))
    log_notes(path, checkpoint.notes)
    return checkpoint.vector


def compare(path: Path | str, model: str, *, base: Path | str | None = None) -> Comparison:
    """Return a checkpoint, its task vector, and notes about the weights it starts from.

    Args:
        path: The checkpoint.
        model: Short name of a model (`tasklab list models`).
        base: The checkpoint that it starts from; by default the published weights.
    """
    # a wrong file is told first
    found = reading.contents(path, model, lambda: _known(model, base), text="found")
    checkpoint = dataclasses.replace(found, text={})  # no second tower is held
    theta0, source, other = _start(model, base, checkpoint)
    notes = [] if theta0 is None else findings.statistics(checkpoint.buffers, other.buffers, source)
    if found.text:
        named = source if other.text else f"{model} ({found.init})"
        notes += findings.texts(found.text, other.text or _published_texts(model), named)
    if theta0 is None:
        notes.append("the pre-trained weights are not here: its theta_0 was not compared with them")
    elif checkpoint.lacking and set(checkpoint.lacking) <= set(theta0):
        checkpoint = reading.completed(checkpoint, theta0)
    elif checkpoint.lacking:
        notes.append("neither it nor its base has a projection: the task vector has none")
    checkpoint = dataclasses.replace(checkpoint, notes=(*checkpoint.notes, *notes))
    begin = checkpoint.theta0 if theta0 is None else theta0
    if begin is not None and not TaskVector(begin).norm():
        raise TasklabError(f"{source} is zero everywhere: no encoder can start from it.")
    weights = checkpoint.weights if begin is None else hash_of(begin, model)
    if checkpoint.weights not in (None, weights):
        raise TasklabError(_elsewhere(checkpoint, source, str(weights)))
    if checkpoint.theta0 is not None and theta0 is not None:
        far = TaskVector.between(theta0, checkpoint.theta0).norm() / TaskVector(theta0).norm()
        if far > _CLOSE:
            raise TasklabError(
                f"{checkpoint.path} was linearized around other weights than {source}: they differ "
                f"by {far:.2g} of their norm. Give the checkpoint that it starts from as base."
            )
    vector = checkpoint.vector
    if vector is None:
        theta, start = checkpoint.theta or {}, checkpoint.theta0 or begin or {}
        findings.check_weights(checkpoint.path, theta, start)
        vector, notes = findings.difference(theta, checkpoint.kinds, start, other.kinds)
        checkpoint = dataclasses.replace(checkpoint, notes=(*checkpoint.notes, *notes))
    if not vector.norm():
        text = f"{checkpoint.path} does not differ from {source}: it has no vector."
        told = [one for one in checkpoint.notes if not any(word in one for word in findings.USUAL)]
        raise TasklabError(" ".join([text, *(f"{one[0].upper()}{one[1:]}." for one in told)]))
    if weights is not None:
        method = checkpoint.method or (vector.base.method if vector.base else "")
        vector = vector.starting_from(Base(model, checkpoint.init, weights, method))
    distance = None if begin is None else vector.norm() / TaskVector(begin).norm()
    return Comparison(checkpoint, vector, weights, source, distance)


def add(
    store: Store,
    path: Path | str,
    model: str,
    task: str,
    *,
    method: str | None = None,
    name: str | None = None,
    base: Path | str | None = None,
    source: str | None = None,
    called: str | None = None,
) -> dict[str, Any]:
    """Import a checkpoint's task vector into the store, and return its record.

    Args:
        store: The store of results.
        path: Checkpoint, or repository on the hub.
        model: Short name of the model.
        task: Name of its training data, as published.
        method: One of `methods.METHODS`; `None` follows the file, or the changed parameters.
        name: Its name in the store; `None` is `<task>_<method>`.
        base: Checkpoint that it was fine-tuned from; by default the published weights.
        source: Its source, for the record; `None` is the path.
        called: The publisher's name of the method: an error if other parameters changed.
    """
    _check_words(task, name, method)
    made = compare(path, model, base=base)
    checkpoint = made.checkpoint
    if None not in (method, checkpoint.method) and method != checkpoint.method:
        raise TasklabError(
            f"{checkpoint.path} is {checkpoint.method}, not {method}: {checkpoint.layout}."
        )
    notes = list(checkpoint.notes)
    if checkpoint.task is not None and checkpoint.task != task:
        notes.append(f"it was exported as a vector of {checkpoint.task!r}, and is kept as yours")
    if method == "linearized" and checkpoint.method is None:
        notes.append("nothing in it tells that it is linearized: it is taken for theta_0 + tau")
    told = method or checkpoint.method or _method_of(made.vector, model, checkpoint)
    if called is not None and told != (TABLE[called].rates if TABLE[called].penalty else called):
        raise TasklabError(
            f"{source or path} is called {called}; by what moved in it, it is {told}."
        )
    method = called or told
    vector = _by_method(made.vector, method, model, checkpoint)
    name = name or f"{task}_{method}"
    notes += findings.far(made.distance)
    about = {part: getattr(checkpoint, part) for part in ("init", "sha256", "layout")}
    about |= {part: getattr(made, part) for part in ("weights", "base", "distance")}
    about |= {"task": task, "method": method, "source": source or str(path), "notes": notes}
    record = {**about, "norm": vector.norm(), "tensors": len(vector)}
    head = vectors.named(checkpoint.heads) if closed(model) else {}
    if head:  # classes of each; of its own task, their number alone
        sizes = {of: len(one["weight"]) for of, one in checkpoint.heads.items()}
        record["classes"] = sizes.get("", sizes)
    return _recorded(store, model, name, {**vector, **head} if head else vector, record)


def _recorded(
    store: Store, model: str, name: str, tensors: Mapping[str, Tensor], record: dict[str, Any]
) -> dict[str, Any]:
    """Store a vector under its name, which must be free, and return its record."""
    config = {"model": model, "name": name}
    if (found := store.find(KIND, config)) and "classes" in record.keys() - found.record:
        store.discard(KIND, config)  # of a version that left heads out
    kept = store.get(KIND, config, lambda _: (tensors, record))
    if any(kept.record[part] != record[part] for part in ("sha256", "weights", "method", "task")):
        raise TasklabError(
            f"the name {name!r} is taken, by {kept.record['source']} ({kept.record['method']}, "
            f"{kept.record['task']}): choose another one, or remove {kept.path}."
        )
    return config | kept.record


def _check_words(task: str, name: str | None, method: str | None) -> None:
    """Raise for a task or name that is no word, and for an unknown method."""
    if not reading.is_plain(task):
        raise TasklabError("task is what the checkpoint was fine-tuned on, in a word, e.g. Cars.")
    if not reading.is_name(f"{task}_" if name is None else name):
        raise TasklabError(
            "name is a word under which the vector is kept, without any of / \\ @ = : and not "
            f"beginning with - or ~, e.g. Cars_nonlinear: {shown(name or task)} is none."
        )
    if method is not None and method not in METHODS:
        raise unknown("method", method, METHODS)


def _method_of(vector: TaskVector, model: str, checkpoint: Checkpoint) -> str:
    """Return the method that trains all changed parameters, and the fewest others."""
    for method in _PARTIAL:
        with contextlib.suppress(TasklabError):  # a model without attention
            if not _others(vector, _trained(method, model), checkpoint):
                return method
    return "nonlinear"


def _by_method(vector: TaskVector, method: str, model: str, checkpoint: Checkpoint) -> TaskVector:
    """Return a vector of only the parameters that a method trains; no other may have changed."""
    trained = _trained(method, model)
    if changed := _others(vector, trained, checkpoint):
        more = " by more than rounding" if checkpoint.kinds else ""
        raise TasklabError(
            f"{checkpoint.path} has changed {len(changed)} parameters that {method!r} does not "
            f"train{more}, such as {changed[0]}: give the method that it was fine-tuned by."
        )
    return TaskVector({name: x for name, x in vector.items() if name in trained}, vector.base)


def _trained(method: str, model: str) -> set[str]:
    own = {name: torch.empty(shape, device="meta") for name, shape in reading.shapes(model).items()}
    return set(finetune.trainable(own, method, model))


def _others(vector: TaskVector, trained: set[str], checkpoint: Checkpoint) -> list[str]:
    theta, kinds = checkpoint.theta or {}, checkpoint.kinds  # one step of rounding is no change
    return [
        name
        for name, x in vector.items()
        if name not in trained
        and x.any()
        and not (name in kinds and precision.within_a_step(x, theta[name], kinds[name]))
    ]


def imported(store: Store, model: str, name: str) -> TaskVector:
    """Return an imported task vector.

    For example, the sum of two published task vectors, a third of each:

        cars, svhn = (imported(store, "vitb32", f"{task}_nonlinear") for task in ("Cars", "SVHN"))
        theta = ((cars + svhn) / 3).apply(encoder.params)

    Args:
        store: The store of results.
        model: Short name of a model (`tasklab list models`).
        name: Of the vector (`tasklab list vectors`).
    """
    found = _kept(store, model, name)
    log_notes(name, found.record["notes"])
    weights, start = found.record["weights"], found.record.get("init", "pretrained")
    base = Base(model, start, weights, found.record["method"]) if weights is not None else None
    return TaskVector(vectors.parted(found.tensors())[0], base)


def record(store: Store, model: str, name: str) -> dict[str, Any]:
    """Return the record of an imported vector, with `model` and `name`.

    Args:
        store: The store of results.
        model: Short name of a model (`tasklab list models`).
        name: Of the vector (`tasklab list vectors`).
    """
    return {"model": model, "name": name, **_kept(store, model, name).record}


def _kept(store: Store, model: str, name: str) -> Artifact:
    found = store.find(KIND, {"model": model, "name": name})
    if found is None:
        names = sorted(one["name"] for one in store.configs(KIND) if one["model"] == model)
        if not names:
            raise TasklabError(f"nothing is imported for model {model!r} in {store.root}.")
        raise unknown("imported vector", name, names)
    return found


def base_of(path: Path | str, model: str) -> Checkpoint:
    """Return a checkpoint that others start from, with its text tower if it has one.

    While the result is held, repeated calls return it.
    """
    file, _ = sources.locate(path)
    key = (model, file.absolute(), file.stat().st_mtime_ns)
    if (found := _BASES.get(key)) is None:
        found = _BASES[key] = reading.contents(path, model, text="checked")
    if found.theta is None:
        raise TasklabError(f"{path} holds a task vector, which can be no base.")
    return found


def hash_of(theta0: Mapping[str, Tensor], model: str) -> str:
    """Return `Encoder.weights_hash` of parameters that no encoder was made with."""
    made = Encoder.of(nn.Identity(), name=model)
    return dataclasses.replace(made, params=dict(theta0)).weights_hash


def log_notes(name: Path | str, notes: Iterable[str]) -> None:
    """Log unusual findings of a checkpoint."""
    for note in notes:
        if not any(usual in note for usual in findings.USUAL):
            _log.warning("%s: %s", name, note)


def _known(model: str, base: Path | str | None) -> Mapping[str, Tensor]:
    return loading.load(model).encoder.params if base is None else base_of(base, model).theta or {}


@functools.lru_cache(maxsize=2)
def _published_texts(model: str) -> Mapping[str, Tensor]:
    """Return samples of a model's own text tower; none if it is not on this machine."""
    with contextlib.suppress(TasklabError):
        if loading.locate(model, fetch=False) is not None:
            own = loading.both_towers(model).state_dict()
            return {n: findings.sample(x) for n, x in own.items() if not n.startswith("visual.")}
    return {}


def _start(
    model: str, base: Path | str | None, checkpoint: Checkpoint
) -> tuple[Mapping[str, Tensor] | None, str, Checkpoint]:
    """Return theta_0, its source, and its other parts, like a checkpoint's.

    theta_0 is `None` if it is neither there nor needed.
    """
    if base is not None:
        start = base_of(base, model)
        source = f"{start.path.name} ({start.sha256[:12]})"
        if start.lacking and not checkpoint.lacking:
            encoder = _pretrained(model, or_else="one with a projection")
            start = reading.completed(start, encoder.params)
        return start.theta, source, start
    source = f"{model} ({checkpoint.init})"
    nothing = Checkpoint(path=checkpoint.path, sha256="", layout="")
    try:
        encoder = _pretrained(model, checkpoint.init)
    except TasklabError:
        if checkpoint.weights is not None:
            return None, source, nothing
        if checkpoint.theta0 is not None:
            return None, f"the theta_0 in {checkpoint.path.name}", nothing
        raise
    buffers = {} if checkpoint.vector is not None else dict(encoder.module.named_buffers())
    buffers = {name: x for name, x in buffers.items() if name in encoder.module.state_dict()}
    return encoder.params, source, dataclasses.replace(nothing, buffers=buffers)


def _pretrained(
    model: str, init: str = "pretrained", or_else: str = "the checkpoint that it starts from"
) -> Encoder:
    try:
        return loading.load(model, init=init).encoder
    except TasklabError as error:
        # what `models.load` could do besides, an import cannot
        text = str(error).partition(" init='random'")[0].rstrip(".")
        raise TasklabError(f"{text}. Or give {or_else} as base.") from error


def _elsewhere(checkpoint: Checkpoint, what: str, weights: str) -> str:
    theirs = str(checkpoint.weights)[:12]
    return f"{checkpoint.path} starts from the weights {theirs}, and {what} has {weights[:12]}."
