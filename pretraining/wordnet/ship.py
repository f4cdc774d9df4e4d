"""The files that ship: the texts of each task, the table of tasks, and sets of tasks."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path

from pretraining.wordnet import tasks
from pretraining.wordnet.tasks import Text
from tasklab.tasks import wordnet

SETS = {2: 20, 4: 20, 8: 24, 12: 20}  # tasks in a set: how many sets
_XZ = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]


def write(made: Mapping[str, Mapping[str, Sequence[Text]]], folder: Path) -> None:
    """Write all files of the tasks.

    Args:
        made: Texts by task and split.
        folder: Folder to write to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for task, splits in made.items():
        lines = [
            f"{split}\t{text.synset}\t{text.label}\t{text.text}"
            for split, texts in splits.items()
            for text in texts
        ]
        data = "\n".join(lines).encode()
        compressed = lzma.compress(data, format=lzma.FORMAT_XZ, filters=_XZ)
        (folder / f"{task}.xz").write_bytes(compressed)
        entries.append(
            {
                "name": task,
                "classes": {one.name: list(one.roots) for one in tasks.table() if one.task == task}
                or {name: [f"lexicographer file {file}"] for file, name in tasks.VERBS.items()},
                "sizes": {split: len(texts) for split, texts in splits.items()},
            }
        )
    table = {"source": "WordNet 3.0", "tasks": entries}
    (folder / wordnet.TABLE).write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    lines = (f'"{n}": {json.dumps(some)}' for n, some in task_sets(wordnet.TASKS).items())
    (folder / wordnet.SETS).write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def task_sets(names: Sequence[str]) -> dict[int, list[list[str]]]:
    """Return sets of tasks by size, drawn before any method was compared on them.

    Args:
        names: Names of all tasks.
    """
    return {
        size: [
            sorted(sorted(names, key=lambda name: tasks.order("set", size, number, name))[:size])
            for number in range(count)
        ]
        for size, count in SETS.items()
    }
