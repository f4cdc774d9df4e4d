"""The commands `tasklab merge` and `tasklab evaluate`."""

from __future__ import annotations

import json as writer
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from tasklab.cli.parsing import settings
from tasklab.errors import TasklabError, choose, path, real, shown, whole
from tasklab.experiments.parameters import Parameters
from tasklab.tasks.suites import suite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tasklab.exchange.merged import Source
    from tasklab.experiments import Lab
    from tasklab.taskvector import TaskVector

Given = settings()
GivenModel = settings("model")
SPLITS = ("test", "val")


def merge(
    vector: tyro.conf.Positional[tuple[str, ...]],
    given: Given,
    *,
    method: str = "arithmetic",
    alpha: float | str | None = None,
    option: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = (),
    images: int | str = 256,
    base: str | None = None,
    out: Path | str = "merged.safetensors",
    model_out: Path | str | None = None,
    json: bool = False,
) -> None:
    """Merge task vectors, and write the result to a file.

    Args:
        vector: Files or folders of task vectors or published checkpoints, names of imported ones,
            or TASK@METHOD or TASK@METHOD@SEED for runs of the store.
        given: As in a chapter's first code cell.
        method: Way of merging, e.g. ties, tsv_m, iso_c; a wrong name shows all.
        alpha: Coefficient of the result. By default the method's.
        option: Of the method, e.g. keep=0.3.
        images: Training images of each task, for methods that look at them.
        base: The checkpoint that published ones start from.
        out: File to write.
        model_out: Write the merged model as well, with a card: NAME.safetensors or NAME.pt for
            open_clip, or a folder for transformers.
        json: Print JSON: out, model_out, model, weights (the hash of theta_0), method, options,
            norm and tensors of the result, and of each of vectors its vector, task, method, sha256,
            notes, norm and cosine.
    """
    if len(vector) < 2:
        raise TasklabError(
            "merge takes two VECTORs or more: tasklab merge A.safetensors B.safetensors --model M."
        )
    _check(given)
    target = path("--out", out)
    from tasklab.analyses import merging
    from tasklab.exchange import merged, publishing
    from tasklab.models import loading
    from tasklab.storage import rooms

    chosen = merging.registry.method(method)
    options, count = _options(option), whole("--images", images, 1)
    if alpha is not None:
        if "alpha" in options:
            raise TasklabError("give --alpha or --option alpha=..., not both.")
        options["alpha"] = real("--alpha", alpha, -math.inf)
    for name in options:
        choose(f"option of {method}", name, [one for one in chosen.options if one != chosen.needs])
    merged.check_free(target, vector)
    into = None if model_out is None else publishing.target(path("--model-out", model_out))
    if into is not None and into.place.absolute() == target.absolute():
        raise TasklabError("--out and --model-out are the same: give each a place of its own.")
    init = given.get("init") or "pretrained"
    if given.get("model"):  # before vectors are read, which may take minutes
        if into is not None:
            publishing.check_model(into, given["model"], init)
        if chosen.needs:
            loading.locate(given["model"], init, fetch=False)
    written = [target] if into is None else [target, into.place, *into.beside.values()]
    with rooms.room(target.parent, ".merge-", written) as room:
        sources = sources_of(vector, given, base, room)
        weights, first = merged.together(sources), sources[0]
        if into is not None:
            if first.linear:
                raise TasklabError(
                    f"{first.name} belongs in the linearized model, which no checkpoint of "
                    "open_clip or transformers is: leave --model-out out."
                )
            publishing.check_model(into, first.model, first.init)
            encoder = merged.start_of(first.model, first.init, base, weights)
        named = {one.name: one.vector for one in sources}  # for messages
        vectors = named if len(named) == len(sources) else [one.vector for one in sources]
        if chosen.needs:
            options[chosen.needs] = _of_images(chosen.needs, sources, weights, given, count)
        result = merging.merge(method, vectors, **options)
        plain = {name: x for name, x in options.items() if name != chosen.needs}
        rows = [
            {
                "vector": one.name,
                "task": one.task,
                "method": one.method,
                "sha256": one.sha256,
                "notes": [*one.notes],
                "norm": one.vector.norm(),
                "cosine": one.vector.cosine(result),
            }
            for one in sources
        ]
        model = None
        if into is not None:
            start = f"{first.model} ({first.init})" if base is None else base
            about = {"method": method, "title": chosen.title, "paper": chosen.paper, "base": start}
            about |= {"options": _in_full(chosen, plain), "weights": weights, "vectors": rows}
            theta = result.apply(encoder.params)
            model = publishing.written(into, theta, encoder, about)
        merged.write(target, result, sources, {"method": method, "options": plain}, model)
    about = {"out": str(target), "model_out": None if into is None else str(into.place)}
    about |= {"model": first.model, "weights": weights, "method": method, "options": plain}
    about |= {"norm": result.norm(), "tensors": len(result), "vectors": rows}
    if json:
        print(writer.dumps(about, indent=1))
        return
    print(
        f"{chosen.title} (arXiv:{chosen.paper}) of {len(sources)} task vectors of {about['model']}"
    )
    width = max(len(row["vector"]) for row in rows)
    for row in rows:
        print(
            f"  {row['vector']:<{width}}  {row['task']}, {row['method']}, norm {row['norm']:.4g}, "
            f"cosine with the result {row['cosine']:.3f}"
        )
        print_notes(row["notes"])
    model_text = "the linearized model" if first.linear else "the model itself"
    print(f"{len(result)} tensors, norm {about['norm']:.4g}, for {model_text}: written to {target}")
    if into is not None:
        library = "transformers" if into.folder else "open_clip"
        print(f"the merged model, for {library}: {into.place} and its card {into.beside['card']}")


def evaluate(
    model: tyro.conf.Positional[str],
    given: GivenModel,
    *,
    add: Annotated[tuple[str, ...], tyro.conf.arg(metavar="VECTOR[:COEFFICIENT]")] = (),
    subtract: Annotated[tuple[str, ...], tyro.conf.arg(metavar="VECTOR[:COEFFICIENT]")] = (),
    task: tuple[str, ...] = (),
    split: str = "test",
    linear: bool = False,
    base: str | None = None,
    json: bool = False,
) -> None:
    """Add and subtract task vectors, and print the accuracy on every task, before and after.

    Args:
        model: Short name, see `tasklab list models`.
        given: As in a chapter's first code cell.
        add: A vector as `tasklab merge` takes it, times a coefficient (by default 1).
        subtract: Likewise, with the opposite sign.
        task: Only this task. By default all of the suite, and the control task.
        split: test or val.
        linear: Edit the linearized model. By default where the vectors were made for it.
        base: The checkpoint that published ones start from.
        json: Print JSON: model, suite, split, linear, edits (vector, coefficient, notes), tasks
            (task, control, images, and accuracy in % before and after) and their mean without the
            control.
    """
    choose("split", split, SPLITS)
    parameters = Parameters(**{**given, "model": model})
    if parameters.vocabulary == "closed":
        raise TasklabError(
            f"evaluate classifies by heads made of prompts, and model {model!r} here has none: "
            "choose a model with a text tower."
        )
    terms = [(*_term(word), 1) for word in add] + [(*_term(word), -1) for word in subtract]
    whole_suite = suite(parameters.suite)
    control, chosen = whole_suite.control.name, tuple(dict.fromkeys(task))  # each counts once
    for one in chosen:
        choose("task", one, (*whole_suite.names, control))
    from tasklab.exchange import merged
    from tasklab.taskvector import TaskVector

    sources = sources_of([name for name, _, _ in terms], {**given, "model": model}, base)
    from tasklab.experiments.lab import Lab

    own = [one for one in chosen if one != control] or None
    seen = chosen or (*whole_suite.names, control)
    lab = Lab(parameters, progress=False, trains=False, tasks=own, images_of=seen)
    chosen = chosen or (*lab.suite.names, control)
    if sources and merged.together(sources) != lab.clip.encoder.weights_hash:
        raise TasklabError(f"the task vectors start from other weights than {model} here.")
    linear = linear or any(one.linear for one in sources)
    scaled = (one.vector * (c * sign) for one, (_, c, sign) in zip(sources, terms, strict=True))
    rows = _accuracies(lab, TaskVector.sum(scaled), chosen, split, linear)
    edits = [
        {"vector": name, "coefficient": c * sign, "notes": [*one.notes]}
        for one, (name, c, sign) in zip(sources, terms, strict=True)
    ]
    own = [row for row in rows if not row["control"]]
    means = {
        part: sum(row[part] for row in own) / len(own) if own else None
        for part in ("before", "after")
    }
    about = {"model": model, "suite": parameters.suite, "split": split, "linear": linear}
    about |= {"edits": edits, "tasks": rows, "mean": means}
    if json:
        print(writer.dumps(about, indent=1))
        return
    kind = "linearized, " if linear else ""
    print(f"{model} ({kind}{split} images, accuracy in %)")
    for edit in edits:
        print(f"  {edit['coefficient']:+g} {edit['vector']}")
        print_notes(edit["notes"])
    names = [f"{row['task']} (control)" if row["control"] else row["task"] for row in rows]
    width = max(len(name) for name in [*names, "mean of the tasks"])
    print(f"{'':<{width}}  images  before  after")
    for name, row in zip(names, rows, strict=True):
        print(f"{name:<{width}}  {row['images']:>6}  {row['before']:6.1f} {row['after']:6.1f}")
    if means["after"] is not None:
        print(
            f"{'mean of the tasks':<{width}}  {'':>6}  {means['before']:6.1f} {means['after']:6.1f}"
        )


def _check(given: Any) -> None:
    """Raise if a parameter is none, also one that this command has no use for."""
    alone = {name: x for name, x in given.items() if name != "suite" or "model" in given}
    Parameters(**alone)


def _in_full(chosen: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return all options of a method: those that are given, and its defaults."""
    return {name: x for name, x in {**chosen.options, **given}.items() if name != chosen.needs}


def print_notes(notes: Sequence[str]) -> None:
    """Print what is known of a vector, a line for each note."""
    for note in notes:
        print(f"    {note}")


def _accuracies(
    lab: Lab, vector: TaskVector, tasks: Sequence[str], split: str, linear: bool
) -> list[dict[str, Any]]:
    from tasklab.taskvector import TaskVector

    control, unedited = lab.suite.control.name, TaskVector({})
    return [
        {
            "task": task,
            "control": task == control,
            "images": lab.evaluator.count(task, split),
            "before": lab.evaluator.evaluate(unedited, task, split, linear=False),
            "after": lab.evaluator.evaluate(vector, task, split, linear=linear),
        }
        for task in tasks
    ]


def sources_of(
    names: Sequence[str], given: Any, base: str | None, room: Path | None = None
) -> list[Source]:
    """Return the task vectors that some words name.

    Args:
        names: Files, folders, names of imported vectors, or TASK@METHOD.
        given: Notebook parameters, those that are given.
        base: The checkpoint that published ones start from.
        room: As for `merged.find`.

    Raises:
        TasklabError: If one is not there or cannot be read.
    """
    from tasklab.exchange import merged
    from tasklab.storage.store import Store

    if base is not None:  # a path, or owner/name on the hub
        path("--base", base, None if "/" in base or path("--base", base).is_dir() else "file")
        merged.check_base(base, given.get("model"))
    runs = {name: _run_of(name, given) for name in names if _names_run(name)}
    about = {"model": given.get("model"), "base": base, "init": given.get("init"), "room": room}
    store = Store(given.get("store_root"))
    return [
        _run(name, *runs[name]) if name in runs else merged.find(name, store, **about)
        for name in names
    ]


def _names_run(name: str) -> bool:
    return "@" in name and not path("VECTOR", name).exists()


def _run_of(name: str, given: Any) -> tuple[Parameters, str, str, int]:
    """Return the parameters, task, method and seed that TASK@METHOD or TASK@METHOD@SEED stands for.

    All words of a command are checked so before anything is loaded.
    """
    from tasklab.tuning.methods import METHODS

    task, method, *seed = name.split("@")
    choose("method", method, METHODS)
    if len(seed) > 1:
        raise TasklabError(f"{shown(name)} is not TASK@METHOD or TASK@METHOD@SEED.")
    parameters = Parameters(**given)
    choose("task", task, suite(parameters.suite).names)
    number = whole("SEED", seed[0], 0) if seed else parameters.seeds[0]
    return parameters, task, method, number


def _run(name: str, parameters: Parameters, task: str, method: str, number: int) -> Source:
    """Return the vector of a run that is in the store."""
    from tasklab.exchange.merged import Source
    from tasklab.experiments.lab import Lab
    from tasklab.storage.tensors import file_sha256
    from tasklab.tuning.methods import TABLE

    # what a run learnt from is part of its identity
    seen = suite(parameters.suite).names if TABLE[method].others else (task,)
    lab = Lab(parameters, progress=False, trains=False, images_of=seen)
    run = lab.store.find("finetune", lab.identity(task, method, number))
    if run is None:
        raise TasklabError(
            f"the run {name} is not in {lab.store.root}: it is kept where it is fine-tuned, by "
            "the same parameters (--preset, --steps, --lr, ...)."
        )
    from tasklab.taskvector import TaskVector

    names = lab.clip.encoder.params
    vector = TaskVector({n: x for n, x in run.tensors().items() if n in names})
    return Source(
        name=name,
        vector=vector.on_disk(run.file),
        model=lab.parameters.model,
        task=task,
        method=method,
        init=lab.parameters.init,
        weights=run.config["weights"],
        sha256=file_sha256(run.file),
    )


def _of_images(
    needs: str, sources: Sequence[Source], weights: str, given: Any, count: int
) -> Iterator[dict[str, Any]]:
    """Yield what training images of each task tell, at the task's own model."""
    from tasklab.analyses.merging import of_images
    from tasklab.experiments.lab import Lab
    from tasklab.tasks import drawn

    parameters = Parameters(**{**given, "model": sources[0].model})
    tasks = [one.task for one in sources]
    there = suite(parameters.suite).names
    if unknown := [task for task in tasks if task not in there]:
        raise TasklabError(
            f"this method looks at images of each task, and suite {parameters.suite} has none of "
            f"{shown(unknown[0])}: choose a --method that needs none, or vectors of "
            f"{', '.join(there)}."
        )
    lab = Lab(parameters, progress=False, trains=False, tasks=tasks, images_of=tasks)
    encoder = lab.clip.encoder
    if weights != encoder.weights_hash:
        raise TasklabError(
            f"the task vectors start from other weights than {sources[0].model} here."
        )
    data = drawn.images_of(lab.suite)
    for one in sources:
        many = min(count, data.size(one.task, "train"))
        x = data.load(one.task, "train", n=many, device=encoder.device).x
        head = lab.evaluator.head(one.task)
        yield of_images(needs, encoder, head, x, one.vector, linear=one.linear)


def _options(words: Sequence[str]) -> dict[str, Any]:
    """Return options of a method from words such as keep=0.3 or threshold=0.2,0.4."""
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise TasklabError(f"--option is NAME=VALUE, e.g. keep=0.3, not {shown(word)}.")
        if name in options:
            raise TasklabError(f"--option {name} is given twice.")
        numbers = [real(f"--option {name}", part, -math.inf) for part in value.split(",")]
        options[name] = numbers[0] if len(numbers) == 1 else numbers
    return options


def _term(word: str) -> tuple[str, float]:
    """Return a vector's name and its coefficient.

    >>> _term("merged.safetensors:0.3"), _term("C:/merged")
    (('merged.safetensors', 0.3), ('C:/merged', 1.0))
    """
    name, colon, number = word.rpartition(":")
    try:
        coefficient = float(number)
    except ValueError:
        return word, 1.0
    return (name, real("a coefficient", coefficient, -1e6, 1e6)) if colon else (word, 1.0)
