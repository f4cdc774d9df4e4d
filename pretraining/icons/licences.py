"""The texts of the drawings' licences, and who drew which set: the folder `licenses`.

    npm pack spdx-license-list@6.12.0                     the texts, once; not into the clone
    python -m pretraining.icons.licences --texts spdx-license-list-6.12.0.tgz

The source of the drawings has each set's licence by its SPDX identifier, and no text.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from pretraining.icons.source import LICENCES
from tasklab.errors import TasklabError
from tasklab.tasks import icons

FOLDER = Path(__file__).parents[2] / "licenses"
LIST = "drawings.md"
PACKAGE = "spdx-license-list@6.12.0"
SHA256 = "54cc8d13086187333ca1457c8edaa06d9a412144f076aa7f7c1b59c4f3b0a1ef"
_TOP = """# Licences of the drawings

The suite `icons` has drawings of the sets below, as the npm package `@iconify/json@2.2.535`
collects them, rendered at 32 x 32 pixels. The texts of the licences are beside this file, by their
SPDX identifiers. Where a text leaves room for the holder of the copyright, it is the author here.

| set | prefix | author | licence | drawings | work | licence of the work |
|---|---|---|---|---|---|---|
"""


def listed() -> str:
    """Return the list of sets as Markdown, from the table that ships with the drawings."""
    counts = collections.Counter(
        drawing.split(":")[0] for several in icons.drawings().values() for drawing in several
    )
    rows = [
        [one["title"], prefix, one["author"], one["licence"], str(counts[prefix])]
        + [one["url"], one["licence_url"]]
        for prefix, one in sorted(icons.sources()["sets"].items())
    ]
    return _TOP + "".join(f"| {' | '.join(cell.replace('|', '/') for cell in r)} |\n" for r in rows)


def texts(package: Path) -> Mapping[str, str]:
    """Return the licences' texts by SPDX identifier.

    Raises:
        TasklabError: If the package is another one.
    """
    if (found := hashlib.sha256(package.read_bytes()).hexdigest()) != SHA256:
        raise TasklabError(f"{package} is not {PACKAGE}: its SHA-256 is {found}, not {SHA256}.")
    with tarfile.open(package) as files:
        read = {
            name: files.extractfile(f"package/licenses/{name}.json") for name in sorted(LICENCES)
        }
        return {name: json.load(file)["licenseText"] for name, file in read.items() if file}


def write(package: Path, folder: Path = FOLDER) -> None:
    """Write the folder of texts and the list of sets."""
    folder.mkdir(exist_ok=True)
    for name, text in texts(package).items():
        (folder / f"{name}.txt").write_text(text.strip() + "\n", "utf-8")
    (folder / LIST).write_text(listed(), "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=Path, required=True, help=f"the file of {PACKAGE}")
    write(parser.parse_args().texts)
