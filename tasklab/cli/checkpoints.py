"""The commands `tasklab import` and `tasklab export`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from tasklab import bench, exchange
from tasklab.bench.parameters import Parameters
from tasklab.cli import idle
from tasklab.cli.parsing import Given, settings
from tasklab.cli.runs import checked, labs, seeds_of, suite_of, what_is_stored
from tasklab.errors import TasklabError, abridged, choose, path
from tasklab.evidence.chapters import chapter as chapter_of
from tasklab.exchange import places, sources
from tasklab.isolation import isolated
from tasklab.machine import gib
from tasklab.models.zoo import spec
from tasklab.progress import begin
from tasklab.storage.store import Artifact, Store
from tasklab.storage.tensors import explained
from tasklab.tuning.methods import EDITS, METHODS, POSTHOC


@isolated
def import_(
    file: tyro.conf.Positional[str | None] = None,
    *,
    model: str | None = None,
    task: str | None = None,
    method: str | None = None,
    name: str | None = None,
    base: str | None = None,
    list: bool = False,
    from_: Annotated[str | None, tyro.conf.arg(name="from")] = None,
    tasks: str | None = None,
    source: Path | str | None = None,
    dry_run: bool = False,
    data_root: Path | str | None = None,
    device: str | None = None,
    store_root: Path | str | None = None,
) -> None:
    """Read a checkpoint without executing its content, and store its distance from its start.

    With --from, fetch the published vectors of a model, and check each on its task's images.

    Args:
        file: Checkpoint, folder, or hub repository owner/name.
        model: Short name, see `tasklab list models`.
        task: Task that it was fine-tuned on, e.g. Cars.
        method: Of fine-tuning. By default that of the file, or by the changed parameters.
        name: Its name in the store. By default TASK_METHOD.
        base: The checkpoint it starts from. By default the pre-trained one.
        list: Show all imports.
        from_: Published vectors: orthoreg, orthoreg_ortho, task_arithmetic, fusion_bench.
        tasks: Of the published vectors, e.g. Cars,DTD. By default all.
        source: A mirror of the hub's repositories, as a folder. By default the hub.
        dry_run: List published vectors and bytes.
        data_root: Folder of data sets, for the check.
        device: For the check: cpu, cuda, ...
        store_root: Folder of results.
    """
    root = None if store_root is None else path("--store-root", store_root)
    of_file = {"name": name, "base": base, "list": list, "FILE": file}
    of_published = {"tasks": tasks, "source": source, "dry_run": dry_run, "data_root": data_root}
    of_published["device"] = device
    if from_ is not None:
        idle.refuse(of_file, "--from fetches published vectors under their own names")
        if task and tasks:
            raise TasklabError("--task and --tasks are the same beside --from: give one of them.")
        where = None if source is None else path("--source", source, "folder")
        only = dict(tasks=_split(tasks or task), methods=_split(method))
        place = dict(data_root=data_root, store_root=store_root, device=device)
        _import_published(from_, model, only, where, place, dry_run=dry_run)
        return
    idle.refuse(of_published, "it is for published vectors (--from)")
    if list:
        idle.refuse({**of_file, "list": None, "task": task, "method": method}, "--list only shows")
    needed = {"a FILE": file, "--model": model, "--task": task}
    for what, value in {} if list else needed.items():
        if value is None:
            raise TasklabError(f"import takes {what}: tasklab import FILE --model M --task T.")
    for what, value in {"FILE": file, "--base": base}.items():
        if value is not None:
            path(what, value)
    store = Store(root)
    _look_into(store)
    if model is not None:
        spec(model)
    if file is not None and not list:
        sources.locate(file)
        begin(f"reading {file}.")
    if list or file is None or model is None or task is None:
        there = places.listed(store, model)
        for one in there:
            print("  ".join((one["model"], one["name"], one["method"], one["task"])), end="  ")
            print(f"norm {one['norm']:.4g}  from {one['source']}")
        print(end="" if there else f"nothing is imported in {store.root}\n")
        return
    record = exchange.importing.add(store, file, model, task, method=method, name=name, base=base)
    _show(record)
    print(f"kept as {record['name']!r} of {record['model']}, in {store.root}")


def _show(record: dict[str, Any]) -> None:
    """Print an imported vector, with its notes and heads."""
    far = "" if record["distance"] is None else f", {_percent(record['distance'])} of theta_0's"
    print(f"{record['source']}: {record['layout']}")
    for note in record["notes"]:
        print(f"  {note}")
    print(f"  {record['task']}, {record['method']}, from {record['base']}")
    print(f"  task vector of {record['tensors']} tensors, norm {record['norm']:.4g}{far}")
    classes = record.get("classes", {})
    if isinstance(classes, int):
        print(f"  and its own head, of {classes} classes")
    elif classes:
        print(f"  and heads of {abridged(classes)}")


def _split(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))


def _import_published(
    source: str,
    model: str | None,
    only: Mapping[str, Any],
    folder: Path | None,
    place: Mapping[str, Any],
    *,
    dry_run: bool,
) -> None:
    published = exchange.published
    published.entry(source)
    if model is None:
        models = ", ".join(published.entry(source)["models"])
        raise TasklabError(f"import --from {source} takes --model: {models}.")
    wanted, store = published.vectors(source, model, **only), Store(place["store_root"])
    _look_into(store)
    known = published.status(wanted, store, folder)
    missing = [one for one in known if one.state == "missing"]
    about = "" if all(one.exact for one in known) else "about "
    print(
        f"{len(wanted)} vectors of {wanted[0].repository}: "
        f"{sum(one.state == 'imported' for one in known)} are imported, {len(missing)} are to be "
        f"fetched ({about}{gib(sum(one.bytes for one in known))})",
        flush=True,
    )
    if dry_run:
        for one in known:
            print(f"{one.vector.name}  {one.vector.method}  {one.state}  {one.bytes:,} bytes")
        return
    problems, checks = [], bench.labels.Checks(model, place)
    for record in published.fetch(wanted, store, folder):
        problem = record.get("problem") or ""
        told = "" if problem else checks.told(store, record)
        if not problem:
            far = f"{_percent(record['distance'])} of theta_0's" if record["distance"] else ""
            print(
                f"{record['name']}  {record['method']}  norm {record['norm']:.4g}, {far}  {told}",
                flush=True,
            )
        if checks.problem and not problem:
            problem = f"{checks.problem} It is not kept."
            store.discard(exchange.importing.KIND, {"model": model, "name": record["name"]})
        if problem:
            problems.append(problem)
            print(f"{record['name']}: {problem}", flush=True)
    if checks.missing:
        print(f"not checked, for lack of images: {', '.join(checks.missing)}")
    if problems:
        raise TasklabError(f"{len(problems)} of {len(wanted)} vectors have a problem, see above.")
    print(f"{len(wanted)} vectors are in {store.root}: --vectors {published.PREFIX}{source}")


def _percent(share: float) -> str:
    if share < 0.0001:
        return "less than 0.01 %"
    return f"{100 * share:,.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


@isolated
def export(
    given: Annotated[Given, settings()],
    *,
    out: Path | str = "export",
    chapter: str | None = None,
    task: tuple[str, ...] = (),
    method: tuple[str, ...] = (),
    with_base: bool = False,
) -> None:
    """Write each run into a folder of its own: the vector, its head and a model card.

    Args:
        given: As in a chapter's first code cell.
        out: Folder to write to.
        chapter: All runs of a chapter, e.g. tangent.
        task: Only this task.
        method: Only this method.
        with_base: Write theta_0 beside the vector.
    """
    target = path("--out", out)
    if method and chapter is not None:
        raise TasklabError("--method and --chapter both choose methods: give one of them.")
    named = method or (chapter_of(chapter).methods if chapter is not None else None)
    for one in method:
        choose("method", one, EDITS)
    parameters = checked(given)
    tasks = task or suite_of(parameters).names
    for one in tasks:
        choose("task", one, suite_of(parameters).names)
    begin(f"looking for runs of {parameters.model}.")
    parameters = Parameters(**given)
    _look_into(Store(parameters.store_root))
    stored: dict[str, Artifact | None] = {}
    for lab in labs(parameters, tasks):
        there = [one for one in tasks if one in lab.suite.names]
        for name, config in _wanted(lab, named or METHODS, there).items():
            stored[name] = stored.get(name) or lab.store.find("finetune", config)
    runs = {name: run for name, run in stored.items() if run is not None}
    missing = [name for name in stored if name not in runs]
    if not runs:
        raise TasklabError(
            f"none of {len(stored)} runs is in {lab.store.root}, such as {missing[0]}: "
            f"{what_is_stored(lab.store, parameters)}"
        )
    accuracies = exchange.exporting.accuracies_of(lab.store, runs.values())
    init = "" if lab.parameters.init == "pretrained" else f"{lab.parameters.init}-"
    for name, run in runs.items():
        about: dict[str, Any] = {"accuracies": accuracies[run.key], "base": with_base}
        place = target / f"{init}{name}"
        print(exchange.exporting.write_run(run, lab.clip.encoder, place, **about), flush=True)
    print(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} exported")
    if named and missing:
        print(f"{len(missing)} of {len(stored)} runs are not in the store, such as {missing[0]}")
    elif without := sorted({*task} - {run.config["task"] for run in runs.values()}):
        print(f"no run of {', '.join(without)} is in the store")


def _wanted(
    lab: bench.Lab, methods: Iterable[str], tasks: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Return the store configuration of each run, by the name of its export folder."""
    return {
        f"{lab.parameters.model}-{task}-{method}-seed{seed}": lab.identity(task, method, seed)
        for method in dict.fromkeys(POSTHOC.get(method, method) for method in methods)
        for task in tasks
        for seed in seeds_of(lab.parameters)
    }


def _look_into(store: Store) -> None:
    """Raise a `TasklabError` if a store cannot be listed; a missing one is empty."""
    choice = "TASKLAB_STORE or --store-root"
    with explained(store.root, "read the store", choice), contextlib.suppress(FileNotFoundError):
        os.scandir(store.root).close()
