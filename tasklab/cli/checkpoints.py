"""The commands `tasklab import` and `tasklab export`."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasklab.errors import TasklabError, unknown

if TYPE_CHECKING:
    from tasklab.experiments import Lab
    from tasklab.storage.store import Store


def add_commands(
    commands: Any,
    add_parameters: Callable[..., None],
    parameters: Callable[[argparse.Namespace], Mapping[str, Any]],
) -> None:
    """Add both commands to the command line.

    Args:
        commands: The parser's subcommands.
        add_parameters: Adds the notebook parameters to a command.
        parameters: Returns those that were given, checked.
    """
    add = commands.add_parser("import", help="keep the task vector of a published checkpoint")
    add.set_defaults(run=_import)
    add.add_argument("file", nargs="?", help="checkpoint, folder, or hub repository owner/name")
    add.add_argument("--model", help="short name, see `tasklab list models`")
    add.add_argument("--task", help="what it was fine-tuned on, e.g. Cars")
    add.add_argument("--method", help="default: what the file tells, or nonlinear")
    add.add_argument("--name", help="under which it is kept (default: TASK_METHOD)")
    add.add_argument("--base", help="the checkpoint it starts from (default: the pre-trained one)")
    add.add_argument("--list", action="store_true", help="show what is imported")
    add.add_argument("--store-root", help="where results are kept")

    export = commands.add_parser(
        "export", help="write fine-tuning runs of the store as safetensors with model cards"
    )
    export.set_defaults(run=lambda args: _export(args, parameters(args)))
    export.add_argument("--out", default="export", help="default: export")
    export.add_argument("--chapter", help="all runs of a chapter, e.g. tangent")
    export.add_argument("--task", action="append", help="only this task; may be repeated")
    export.add_argument("--method", action="append", help="only this method; may be repeated")
    export.add_argument("--with-base", action="store_true", help="write theta_0 beside the vector")
    add_parameters(export, preset="full")


def _import(args: argparse.Namespace) -> None:
    from tasklab.exchange import importing
    from tasklab.storage.store import Store

    store = Store(None if args.store_root is None else path_of("--store-root", args.store_root))
    _look_into(store)
    if args.list:
        _show(importing.listed(store, args.model), store)
        return
    for name in ("file", "model", "task"):
        if getattr(args, name) is None:
            what = "a FILE" if name == "file" else f"--{name}"
            raise TasklabError(f"import takes {what}: tasklab import FILE --model M --task T.")
    found = importing.add(
        store,
        args.file,
        args.model,
        args.task,
        method=args.method,
        name=args.name,
        base=args.base,
    )
    far = "" if found["distance"] is None else f", {_percent(found['distance'])} of theta_0's"
    print(f"{found['source']}: {found['layout']}")
    for note in found["notes"]:
        print(f"  {note}")
    print(f"  {found['task']}, {found['method']}, from {found['base']}")
    print(f"  task vector of {found['tensors']} tensors, norm {found['norm']:.4g}{far}")
    print(f"kept as {found['name']!r} of {found['model']}, in {store.root}")


def _percent(share: float) -> str:
    if share < 0.0001:
        return "less than 0.01 %"
    return f"{100 * share:,.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _show(found: list[dict[str, Any]], store: Store) -> None:
    if not found:
        print(f"nothing is imported in {store.root}")
    for one in found:
        print(
            f"{one['model']}  {one['name']}  {one['method']}  {one['task']}  "
            f"norm {one['norm']:.4g}  from {one['source']}"
        )


def _export(args: argparse.Namespace, given: Mapping[str, Any]) -> None:
    from tasklab.chapters import chapter
    from tasklab.exchange import exporting
    from tasklab.experiments import Lab
    from tasklab.experiments.parameters import Parameters
    from tasklab.tuning.methods import METHODS

    out = path_of("--out", args.out)
    named = args.method or (chapter(args.chapter).methods if args.chapter else None)
    lab = Lab(Parameters(**given), progress=False, trains=False)
    _look_into(lab.store)
    tasks = args.task or lab.suite.names
    for task in tasks:
        if task not in lab.suite.names:
            raise unknown("task", task, lab.suite.names)
    wanted = _wanted(lab, named or METHODS, tasks)
    found = {name: lab.store.find("finetune", config) for name, config in wanted.items()}
    runs = {name: run for name, run in found.items() if run is not None}
    missing = [name for name in found if name not in runs]
    if not runs:
        raise TasklabError(
            f"none of {len(wanted)} runs is in {lab.store.root}, such as {missing[0]}. They are "
            "kept where they are fine-tuned, e.g. by `tasklab study` with the same parameters."
        )
    known = exporting.accuracies_of(lab.store, runs.values())
    init = "" if lab.parameters.init == "pretrained" else f"{lab.parameters.init}-"
    for name, run in runs.items():
        folder = exporting.write(
            run,
            lab.clip.encoder,
            out / f"{init}{name}",
            accuracies=known[run.key],
            base=args.with_base,
        )
        print(folder, flush=True)
    print(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} exported")
    if named and missing:
        print(f"{len(missing)} of {len(wanted)} runs are not in the store, such as {missing[0]}")
    elif without := sorted({*(args.task or ())} - {run.config["task"] for run in runs.values()}):
        print(f"no run of {', '.join(without)} is in the store")


def _wanted(lab: Lab, methods: Iterable[str], tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what the runs are known by in the store, by the names of their folders."""
    from tasklab.tuning.methods import POSTHOC

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


def path_of(option: str, text: str) -> Path:
    """Return the path that an option was given; an empty one would be the current folder."""
    if not text.strip():
        raise TasklabError(f"{option} is empty: give it a path, such as . for the current folder.")
    return Path(text).expanduser()
