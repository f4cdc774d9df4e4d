"""Make the tasks of the third world from WordNet's files."""

from __future__ import annotations

import argparse
from pathlib import Path

from pretraining.wordnet import ship, source, tasks
from tasklab.tasks import wordnet


def make(into: Path, folder: Path = source.FOLDER) -> None:
    """Write the files of the tasks; print the sizes.

    Args:
        into: Folder to write to.
        folder: Folder of WordNet's files.
    """
    nouns, verbs = (source.read(folder, kind) for kind in ("noun", "verb"))
    made = tasks.make(nouns, verbs, tasks.table())
    ship.write(made, into)
    for name, splits in made.items():
        sizes = ", ".join(f"{split} {len(rows)}" for split, rows in splits.items())
        print(f"{name}: {sizes}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=source.FOLDER, help="WordNet's files")
    parser.add_argument("--into", type=Path, default=wordnet.FOLDER, help="folder to write to")
    options = parser.parse_args(arguments)
    make(options.into, options.source)


if __name__ == "__main__":
    main()
