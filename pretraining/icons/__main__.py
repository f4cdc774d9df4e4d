"""Make the second world from the source package: drawings, tasks, corpus."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from pretraining import vocabulary
from pretraining.icons import clean, corpus, render, ship, tasks, unlike
from pretraining.icons.source import FILE
from pretraining.icons.tasks import World
from tasklab.errors import TasklabError
from tasklab.mini.clip import ICON_MERGES
from tasklab.tasks import icons, suites

MERGES = 4000


def make(folder: Path, package: Path, into: Path, merges: Path, table: str | None = None) -> None:
    """Make all files; what is there already is not made again.

    Args:
        folder: Of the drawings and the corpus.
        package: The source package.
        into: Folder of the tasks that ship.
        merges: File of the vocabulary.
        table: Classes by name, instead of those of `tasks.txt`.
    """
    render.render(package, folder)
    if (folder / corpus.FILE).exists() and (into / icons.TABLE).exists():
        return
    named, _ = tasks.classes(table)
    brands = json.loads((folder / "brands.json").read_text("utf-8"))
    spoken = {name for one in named for name in one.names}
    world = World(render.read(folder), brands, spoken)
    found = tasks.by_meaning(world, named)
    kept = {(task, label) for task, (labels, _) in found.items() for label in labels}
    spoken = {name for one in named if one[:2] in kept for name in one.names}
    rows = np.flatnonzero(unlike.free(world, spoken))
    rows = _without_copies(world, rows, _rows(found))
    more = {}
    for name, make_task in (
        (unlike.DRAWN_BY, unlike.drawn_by),
        (unlike.TURNED, unlike.turned),
        (unlike.COLOURS, unlike.colours),
    ):
        more[name] = make_task(world, rows)
        if not all(len(part.rows) for part in more[name][1].values()):
            del more[name]  # a package of few sets
            continue
        rows = np.setdiff1d(rows, _rows({name: more[name]}))
    found = {**found, **more}
    rows = _without_copies(world, rows, _rows(more)) if more else rows
    ship.write(world, found, package, into)
    said = [
        [
            world.concepts[row],
            corpus.style(world.names[row]),
            world.sets[world.of[row]].about["title"],
        ]
        for row in rows
    ]
    words = corpus.said(said)
    for entry in icons.sources(into)["tasks"]:
        for word in " ".join(suites.icon_task(entry).prompts()).lower().split():
            words.setdefault(word, 1)
    vocabulary.write(merges, vocabulary.learn_merges(words, MERGES))
    corpus.write(folder, _pictures(world, rows), said)
    print(f"{len(said):,} drawings to learn from", flush=True)


def _pictures(world: World, rows: np.ndarray) -> list[np.ndarray]:
    return [world.sets[world.of[row]].pictures[row - world.first[world.of[row]]] for row in rows]


def _rows(found: dict) -> np.ndarray:
    return np.concatenate([part.rows for _, parts in found.values() for part in parts.values()])


def _without_copies(world: World, rows: np.ndarray, of: np.ndarray) -> np.ndarray:
    return rows[~clean.copies(world.grey(rows), world.grey(of))]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of drawings and corpus")
    parser.add_argument("--source", type=Path, default=Path(FILE), help="the package, as fetched")
    parser.add_argument("--into", type=Path, default=icons.FOLDER, help="of the tasks that ship")
    parser.add_argument("--merges", type=Path, default=ICON_MERGES, help="file of the vocabulary")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        make(options.folder, options.source, options.into, options.merges)
    except TasklabError as error:
        raise SystemExit(f"tasklab: {error}") from None


if __name__ == "__main__":
    main()
