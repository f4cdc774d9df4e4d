"""The commands `tasklab import` and `tasklab export`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from tasklab.cli.parsing import settings
from tasklab.cli.vectors import what_is_stored
from tasklab.errors import TasklabError, choose, path
from tasklab.experiments.parameters import Parameters
from tasklab.tasks.suites import suite
from tasklab.tuning.methods import EDITS, METHODS, POSTHOC

if TYPE_CHECKING:
    from tasklab.experiments import Lab
    from tasklab.storage.store import Store

if TYPE_CHECKING:
    Settings = dict[str, Any]
else:
    Settings = settings()


def import_(
    file: tyro.conf.Positional[str | None] = None,
    *,
    model: str | None = None,
    task: str | None = None,
    method: str | None = None,
    name: str | None = None,
    base: str | None = None,
    list: bool = False,
    store_root: Path | str | None = None,
) -> None:
    """Read a checkpoint without executing what is in it, and keep how far it is from its start.

    Args:
        file: Checkpoint, folder, or hub repository owner/name.
        model: Short name, see `tasklab list models`.
        task: What it was fine-tuned on, e.g. Cars.
        method: By default what the file tells, or nonlinear.
        name: Under which it is kept. By default TASK_METHOD.
        base: The checkpoint it starts from. By default the pre-trained one.
        list: Show what is imported.
        store_root: Where results are kept.
    """
    root = None if store_root is None else path("--store-root", store_root)
    needed = {"a FILE": file, "--model": model, "--task": task}
    for what, value in {} if list else needed.items():
        if value is None:
            raise TasklabError(f"import takes {what}: tasklab import FILE --model M --task T.")
    for what, value in {"FILE": file, "--base": base}.items():
        if value is not None:
            path(what, value)
    from tasklab.exchange import importing
    from tasklab.storage.store import Store

    store = Store(root)
    _look_into(store)
    if list:
        _show(importing.listed(store, model), store)
        return
    record = importing.add(store, file, model, task, method=method, name=name, base=base)
    far = "" if record["distance"] is None else f", {_percent(record['distance'])} of theta_0's"
    print(f"{record['source']}: {record['layout']}")
    for note in record["notes"]:
        print(f"  {note}")
    print(f"  {record['task']}, {record['method']}, from {record['base']}")
    print(f"  task vector of {record['tensors']} tensors, norm {record['norm']:.4g}{far}")
    print(f"kept as {record['name']!r} of {record['model']}, in {store.root}")


def _percent(share: float) -> str:
    if share < 0.0001:
        return "less than 0.01 %"
    return f"{100 * share:,.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _show(imports: list[dict[str, Any]], store: Store) -> None:
    if not imports:
        print(f"nothing is imported in {store.root}")
    for one in imports:
        print(
            f"{one['model']}  {one['name']}  {one['method']}  {one['task']}  "
            f"norm {one['norm']:.4g}  from {one['source']}"
        )


def export(
    given: Settings,
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
    from tasklab.chapters import chapter as chapter_of

    target = path("--out", out)
    named = method or (chapter_of(chapter).methods if chapter else None)
    for one in method:
        choose("method", one, EDITS)
    parameters = Parameters(**given)
    tasks = task or suite(parameters.suite).names
    for one in tasks:
        choose("task", one, suite(parameters.suite).names)
    from tasklab.exchange import exporting  # start-up: torch
    from tasklab.experiments.lab import Lab

    lab = Lab(parameters, progress=False, trains=False)
    _look_into(lab.store)
    wanted = _wanted(lab, named or METHODS, tasks)
    stored = {name: lab.store.find("finetune", config) for name, config in wanted.items()}
    runs = {name: run for name, run in stored.items() if run is not None}
    missing = [name for name in stored if name not in runs]
    if not runs:
        raise TasklabError(
            f"none of {len(wanted)} runs is in {lab.store.root}, such as {missing[0]}: "
            f"{what_is_stored(lab.store, parameters)}"
        )
    accuracies = exporting.accuracies_of(lab.store, runs.values())
    init = "" if lab.parameters.init == "pretrained" else f"{lab.parameters.init}-"
    for name, run in runs.items():
        folder = exporting.write(
            run,
            lab.clip.encoder,
            target / f"{init}{name}",
            accuracies=accuracies[run.key],
            base=with_base,
        )
        print(folder, flush=True)
    print(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} exported")
    if named and missing:
        print(f"{len(missing)} of {len(wanted)} runs are not in the store, such as {missing[0]}")
    elif without := sorted({*task} - {run.config["task"] for run in runs.values()}):
        print(f"no run of {', '.join(without)} is in the store")


def _wanted(lab: Lab, methods: Iterable[str], tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the store configuration of each run, by the name of its export folder."""
    return {
        f"{lab.parameters.model}-{task}-{method}-seed{seed}": lab.identity(task, method, seed)
        for method in dict.fromkeys(POSTHOC.get(method, method) for method in methods)
        for task in tasks
        for seed in lab.parameters.seeds
    }


def _look_into(store: Store) -> None:
    """Raise a `TasklabError` if a store cannot be listed; one that is not there yet is empty."""
    from tasklab.storage.tensors import explained

    choice = "TASKLAB_STORE or --store-root"
    with explained(store.root, "read the store", choice), contextlib.suppress(FileNotFoundError):
        os.scandir(store.root).close()
