"""Every cell of every chapter has run, at two steps: the site's tests show the same rehearsal.

Where nothing is recorded they run in `tests/integration/test_device_chapters.py`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
CHAPTERS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
AGAIN = "closed_vocab_more"


def _code(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_cell_runs(chapter, rehearsal):
    ran = _code(rehearsal / "book" / "_build" / "executed" / f"{chapter}.ipynb")
    injected = [cell for cell in ran if "injected-parameters" in cell.metadata.get("tags", [])]
    sources = [cell.source for cell in _code(FOLDER / f"{chapter}.ipynb")]
    assert [cell.source for cell in ran if cell not in injected] == sources
    assert [cell.execution_count for cell in ran] == [*range(1, len(ran) + 1)]
    assert not [out for cell in ran for out in cell.outputs if out.output_type == "error"]


@pytest.mark.slow
def test_a_chapter_that_was_executed_runs_again_under_nbval(rehearsal, chapters_store, tmp_path):
    """Its runs are in the store; a process of its own keeps our settings from its cells."""
    name = f"{AGAIN}.ipynb"
    shutil.copy(rehearsal / "book" / "_build" / "executed" / name, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\njunit_family = xunit1\n")
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "-q"]
    command += ["--nbval-cell-timeout=600", "-p", "no:cacheprovider", "-c", "pytest.ini"]
    done = subprocess.run(
        [*command, "--junitxml=result.xml", name],
        cwd=tmp_path,
        env=os.environ | {"TQDM_DISABLE": "1", "TASKLAB_STORE": str(chapters_store)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tmp_path / "result.xml").exists(), done.stdout[-4000:] + done.stderr[-2000:]
    cases = [*ElementTree.parse(tmp_path / "result.xml").iter("testcase")]
    assert len(cases) == len([one for one in _code(tmp_path / name) if one.source.strip()]) > 0
    assert not [list(case) for case in cases if list(case)], done.stdout[-8000:]
