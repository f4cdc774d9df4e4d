"""What the site tells of each chapter's run, from Jupyter Book's cache."""

import nbformat
import pytest
from docutils import nodes

from tasklab.book import captions, outputs, sources

RUN = {
    "tasklab": "0.2", "commit": "0123456789abcdef", "python": "3.11.9", "torch": "2.9",
    "machine": {"cpu": "a processor", "cores": 2, "ram_gib": 23.6, "gpu": None},
    "utc": "2026-11-22 07:00:59", "preset": "quick", "model": "mini", "seeds": [0],
}  # fmt: skip


@pytest.fixture(scope="module")
def executions(extension):
    return extension("executions")


@pytest.fixture
def source(tmp_path):
    cells = [nbformat.v4.new_code_cell("steps = 10"), nbformat.v4.new_code_cell("origin")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, tmp_path / "chapter.ipynb")
    return tmp_path / "chapter.ipynb"


def test_a_run_is_told_by_what_its_kernel_said(executions, source, tmp_path):
    ran = nbformat.read(source, 4)
    new = nbformat.v4.new_output
    ran.cells[1].outputs = [
        new("display_data", data={"text/plain": "a table"}, metadata={captions.KEY: RUN})
    ]
    outputs.remember(ran, source, tmp_path / "cache", 83.2)
    notebook, run = executions.kept(source, tmp_path / "cache")
    assert notebook.cells[1].outputs[0].data == {"text/plain": "a table"}
    assert run == {**RUN, "seconds": 83.2}
    assert executions.row(run) == [
        "2026-11-22 07:00 UTC, in 1.4 min", "mini, quick", "a processor, 2 cores, 24 GiB",
        "tasklab 0.2 (012345678), Python 3.11.9, PyTorch 2.9",
    ]  # fmt: skip
    gpu = RUN | {"machine": RUN["machine"] | {"gpu": "an accelerator"}, "seeds": [0, 1]}
    told = executions.row(gpu | {"seconds": 8})
    assert told[0].endswith("in 8 s") and told[1] == "mini, quick, seeds [0, 1]"
    assert told[2].startswith("an accelerator, 2")


def test_what_did_not_run_and_what_tells_nothing_are_no_errors(executions, source, tmp_path):
    cache = tmp_path / "cache"
    assert executions.kept(source, cache) is None
    ran = nbformat.read(source, 4)
    ran.cells[1].outputs = [
        nbformat.v4.new_output(
            "display_data", data={"application/vnd.jupyter.widget-view+json": {}}
        )
    ]
    outputs.remember(ran, source, cache, 1.0)
    notebook, run = executions.kept(source, cache)
    assert notebook.cells[1].outputs == [] and run == {"seconds": 1.0}
    assert executions.row(run) == ["in 1 s", "–", "–", "–"]
    changed = nbformat.read(source, 4)
    changed.cells[1].source = "another"
    nbformat.write(changed, source)
    assert executions.kept(source, cache) is None
    assert executions.kept(tmp_path / "none.ipynb", cache) is None


def test_every_chapter_tells_its_origin(root):
    for chapter in sources.chapters(root):
        assert "page.opened(lab)" in chapter.read_text("utf-8"), chapter.name


def test_what_was_found_stands_below_what_is_claimed(executions):
    claim, scope = nodes.paragraph("", "Claim."), nodes.paragraph("", "Scope.")
    code, found = nodes.container(classes=["cell"]), nodes.container(classes=["cell", "tag_found"])
    chapter = nodes.section("", nodes.title("", "Chapter"), claim, scope, code, found)
    executions._raise_findings(chapter)
    assert chapter.children[1:] == [claim, found, scope, code]
    usual = nodes.section("", nodes.title("", "Page"), claim, code)
    executions._raise_findings(usual)
    assert usual.children[1:] == [claim, code]
