"""The command `decode`: images of a suite, fetched if asked for, and decoded for a model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasklab.errors import TasklabError

if TYPE_CHECKING:
    from tasklab.models.zoo import Spec
    from tasklab.tasks.images.loader import DecodedImages
    from tasklab.tasks.suites import Task


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add the command to the parser's."""
    decode = commands.add_parser(
        "decode", help="check and decode a suite's images, or say what is missing"
    )
    decode.set_defaults(run=_decode)
    decode.add_argument("suite", help="paper: the data sets of the papers")
    decode.add_argument("--model", default="vitb32", help="whose input size (default: vitb32)")
    decode.add_argument("--task", action="append", help="only this task; may be repeated")
    decode.add_argument("--data-root", type=Path, help="where data sets are, besides the hub cache")
    decode.add_argument("--jobs", type=int, help="processes (default: one a core)")
    decode.add_argument("--fetch", action="store_true", help="download what is missing")
    decode.add_argument(
        "--check", action="store_true", help="read what is decoded, and say what is damaged"
    )


def _decode(args: argparse.Namespace) -> None:
    from tasklab.models.zoo import spec
    from tasklab.tasks.images.loader import DecodedImages
    from tasklab.tasks.suites import suite

    tasks, entry = suite(args.suite), spec(args.model)
    chosen = tuple(tasks[name].name for name in args.task) if args.task else None
    pictures = DecodedImages(suite=tasks, root=args.data_root, jobs=args.jobs)
    wanted = [task for task in pictures.sources if chosen is None or task.name in chosen]
    if not wanted:
        raise TasklabError(f"the images of suite {args.suite!r} are embedded: nothing to decode.")
    names = [task.name for task in wanted]
    if args.check:
        if told := pictures.damaged(*names):
            raise TasklabError("\n".join(told))
        print("what is decoded is as it was decoded")
        return
    failed = _fetch(pictures, wanted) if args.fetch else {}
    problems = {task.name: pictures.missing(task.name) for task in wanted}
    if told := [failed.get(name, line) for name, lines in problems.items() for line in lines]:
        raise TasklabError("\n".join(told))
    for name, split, arrays in pictures.at(_side(entry)).decode(*names):
        note, seconds = arrays.manifest["transform"], arrays.manifest["seconds"]
        count = len(arrays.y)
        print(
            f"{name}, {split}: {count} images, {note['side']} x {note['side']} ({note['kind']}), "
            f"decoded in {seconds:.0f} s, {count / max(seconds, 1e-9):.0f} images/s",
            flush=True,
        )


def _fetch(pictures: DecodedImages, tasks: Sequence[Task]) -> dict[str, str]:
    """Fetch what is missing, and return by name of the task why it cannot be.

    Raises:
        TasklabError: If the hub does not answer; it says what is missing.
    """
    from tasklab.tasks.images import finding

    lacking = {task: lines for task in tasks if (lines := pictures.missing(task.name))}
    if lacking and (why := finding.unreachable()):
        told = [line for lines in lacking.values() for line in lines]
        raise TasklabError("\n".join([f"nothing was fetched: {why}.", *told]))
    failed = {}
    for task in lacking:
        try:
            print(f"{task.name}: {finding.fetch(task)}", flush=True)
        except TasklabError as error:
            failed[task.name] = str(error)
    return failed


def _side(entry: Spec) -> int:
    """Return the input size of a model, without its weights."""
    if entry.kind == "t5":
        raise TasklabError(f"model {entry.name!r} reads texts: no images are decoded for it.")
    if entry.shipped:
        from tasklab.mini import vit

        return vit.SIZE
    if entry.kind == "vit":
        import timm

        return timm.get_pretrained_cfg(f"{entry.arch}.{entry.pretrained}").input_size[-1]
    import open_clip

    size = open_clip.get_model_config(entry.arch)["vision_cfg"]["image_size"]
    return size if isinstance(size, int) else size[0]
