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
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

FROM_RANDOM = "linear_layers"
CHAPTERS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_cell_runs(path, tmp_path, chapters_store):
    # The sources hold no outputs, so what nbval compares is only that no cell fails. It runs in a
    # process of its own: a failing kernel cannot take this one along, nor our settings its cells.
    copy = tmp_path / path.name
    given = {"steps": 2} | ({"init": "random"} if path.stem == FROM_RANDOM else {})
    notebook = parameterize_notebook(load_notebook_node(str(path)), given)
    nbformat.write(notebook, copy)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    result = tmp_path / "result.xml"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env"),
            *("--nbval-cell-timeout=900", "-p", "no:cacheprovider", "-q"),
            *("-c", str(tmp_path / "pytest.ini"), f"--junitxml={result}", str(copy)),
        ],
        cwd=path.parent,
        env=os.environ | {"TQDM_DISABLE": "1", "TASKLAB_STORE": str(chapters_store)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    suite = ElementTree.parse(result).getroot().find("testsuite")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    assert int(suite.get("tests")) == len(cells) > 0
    assert int(suite.get("skipped")) == 0
