"""The files that ship: pictures and labels of each task, and who drew what under which licence."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretraining.icons import clean, review, tasks, unlike
from pretraining.icons.render import picture
from pretraining.icons.source import sets
from pretraining.icons.tasks import SPLITS, Part, World, order
from tasklab.tasks import icons

MEANING = ("{}", "{} icon", "icon of {}")
TEMPLATES = {
    unlike.DRAWN_BY: ("{} icon", "{} icon of something"),
    unlike.TURNED: ("icon turned by {}",),
    unlike.COLOURS: ("{}", "{} icon"),
}
SETS = {2: 20, 4: 20, 8: 24, 14: 20, 20: 20}  # tasks in a set: how many sets
_XZ = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]


def write(
    world: World,
    found: Mapping[str, tuple[list[str], dict[str, Part]]],
    package: Path,
    folder: Path = icons.FOLDER,
) -> None:
    """Write all files of the world's tasks.

    Args:
        world: All drawings.
        found: Of each task its class names and splits.
        package: The source, from which turned drawings are rendered.
        folder: Where to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries, drawings, prefixes = [], {}, set()
    for name, drawn in found.items():
        labels, parts = review.reviewed(world, name, *drawn)
        parts, pictures = _distinct(parts, _pictures(world, name, parts, package))
        rows, y = (
            np.concatenate([getattr(parts[split], field) for split in SPLITS])
            for field in ("rows", "labels")
        )
        raw = pictures.tobytes() + y.astype(np.uint8).tobytes()
        data = lzma.compress(raw, format=lzma.FORMAT_XZ, filters=_XZ)
        (folder / f"{name}.xz").write_bytes(data)
        entries.append(
            {
                "name": name,
                "classes": labels,
                "templates": list(TEMPLATES.get(name, MEANING)),
                "control": name == tasks.CONTROL,
                "channels": pictures.shape[1],
                "sizes": {split: len(parts[split].rows) for split in SPLITS},
                "sha256": hashlib.sha256(raw).hexdigest(),
            }
        )
        drawings[name] = [world.said(row) for row in rows]
        prefixes |= {world.sets[world.of[row]].about["prefix"] for row in rows}
    authors = {
        one.about["prefix"]: {
            key: one.about[key]
            for key in ("title", "author", "url", "licence", "licence_url", "family")
        }
        for one in world.sets
        if one.about["prefix"] in prefixes
    }
    table = {"version": icons.VERSION, "tasks": entries, "sets": authors}
    (folder / icons.TABLE).write_text(
        json.dumps(table, indent=1, ensure_ascii=False) + "\n", "utf-8"
    )
    chosen = task_sets([one["name"] for one in entries if not one["control"]])
    lines = ",\n".join(f"{json.dumps(size)}: {json.dumps(one)}" for size, one in chosen.items())
    (folder / icons.SETS).write_text(f"{{\n{lines}\n}}\n", "utf-8")
    text = "\n".join(f"{task}\n" + " ".join(said) for task, said in drawings.items())
    data = lzma.compress(text.encode(), format=lzma.FORMAT_XZ, filters=_XZ)
    (folder / icons.DRAWINGS).write_bytes(data)


def task_sets(names: Sequence[str]) -> dict[str, Any]:
    """Return sets of tasks, drawn before a method is compared on them.

    Args:
        names: Of all tasks.
    """
    drawn = {
        str(size): [
            sorted(sorted(names, key=lambda name: order("set", size, number, name))[:size])
            for number in range(count)
        ]
        for size, count in SETS.items()
        if size <= len(names)
    }
    return {"default": drawn.get("8", [list(names)])[0], **drawn}


def _pictures(
    world: World, name: str, parts: Mapping[str, Part], package: Path
) -> NDArray[np.uint8]:
    """Return the pictures of a task as levels, (n, 1 or 3, S, S), train, val and test."""
    rows = np.concatenate([parts[split].rows for split in SPLITS])
    if name == unlike.COLOURS:
        return tasks.levels(world.pictures(rows))
    if name != unlike.TURNED:
        return tasks.levels(world.grey(rows))[:, None]
    labels = np.concatenate([parts[split].labels for split in SPLITS])
    angles = {world.said(row): unlike.ANGLES[y] for row, y in zip(rows, labels, strict=True)}
    turned = {}
    for one in sets(package):
        for drawing, svg in one.drawings.items():
            said = f"{one.prefix}:{drawing}"
            if said in angles:
                turned[said] = picture(unlike.svg_turned(svg, angles[said]))
    stack = np.stack([turned[world.said(row)] for row in rows])
    return tasks.levels(clean.grey(stack))[:, None]


def _distinct(
    parts: Mapping[str, Part], pictures: NDArray[np.uint8]
) -> tuple[dict[str, Part], NDArray[np.uint8]]:
    """Return parts and pictures without near copies, as they ship; test pictures come first."""
    n_test = len(parts["test"].rows)
    order = np.roll(np.arange(len(pictures)), n_test)  # the last split is that of tests
    keep = np.empty(len(pictures), bool)
    keep[order] = clean.distinct(clean.grey(tasks.LEVEL * pictures[order]))
    start, result = 0, {}
    for split in SPLITS:
        part = parts[split]
        stays = keep[start : start + len(part.rows)]
        result[split] = Part(part.rows[stays], part.labels[stays])
        start += len(part.rows)
    return result, pictures[keep]
