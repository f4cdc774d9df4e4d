"""The commands `tasklab import` and `tasklab export`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tasklab.errors import TasklabError, unknown


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
    add.add_argument("--store-root", type=Path, help="where results are kept")

    export = commands.add_parser(
        "export", help="write fine-tuning runs of the store as safetensors with model cards"
    )
    export.set_defaults(run=lambda args: _export(args, parameters(args)))
    export.add_argument("--out", type=Path, default=Path("export"), help="default: export")
    export.add_argument("--chapter", help="all runs of a chapter, e.g. tangent")
    export.add_argument("--task", action="append", help="only this task; may be repeated")
    export.add_argument("--method", action="append", help="only this method; may be repeated")
    export.add_argument("--with-base", action="store_true", help="write theta_0 beside the vector")
    add_parameters(export, preset="full")


def _import(args: argparse.Namespace) -> None:
    from tasklab import checkpoints
    from tasklab.store import Store

    store = Store(args.store_root)
    if args.list:
        _show(checkpoints.listed(store), args.model, store)
        return
    for name in ("file", "model", "task"):
        if getattr(args, name) is None:
            what = "a FILE" if name == "file" else f"--{name}"
            raise TasklabError(f"import takes {what}: tasklab import FILE --model M --task T.")
    found = checkpoints.add(
        store,
        args.file,
        args.model,
        args.task,
        method=args.method,
        name=args.name,
        base=args.base,
    )
    far = "" if found["distance"] is None else f", {100 * found['distance']:.2g} % of theta_0's"
    print(f"{found['source']}: {found['layout']}")
    for note in found["notes"]:
        print(f"  {note}")
    print(f"  {found['task']}, {found['method']}, from {found['base']}")
    print(f"  task vector of {found['tensors']} tensors, norm {found['norm']:.4g}{far}")
    print(f"kept as {found['name']!r} of {found['model']}, in {store.root}")


def _show(found: list[dict[str, Any]], model: str | None, store: Any) -> None:
    found = [one for one in found if model in (None, one["model"])]
    if not found:
        print(f"nothing is imported in {store.root}")
    for one in found:
        print(
            f"{one['model']}  {one['name']}  {one['method']}  {one['task']}  "
            f"norm {one['norm']:.4g}  from {one['source']}"
        )


def _export(args: argparse.Namespace, given: Mapping[str, Any]) -> None:
    from tasklab import finetune
    from tasklab.checkpoints import export
    from tasklab.choices import METHODS, POSTHOC
    from tasklab.experiments import Lab
    from tasklab.parameters import Parameters
    from tasklab.study import CHAPTERS

    if args.chapter is not None and args.chapter not in CHAPTERS:
        raise unknown("chapter", args.chapter, CHAPTERS)
    methods = args.method or (CHAPTERS[args.chapter] if args.chapter else METHODS)
    lab = Lab(Parameters(**given), progress=False)
    tasks = args.task or lab.suite.names
    for task in tasks:
        if task not in lab.suite.names:
            raise unknown("task", task, lab.suite.names)
    wanted = {}
    for method in dict.fromkeys(POSTHOC.get(method, method) for method in methods):
        for task in tasks:
            for seed in lab.parameters.seeds:
                run = finetune.identity(lab.run(task, method, seed), lab.clip)
                wanted[f"{lab.parameters.model}-{task}-{method}-seed{seed}"] = run
    runs = {name: lab.store.find("finetune", config) for name, config in wanted.items()}
    missing = [name for name, run in runs.items() if run is None]
    runs = {name: run for name, run in runs.items() if run is not None}
    if not runs:
        raise TasklabError(
            f"none of {len(wanted)} runs is in {lab.store.root}, such as {missing[0]}. They are "
            "kept where they are fine-tuned, e.g. by `tasklab study` with the same parameters."
        )
    known = export.accuracies_of(lab.store, runs.values())
    init = "" if lab.parameters.init == "pretrained" else f"{lab.parameters.init}-"
    for name, run in runs.items():
        folder = export.write(
            run,
            lab.clip.encoder,
            args.out / f"{init}{name}",
            accuracies=known[run.key],
            base=args.with_base,
        )
        print(folder)
    if missing:
        print(f"{len(missing)} of {len(wanted)} runs are not in the store, such as {missing[0]}")
