"""Papermill and Jupyter Book execute a chapter once between them."""

import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import filelock
import nbformat
import pytest
from bs4 import BeautifulSoup

from tasklab import machine
from tasklab.book import execution, report
from tasklab.storage.store import Store
from tests.helpers import refuses

AWAITED = [
    "from tasklab import figures, page\nfrom tasklab.records.table import nothing\nNone  # figure",
    "figures.table(nothing())",
    "page.once_recorded(print, nothing())",
    "None  # another",
    "print('shown all the same')",
]


@pytest.fixture
def clone(tmp_path, root, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 1.0)  # kernels are this process's, warm
    for name in ("book/_ext", "book/_static"):
        shutil.copytree(root / name, tmp_path / name)
    shutil.copy(root / "_config.yml", tmp_path)
    (tmp_path / "_toc.yml").write_text(
        "format: jb-book\nroot: index\nchapters:\n- file: notebooks/count\n"
    )
    book = tmp_path / "book"
    page = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---\n# Landing page\n\n"
    page += "{doc}`notebooks/count`\n\n```{code-cell} ipython3\n"
    page += f'open({str(tmp_path / "page")!r}, "a").write("x"); print("ran as a page")\n```\n'
    (book / "index.md").write_text(page)
    (book / "references.bib").write_text("")
    (tmp_path / "notebooks").mkdir()
    for name in ("_config.yml", "_toc.yml", "notebooks"):
        (book / name).symlink_to(f"../{name}")
    parameters = nbformat.v4.new_code_cell('preset = "quick"')
    parameters.metadata["tags"] = ["parameters"]
    code = f'open({str(tmp_path / "count")!r}, "a").write("x"); print("ran as", preset)'
    code += "\nimport sys; print('half done', file=sys.stderr)"
    code += "\n# a link in code, by which the cache knows the chapter: [all](../book/index.md)"
    cells = [nbformat.v4.new_markdown_cell("# Count"), parameters, nbformat.v4.new_code_cell(code)]
    cells[
        0
    ].source += (
        '\n\n<a id="eq-a"></a>\n\n$$\na = b\n$$\n\n[The square](#fig-square), [(eq-a)](#eq-a).'
    )
    figure = "import PIL.Image as image\nfrom pathlib import Path\n"
    figure += "from tasklab.book import captions\ncaptions.follow(Path('count.ipynb'))"
    figure = [figure, "image.new('RGB', (9, 9))"]
    cells += map(nbformat.v4.new_code_cell, figure)
    _captioned(cells[-1], "fig-square", "All of $a$ is black.")
    cells += [
        nbformat.v4.new_markdown_cell("## Awaited\n\n[A figure](#fig-none), [another](#fig-void)."),
        *map(nbformat.v4.new_code_cell, AWAITED),
    ]
    _captioned(cells[-5], "fig-none", "None.")
    _captioned(cells[-2], "fig-void", "Void.")
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(notebook, tmp_path / "notebooks" / "count.ipynb")
    return tmp_path


def _captioned(cell, figure, caption):
    cell.metadata["tasklab"] = {"figure": figure, "caption": caption}


def _executions(clone, name="count"):
    return len((clone / name).read_text())


def _bare_build(clone):
    tool = Path(sys.executable).with_name("jupyter-book")
    done = subprocess.run(
        [str(tool), "build", "book/"], cwd=clone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_one_execution_whichever_way_it_is_built(clone, capsys, monkeypatch):
    page = clone / "book/_build/html/notebooks/count.html"
    report.report("full", root=clone)
    assert (
        _executions(clone) == _executions(clone, "page") == 1
    )  # the build found them in the cache
    assert "ran as a page" in (page.parents[1] / "index.html").read_text()
    soup = BeautifulSoup(page.read_text(), "html.parser")
    assert "ran as full" in soup.text
    awaited = soup.select_one("section#awaited")
    assert awaited.text.count("Not recorded yet.") == 1 and len(awaited.select("div.cell")) == 1
    assert "shown all the same" in awaited.text
    assert awaited.select_one("p#fig-none") and awaited.select_one("p#fig-void:empty")
    assert soup.select_one("figure#fig-square a > img")  # leads to the whole picture
    told = soup.select_one("figure#fig-square figcaption").text
    assert re.search(r"Fig\. 1\S* All of .* is black\.", told) and "Figure." not in told
    assert {a.text for a in soup.select("p > a.internal")} >= {"The square", "(1)"}
    assert "(1)" in soup.select_one("div.math#equation-eq-a").text
    lead = soup.select_one("h1 + p.tasklab-executed")
    links = [page.parent / a["href"] for a in lead.select("a[download]")]
    every = [nbformat.read(link, 4).cells for link in links]
    outputs = [[bool(c.outputs) for c in cells if c.cell_type == "code"] for cells in every]
    assert outputs == [[True] * 2 + [False] + [True] * 6, [False] * 9]  # executed, and its source
    assert report.is_current(clone)
    log = clone / "book/_build/build.log"
    log.unlink()
    capsys.readouterr()
    assert report.report("full", root=clone).samefile(page.parents[1] / "index.html")
    assert "nothing has changed" in capsys.readouterr().out and not log.exists()
    assert "half done" in (clone / "book/_build/report.log").read_text()
    copy = nbformat.read(clone / "book/_build/executed/count.ipynb", 4)
    assert [one.name for one in copy.cells[3].outputs] == ["stdout"]
    page.write_text(page.read_text() + " ")
    assert not report.is_current(clone)
    (clone / "book/_build/.jupyter_cache/tasklab.sha256").write_text("an older package")
    _bare_build(clone)  # what `report` remembered is found there, were it not of an older package
    assert _executions(clone) == 2 and "ran as quick" in page.read_text()
    shutil.rmtree(clone / "book/_build")
    monkeypatch.setattr(report, "build", lambda root: None)
    report.report("full", root=clone)
    assert _executions(clone) == _executions(clone, "page") == 2  # found in the store


@pytest.mark.slow
def test_a_second_report_waits_for_the_first_and_takes_only_its_own_files(
    clone, capsys, monkeypatch
):
    monkeypatch.setattr(report, "build", lambda root: None)
    folder = clone / "book" / "_build"
    foreign = [folder / "executed" / name for name in ("thesis.ipynb", ".x.partial", "old/a.lock")]
    foreign += [folder / ".jupyter_cache" / "thesis.txt", folder / "html" / "notes.txt"]
    for file in foreign:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    held, begun = threading.Event(), []

    def report_of_another():
        with filelock.FileLock(folder / "report.lock"):
            held.set()
            time.sleep(2)
            begun.append((clone / "count").exists())

    first = threading.Thread(target=report_of_another)
    first.start()
    assert held.wait(30)
    report.report(root=clone)
    first.join()
    assert begun == [False] and _executions(clone) == 1
    assert "waiting for another report in this clone" in capsys.readouterr().out
    assert all(file.exists() for file in foreign)


@pytest.mark.slow
def test_a_failing_chapter_gives_no_site(clone):
    path = clone / "notebooks" / "count.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells.append(nbformat.v4.new_code_cell("1 / 0"))
    nbformat.write(notebook, path)
    refuses(r"count\.ipynb stopped in code cell 10 with ZeroDiv", report.report, root=clone)
    assert not report.is_current(clone)


COUNTED = 'import os; print(together, os.environ["OMP_NUM_THREADS"])'
MEET = """
import pathlib, time
folder = pathlib.Path({folder!r})
(folder / "here-{name}").touch()
until = time.monotonic() + 120
while len([*folder.glob("here-*")]) < 2 and time.monotonic() < until:
    time.sleep(0.1)  # until the other chapter is here too
together = len([*folder.glob("here-*")])
"""


def test_two_chapters_run_at_once_with_a_thread_each(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "cores", lambda: 2.0)
    store, log, asked, run = Store(tmp_path / "chapters"), tmp_path / "report.log", [], []
    for name in ("one", "two"):
        cells = MEET.format(folder=str(tmp_path), name=name), COUNTED
        notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        source = tmp_path / f"{name}.ipynb"
        nbformat.write(notebook, source)
        asked.append(execution.asked(source, {"device": "cpu"}))
        run.append((store, asked[-1], source, tmp_path / "copies" / source.name, {}, log))
    report.execute(run, 2)
    for config in asked:
        cells = store.find(execution.KIND, config).record["notebook"]["cells"]
        assert cells[-1]["outputs"][0]["text"] == "2 1\n"
    assert {"one", "two"} <= {line.split(":")[0] for line in log.read_text().splitlines()}


KILLED = """
import os, signal, sys, threading, time
from pathlib import Path
from tasklab.book import report
os.chdir(sys.argv[2])
def end():
    while not (Path("pid").exists() and Path("pid").read_text().endswith("\\n")):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=end).start()
sys.executable = sys.argv[1]
report.build(Path.cwd())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a process is asked for its parent's end")
def test_a_build_ends_with_the_report_that_is_killed(tmp_path):
    tool = tmp_path / "jupyter-book"
    tool.write_text("#!/bin/sh\necho $$ > pid\nexec sleep 120\n")
    tool.chmod(0o755)
    words = [sys.executable, "-c", KILLED, str(tmp_path / "python"), str(tmp_path)]
    assert subprocess.run(words, timeout=100).returncode == -signal.SIGKILL
    builder = Path("/proc", (tmp_path / "pid").read_text().strip())
    end = time.monotonic() + 30
    while builder.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert builder.name and not builder.exists()
