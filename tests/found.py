"""What chapters found, as it stands in their notebooks before these run; `make locks` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasklab.book.outputs import FOUND
from tasklab.evidence.chapters import CHAPTERS
from tasklab.evidence.study import sections

FOLDER = Path(__file__).parents[1] / "notebooks"


def wanted(chapter: str) -> str:
    """Return the text of a chapter's cell: its answers on recorded runs."""
    return sections.of_records(chapter).found()


def cell_of(cells: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the cell of this text among a notebook's cells, if it has one."""
    words = (cell for cell in cells if cell["cell_type"] == "markdown")
    return next((cell for cell in words if FOUND in cell["metadata"].get("tags", [])), None)


def write() -> None:
    """Write the texts into all chapters, each below its title and claim."""
    for chapter in CHAPTERS:
        file = FOLDER / f"{chapter}.ipynb"
        notebook = json.loads(file.read_text("utf-8"))
        cell = cell_of(notebook["cells"])
        if cell is None:  # the site shows what the run prints instead
            metadata = {"tags": [FOUND, "remove-cell"]}
            cell = {"cell_type": "markdown", "id": "found-recorded", "metadata": metadata}
            notebook["cells"].insert(1, cell)
        cell["source"] = wanted(chapter).splitlines(keepends=True)
        file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")
