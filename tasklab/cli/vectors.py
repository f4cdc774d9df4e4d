"""Shared by `compare`, `merge` and `evaluate`: vectors named by words, and images of tasks."""

from __future__ import annotations

import dataclasses
import itertools
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tasklab
from tasklab import bench, exchange, machine, models
from tasklab.bench.parameters import Parameters
from tasklab.cli import runs
from tasklab.cli.parsing import Given
from tasklab.cli.runs import checked, suite_of
from tasklab.errors import TasklabError, path, shown
from tasklab.exchange import places
from tasklab.exchange import sources as located
from tasklab.models.zoo import closed, spec
from tasklab.progress import LATER, bar, begin, tell
from tasklab.storage.store import Store
from tasklab.tasks.suites import Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tasklab.bench import Lab
    from tasklab.exchange.merged import Source
    from tasklab.exchange.places import Target
    from tasklab.models.heads import Head
    from tasklab.taskvector import TaskVector

ROOM = ".merge"  # begins the names of working folders beside what is written
_ALIKE = 0.8  # cosine of two vectors that mostly lead to a common start


def check_several(command: str, words: Sequence[str]) -> None:
    """Check that a command has two vectors or more."""
    if len(words) < 2:
        raise TasklabError(
            f"{command} takes two VECTORs or more: tasklab {command} A.safetensors B.safetensors "
            "--model M."
        )


def check_words(doing: str, words: Sequence[str], given: Given, base: str | None) -> None:
    """Check vectors, base and memory before any reading; print the first line.

    Args:
        doing: What the command does, as the first line.
        words: Vectors, as on the command line.
        given: Parameters on the command line.
        base: Checkpoint that the vectors start from; `None` for the model's.

    Raises:
        TasklabError: If a vector or the base is missing, or memory too small.
    """
    store, model = Store(given.get("store_root")), given.get("model")
    sizes: list[int] = []
    for _, name in map(named, words):
        if runs.is_named(name):
            runs.of_name(name, given)
        else:
            places.check_there(name, store, model)
            if Path(name).exists():
                if base is not None and Path(base).exists() and Path(name).samefile(base):
                    raise TasklabError(f"{name} is the --base: leave it out of the vectors.")
                file, _ = located.locate(name)
                located.check_weights(file)
                sizes.append(sum(x.stat().st_size for x in located.parts(file)))
    if base is not None and (path("--base", base).exists() or "/" not in base):
        located.locate(path("--base", base, None if path("--base", base).is_dir() else "file"))
    tower = spec(model).tower if model else None
    largest, room = max(sizes, default=0), machine.memory().available
    least = largest + 2 * (4 * tower.parameters if tower else largest)
    if room is not None and least > room:
        takes, free = machine.too_large(least, room)
        raise TasklabError(
            f"this takes {takes} of memory, for a checkpoint, its base and the vector, and {free} "
            "are free: end other programs, or take a smaller model."
        )
    begin(f"{doing}.")


def tell_memory(
    lab: Lab, vectors: Mapping[str, TaskVector], method: str, merges: Sequence[str]
) -> None:
    """Print the memory of merges that are solved for on images.

    Args:
        lab: Model and images.
        vectors: By task.
        method: How the vectors were fine-tuned.
        merges: Names of merge rules.

    Raises:
        TasklabError: If memory does not suffice.
    """
    needed = bench.Bench(bench.Given.of(lab, vectors, method)).memory(merges)
    if needed > machine.GIB:
        tell(f"solving for a merge takes about {machine.gib(needed)} of memory.")


def row_of(one: Source, **more: Any) -> dict[str, Any]:
    """Return a vector's row in JSON, cards and reports."""
    return {
        **{"vector": one.name, "task": one.task, "method": one.method, "sha256": one.sha256},
        **{"notes": [*one.notes], "norm": one.vector.norm(), **more},
    }


def own_tasks(data: Sequence[str], templates: Sequence[str] = ()) -> dict[str, Task]:
    """Return tasks of one's own by name, from words such as Cars=images/cars."""
    folders: dict[str, Path] = {}
    for word in data:
        task, equals, folder = word.partition("=")
        if not (equals and task and folder):
            raise TasklabError(f"--data is TASK=FOLDER, e.g. Cars=images/cars, not {shown(word)}.")
        if task in folders:
            raise TasklabError(f"--data {task}=... is given twice.")
        folders[task] = path("--data", folder, "folder")
    if not folders:
        if templates:
            raise TasklabError("--template is for --data: the suite's tasks have prompts.")
        return {}
    words = {"templates": tuple(templates)} if templates else {}
    return {task: tasklab.own.from_folder(one, name=task, **words) for task, one in folders.items()}


def check_tasks(
    vectors: Mapping[str, str], own: Mapping[str, Task], given: Given, instead: str = ""
) -> None:
    """Check that each vector's task has images.

    Args:
        vectors: Names of vectors by task.
        own: Tasks of `--data`, in place of the suite's.
        given: Parameters on the command line.
        instead: What else can be done, as the end of the message.

    Raises:
        TasklabError: If a task has no images.
    """
    parameters = checked(given)
    there = tuple(own) or suite_of(parameters).names
    for task, name in vectors.items():
        if task not in there:
            where = "--data names" if own else f"suite {parameters.suite} has"
            raise TasklabError(
                f"{name} belongs to the task {shown(task)}, and {where} {', '.join(there)}: say "
                f"which of them by TASK={name}, or give its images by --data TASK=FOLDER{instead}."
            )


def check_named(
    words: Sequence[str], own: Mapping[str, Task], given: Given, instead: str = ""
) -> None:
    """Check that tasks named with vectors have images.

    Args:
        words: `TASK=VECTOR`, as on the command line; others are not checked.
        own: Tasks of `--data`, in place of the suite's.
        given: Parameters on the command line.
        instead: What else can be done, as the end of the message.
    """
    check_tasks({task: task for task, _ in map(named, words) if task}, own, given, instead)


def check_into(into: Target | None, one: Source, given: Given, base: str | None) -> None:
    """Check that the model that a vector belongs to can be written.

    Args:
        into: Where `--model-out` writes; `None` without it.
        one: The vector.
        given: Parameters on the command line.
        base: Checkpoint that the vector starts from.

    Raises:
        TasklabError: If the vector is of a linearized model, or the format cannot hold the model.
    """
    if into is not None and one.linear:
        raise TasklabError(
            f"{one.name} belongs in the linearized model, which no checkpoint of open_clip or "
            "transformers is: leave --model-out out."
        )
    if into is not None and not given.get("model"):  # else it was checked before
        exchange.publishing.check_model(into, one.model, one.init, base)


def lab_of(
    given: Given,
    tasks: Sequence[str] | None,
    own: Mapping[str, Task],
    base: str | None = None,
    sources: Sequence[Source] = (),
) -> Lab:
    """Return a lab with the images of some tasks, and heads that classify them.

    Heads are zero-shot, made of class names; where the model has no text tower, linear probes.

    Args:
        given: Parameters on the command line.
        tasks: Names; `None` for all.
        own: Tasks of `--data`, in place of the suite's.
        base: Checkpoint in place of the pre-trained weights.
        sources: Vectors, which must start from these weights.

    Raises:
        TasklabError: If a vector starts from other weights, or images are missing.
    """
    if sources:
        given = {**given, "model": sources[0].model, "init": sources[0].init}
    if closed(given.get("model") or "mini") and not given.get("head"):
        given = {**given, "head": "probe"}
    parameters = Parameters(**given)
    about: dict[str, Any] = {"use": "evaluate", "images_of": tasks, "base": base}
    if own:
        lab = bench.Lab(parameters, own=[own[task] for task in tasks or own], **about)
    else:
        control = suite_of(parameters).control.name
        chosen = [task for task in tasks or () if task != control] or None
        lab = bench.Lab(parameters, tasks=chosen, **about)
    if sources:
        merged = exchange.merged
        merged.check_start(lab.clip.encoder, merged.together(sources), base)
    return lab


def heads_of(sources: Sequence[Source], lab: Lab) -> dict[str, Head]:
    """Return the classifiers of checkpoints by task, for a model without a text tower.

    A head must have a row for each class of its task, in the order of the classes' names. Where
    none fits, linear probes are fitted to features of the model that is evaluated.
    """
    if lab.parameters.vocabulary != "closed":
        return {}
    found: dict[str, Head] = {}
    for one in sources:
        if not one.head:
            continue
        if one.task not in lab.suite.names:
            tell(
                f"{one.name} has a head of its own, and {one.task} is none of the tasks here "
                f"({', '.join(lab.suite.names)}): TASK={one.name} uses it."
            )
            continue
        weight, classes = one.head["weight"], len(lab.suite[one.task].classes)
        if len(weight) != classes:
            tell(
                f"{one.name} has a head of {len(weight)} classes, and {one.task} has {classes}: "
                "linear probes are fitted in its place."
            )
            continue
        head = models.heads.Head(weight, one.head.get("bias"), normalise=False)
        found[one.task] = head.to(lab.clip.encoder.device)
        tell(f"{one.name} has a head of its own, for the {classes} classes of {one.task} in order.")
    return found


def named(word: str) -> tuple[str, str]:
    """Return the task that a word gives to a vector, empty if it gives none, and the vector.

    >>> named("Cars=cars.pt"), named("cars.pt")
    (('Cars', 'cars.pt'), ('', 'cars.pt'))
    """
    task, equals, rest = word.partition("=")
    return (task, rest) if equals and rest and not Path(word).exists() else ("", word)


def sources_of(
    words: Sequence[str],
    given: Given,
    base: str | None,
    room: Path | None = None,
    *,
    heads: bool = False,
) -> list[Source]:
    """Read the task vectors that some words name.

    Args:
        words: As on the command line: `VECTOR` or `TASK=VECTOR`.
        given: Parameters on the command line.
        base: Checkpoint that the vectors start from; `None` for the model's.
        room: Folder for working files (`merged.find`).
        heads: Whether images will be classified, by zero-shot heads unless others are asked for.

    Raises:
        TasklabError: If a vector cannot be read, or two start from different weights.
    """
    tasks, names = [*zip(*map(named, words), strict=True)] or ((), ())
    model, held = given.get("model"), None  # or every vector reads the base again
    if base is not None:  # a path, or owner/name on the hub
        if model:
            held = exchange.importing.base_of(base, model)
            if heads:  # what they lack is said before minutes of reading
                texts = Parameters(**given).vocabulary == "open"
                exchange.bases.completed(base, model, texts=texts)
    elif model:
        _check_start(names, model, given.get("init") or "pretrained")
    store = Store(given.get("store_root"))
    found: list[Source] = []

    def read(name: str) -> Source:
        if runs.is_named(name):
            return runs.source(name, given)
        about = {"base": base, "init": given.get("init")}
        return exchange.merged.find(name, store, given.get("model"), room=room, **about)

    if model and names:
        exchange.reading.shapes(model)  # imports open_clip or timm, before the bar
    with bar(len(names), "reading", unit="vector", soon=LATER) as shown:
        for task, name in zip(tasks, names, strict=True):
            one = read(name)
            twin = next((x.name for x in found if x.sha256 == one.sha256), "")
            notes = (*one.notes, f"it is the same vector as {twin}") if twin else ()
            found.append(dataclasses.replace(one, task=task or one.task, notes=notes or one.notes))
            shown.update()
    del held
    _check_near(found)
    return found


def _check_near(sources: Sequence[Source]) -> None:
    """Point out vectors too long, or too parallel, to come from theta_0; raise for both."""
    far = exchange.findings.AWAY
    away = [one for one in sources if any(far in note for note in one.notes)]
    for one, other in itertools.combinations(away, 2):
        if (cosine := one.vector.cosine(other.vector)) > _ALIKE:
            raise TasklabError(
                f"{one.name} and {other.name} are both far from the base, and nearly in the same "
                f"direction (cosine {cosine:.2f}): give the checkpoint they start from as --base."
            )
    for one, other, cosine in exchange.merged.parallel(sources, _ALIKE):
        tell(
            f"{one.name} and {other.name} have nearly the same direction (cosine {cosine:.2f}), as "
            "vectors of two tasks do not: they share a start other than theta_0, or one was "
            "trained from the other. Give the checkpoint they start from as --base."
        )
    if away:
        tell(
            f"{', '.join(one.name for one in away)}: more than half of theta_0's norm away from "
            "it. Vectors of several bases do not add up: check which --base they start from."
        )


def _check_start(names: Sequence[str], model: str, init: str) -> None:
    """Raise if a checkpoint starts from missing weights: reading it takes minutes."""
    for name in names:
        if Path(name).is_file():
            about = located.header(Path(name))
            if not ("tasklab" in about or located.is_saved(about) or _has_start(Path(name))):
                try:
                    models.loading.locate(model, init)
                except TasklabError as error:
                    raise TasklabError(
                        f"{error} Or give the checkpoint that {name} starts from as --base."
                    ) from error
                return


def _has_start(file: Path) -> bool:
    """Return whether a file of torch.save names the theta_0 of a linearized encoder."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as parts:
        listed = [one for one in parts.namelist() if one.endswith("data.pkl")]
        return any(b"params0" in parts.read(one) for one in listed)
