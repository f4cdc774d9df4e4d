"""Every cell of every chapter has run, at two steps: the site's tests show the same rehearsal."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
CHAPTERS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def _code(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_cell_runs(chapter, rehearsal):
    ran = _code(rehearsal / "book" / "_build" / "executed" / f"{chapter}.ipynb")
    injected = [cell for cell in ran if "injected-parameters" in cell.metadata.get("tags", [])]
    sources = [cell.source for cell in _code(FOLDER / f"{chapter}.ipynb")]
    assert [cell.source for cell in ran if cell not in injected] == sources
    assert [cell.execution_count for cell in ran] == [*range(1, len(ran) + 1)]
    assert not [out for cell in ran for out in cell.outputs if out.output_type == "error"]
