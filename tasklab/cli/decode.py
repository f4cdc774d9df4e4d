"""The command `decode`: images of a suite, fetched if asked for, and decoded for a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tyro

from tasklab import bench
from tasklab.bench.parameters import folder
from tasklab.errors import TasklabError, whole
from tasklab.models.zoo import spec
from tasklab.progress import begin
from tasklab.tasks import images, suites


def decode(
    suite: tyro.conf.Positional[str],
    *,
    model: str = "vitb32",
    task: tuple[str, ...] = (),
    data_root: Path | str | None = None,
    jobs: int | str | None = None,
    fetch: bool = False,
    check: bool = False,
) -> None:
    """Decode each image once, for all models of an input size.

    Args:
        suite: paper: the data sets of the papers.
        model: Whose input size.
        task: Only this task.
        data_root: Where data sets are, besides the hub cache.
        jobs: Threads. By default one a core.
        fetch: Download missing data sets.
        check: Read decoded images, and list damaged ones.
    """
    tasks, entry = suites.suite(suite), spec(model)
    chosen = {tasks[name].name for name in task}
    if all(one.source is None for one in (*tasks.tasks, tasks.control)):
        raise TasklabError(f"the images of suite {suite!r} are embedded: nothing to decode.")
    number = None if jobs is None else whole("--jobs", jobs, 1, 1000)
    begin(f"{'checking' if check else 'decoding'} the images of suite {suite}.")
    pictures = images.loader.DecodedImages(
        suite=tasks, root=folder("--data-root", data_root), jobs=number
    )
    wanted = [one for one in pictures.sources if not chosen or one.name in chosen]
    names = [one.name for one in wanted]
    if check:
        if messages := pictures.damaged(*names):
            raise TasklabError("\n".join(messages))
        print("what is decoded is as it was decoded")
        return
    failed = _fetch(pictures, wanted) if fetch else {}
    problems = {name: pictures.missing(name) for name in names}
    if messages := [failed.get(name, line) for name, lines in problems.items() for line in lines]:
        raise TasklabError("\n".join(messages))
    for name, split, arrays in pictures.at(*bench.inventory.input_side(entry)).decode(*names):
        note, seconds = arrays.manifest["transform"], arrays.manifest["seconds"]
        count = len(arrays.y)
        print(
            f"{name}, {split}: {count} images, {note['side']} x {note['side']} ({note['kind']}), "
            f"decoded in {seconds:.0f} s, {count / max(seconds, 1e-9):.0f} images/s",
            flush=True,
        )


def _fetch(pictures: images.loader.DecodedImages, tasks: Sequence[suites.Task]) -> dict[str, str]:
    """Fetch missing data sets, and return the reason of each failure by task."""
    lacking = {task: lines for task in tasks if (lines := pictures.missing(task.name))}
    if lacking and (why := images.finding.unreachable()):
        messages = [line for lines in lacking.values() for line in lines]
        raise TasklabError("\n".join([f"nothing was fetched: {why}.", *messages]))
    failed = {}
    for task in lacking:
        try:
            print(f"{task.name}: {images.finding.fetch(task)}", flush=True)
        except TasklabError as error:
            failed[task.name] = str(error)
    return failed
