"""Every cell of every chapter runs, at two steps: nbval over such copies.

The site's tests build it from the same rehearsal, and share its store. One chapter starts from
random weights in place of pre-trained ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from nbformat import NotebookNode
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

FROM_RANDOM = "linear_layers"
FOLDER = Path(__file__).parents[2] / "notebooks"
CHAPTERS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


@pytest.fixture(scope="module")
def copies(request) -> dict[str, NotebookNode]:
    """Return the chapters that are asked for, as they are to run."""
    items = [item for item in request.session.items if item.path == request.path]
    copies = {}
    for chapter in sorted({item.callspec.params["chapter"] for item in items}):
        given = {"steps": 2} | ({"init": "random"} if chapter == FROM_RANDOM else {})
        source = load_notebook_node(str(FOLDER / f"{chapter}.ipynb"))
        copies[chapter] = parameterize_notebook(source, given)
    return copies


@pytest.fixture(scope="module")
def result(copies, chapters_store, tmp_path_factory) -> tuple[ElementTree.Element, str]:
    """Return what nbval says of the copies, and its output.

    The sources hold no outputs, so what it compares is only that no cell fails. It runs in a
    process of its own: a failing kernel cannot take this one along, nor our settings its cells.
    """
    folder = tmp_path_factory.mktemp("nbval")
    for chapter, notebook in copies.items():
        nbformat.write(notebook, folder / f"{chapter}.ipynb")
    (folder / "pytest.ini").write_text("[pytest]\njunit_family = xunit1\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env"),
            *("--nbval-cell-timeout=900", "-p", "no:cacheprovider", "-q"),
            *("-c", "pytest.ini", "--junitxml=result.xml", *sorted(map("{}.ipynb".format, copies))),
        ],
        cwd=folder,
        env=os.environ | {"TQDM_DISABLE": "1", "TASKLAB_STORE": str(chapters_store)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout[-8000:] + done.stderr[-2000:]
    assert (folder / "result.xml").exists(), said
    return ElementTree.parse(folder / "result.xml").getroot().find("testsuite"), said


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_cell_runs(chapter, copies, result):
    suite, said = result
    cells = copies[chapter].cells
    code = [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]
    ran = [case for case in suite.iter("testcase") if f"{chapter}.ipynb" in case.get("file", "")]
    assert len(ran) == len(code) > 0, said
    assert not [list(case) for case in ran if list(case)], said
