"""The data of the second world: real drawings by design teams, twenty-four tasks and a control.

    FOLDER/<task>.xz       levels of grey (N, 1 or 3, 32, 32) and labels (N,): train, val, test
    FOLDER/icons.json      classes, prompts, sizes and checksums; sets with licences and authors
    FOLDER/sets.json       sets of tasks, drawn before any method was compared on them
    FOLDER/drawings.xz     the set and the name of every drawing

`python -m pretraining.icons` makes these files. A family of sets is on one side of the split, and
no two drawings of a task are near copies.
"""

from __future__ import annotations

import functools
import hashlib
import json
import lzma
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasklab.errors import TasklabError, choose
from tasklab.storage import shipped

if TYPE_CHECKING:
    from torch import Tensor

NAME = "icons"  # of the suite
VERSION = "icons-1"
FOLDER = Path(__file__).with_name("icons_data")
TABLE, DRAWINGS, SETS = "icons.json", "drawings.xz", "sets.json"
SPLITS = ("train", "val", "test")
SIDE = 32  # height and width of a drawing
LEVEL = 17  # 16 levels of grey, 0 to 255


@functools.cache
def sources(folder: Path = FOLDER) -> dict[str, Any]:
    """Return `icons.json`."""
    return json.loads(shipped.content(folder / TABLE))


def entry(task: str, folder: Path = FOLDER) -> dict[str, Any]:
    """Return a task's entry of the table: classes, prompts, sizes, checksum."""
    entries = {one["name"]: one for one in sources(folder)["tasks"]}
    choose("task of the icons", task, entries)
    return entries[task]


@functools.cache
def whole(task: str, folder: Path = FOLDER) -> tuple[Tensor, Tensor]:
    """Return all drawings of a task, uint8 (N, 3, 32, 32), and their labels (N,)."""
    import torch  # start-up: every command reads the names of suites

    about, file = entry(task, folder), folder / f"{task}.xz"
    try:
        raw = lzma.decompress(file.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise TasklabError(f"{file} cannot be read ({error}): reinstall tasklab.") from error
    if hashlib.sha256(raw).hexdigest() != about["sha256"]:
        raise TasklabError(f"{file} is damaged: its checksum does not match. Reinstall tasklab.")
    count = sum(about["sizes"].values())
    data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    x = data[:-count].view(count, about["channels"], SIDE, SIDE) * LEVEL
    return x.expand(-1, 3, -1, -1), data[-count:].long()


def split(task: str, name: str, folder: Path = FOLDER) -> tuple[Tensor, Tensor]:
    """Return the drawings and labels of a split of a task.

    Args:
        task: Name of a task of the second world.
        name: `"train"`, `"val"` or `"test"`.
        folder: Where the files of the tasks are; by default in the package.

    Returns:
        Images uint8 (N, 3, 32, 32) and classes (N,).
    """
    sizes = entry(task, folder)["sizes"]
    choose("split", name, sizes)
    start = sum(sizes[one] for one in SPLITS[: SPLITS.index(name)])
    images, labels = whole(task, folder)
    part = slice(start, start + sizes[name])
    return images[part], labels[part]


@functools.cache
def _drawn() -> dict[str, Any]:
    return json.loads(shipped.content(FOLDER / SETS))


def usual() -> tuple[str, ...]:
    """Return the eight tasks that a lab takes by default."""
    return tuple(_drawn()["default"])


def sets() -> dict[int, tuple[tuple[str, ...], ...]]:
    """Return the sets of tasks drawn beforehand, by number of tasks.

    >>> {size: len(some) for size, some in sets().items()}
    {2: 20, 4: 20, 8: 24, 14: 20, 20: 20}
    """
    return {int(n): tuple(map(tuple, some)) for n, some in _drawn().items() if n.isdigit()}


@functools.cache
def drawings(folder: Path = FOLDER) -> dict[str, list[str]]:
    """Return, of each task, the set and name of each drawing in order, as `"set:name"`."""
    text = lzma.decompress(shipped.content(folder / DRAWINGS)).decode()
    lines = text.split("\n")
    return {task: said.split(" ") for task, said in zip(lines[::2], lines[1::2], strict=True)}
