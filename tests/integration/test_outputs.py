"""The way from a chapter's source to Jupyter Book's cache, without executing anything."""

import contextlib
import functools
import sqlite3

import nbformat
import pytest
from jupyter_cache import get_cache

from tasklab.book import outputs
from tests.helpers import refuses

FINGERPRINT = functools.cache(outputs.fingerprint)  # it reads all files of the package


def _notebook(*sources):
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells[0].metadata["tags"] = ["parameters"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    return notebook


def _executed(notebook):
    notebook = nbformat.from_dict(notebook)
    notebook.metadata["papermill"] = {"duration": 1.0}
    for count, cell in enumerate(notebook.cells, start=1):
        cell.execution_count = count
        cell.metadata["papermill"] = {"status": "completed"}
        text = f"output of {cell.source}"
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
    return notebook


@pytest.fixture(autouse=True)
def package(monkeypatch):
    monkeypatch.setattr(outputs, "fingerprint", FINGERPRINT)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "chapter.ipynb"
    nbformat.write(_notebook("steps = 10", "steps"), path)
    return path


def _forgotten(index):
    with contextlib.closing(sqlite3.connect(index)) as connection:
        connection.execute("DELETE FROM nbcache")
        connection.commit()


def _cached(source, cache):
    _, merged = get_cache(str(cache)).merge_match_into_notebook(nbformat.read(source, 4))
    return merged


def test_the_cache_finds_outputs_by_the_source(source, tmp_path):
    executed = _executed(nbformat.read(source, 4))
    outputs.remember(executed, source, tmp_path / "cache", 1.0)
    assert _cached(source, tmp_path / "cache").cells[1].outputs[0].text == "output of steps"
    executed = _executed(_notebook("steps = 10", "steps + 1"))
    refuses(r"chapter\.ipynb", outputs.remember, executed, source, tmp_path / "cache", 1.0)


def test_passed_parameters_are_told_where_the_reader_sees_the_defaults(source, tmp_path):
    executed = _executed(nbformat.read(source, 4))
    injected = nbformat.v4.new_code_cell("# Parameters\nsteps = 2\n")
    injected.metadata["tags"] = ["injected-parameters"]
    executed.cells.insert(1, injected)
    outputs.remember(executed, source, tmp_path / "cache", 1.0)
    merged = _cached(source, tmp_path / "cache")
    assert [cell.source for cell in merged.cells] == ["steps = 10", "steps"]
    assert "steps = 2" in merged.cells[0].outputs[0].text


def test_progress_widgets_are_left_out(source, tmp_path):
    executed = _executed(nbformat.read(source, 4))
    data = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "0%"}
    executed.cells[1].outputs = [nbformat.v4.new_output("display_data", data=data)]
    outputs.remember(executed, source, tmp_path / "cache", 1.0)
    assert _cached(source, tmp_path / "cache").cells[1].outputs == []


def test_a_changed_package_empties_the_cache(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    assert not outputs.drop_stale(cache)
    entry = cache / "executed" / ("0123456789abcdef" * 2) / "base.ipynb"
    foreign = [
        cache / ".notes.partial",
        cache / "executed" / "thesis.ipynb",
        cache / "executed.old",
    ]
    entry.parent.mkdir(parents=True)
    for file in (entry, *foreign):
        file.touch()
    outputs.seal(cache)
    assert not outputs.drop_stale(cache)
    assert entry.exists()
    monkeypatch.setattr(outputs, "fingerprint", lambda: "another")
    assert outputs.drop_stale(cache)
    assert not entry.exists() and all(file.exists() for file in foreign)


def _kept(source, cache):
    outputs.drop_stale(cache)
    outputs.remember(_executed(nbformat.read(source, 4)), source, cache, 1.0)
    return next((cache / "executed").rglob("base.ipynb"))


def test_a_cache_as_it_was_left_is_kept(source, tmp_path):
    kept = _kept(source, tmp_path / "cache")
    assert not outputs.drop_stale(tmp_path / "cache") and kept.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda cache, kept: kept.write_text(kept.read_text().replace("steps", "stops", 1)),
        lambda cache, kept: kept.write_bytes(b""),
        lambda cache, kept: kept.unlink(),
        lambda cache, kept: kept.with_name("more.ipynb").touch(),
        lambda cache, kept: (cache / "global.db").write_bytes(b"no data base"),
        lambda cache, kept: (cache / "global.db").unlink(),
        lambda cache, kept: (cache / "global.db").write_bytes(b""),
        lambda cache, kept: _forgotten(cache / "global.db"),
        lambda cache, kept: (cache / "tasklab.sha256").write_bytes(b"\xff\xfe"),
        lambda cache, kept: (cache / "tasklab.sha256").unlink(),
    ],
    ids="altered,emptied,gone,added,index,no index,empty index,no rows,seal,no seal".split(","),
)
def test_a_damaged_or_altered_cache_is_emptied_and_works_again(source, tmp_path, damage):
    cache = tmp_path / "cache"
    damage(cache, _kept(source, cache))
    assert outputs.drop_stale(cache)
    assert not (cache / "executed").exists()
    _kept(source, cache)
    assert _cached(source, cache).cells[1].outputs[0].text == "output of steps"


def test_an_executed_notebook_to_download_leads_to_notebooks():
    shown = '<a href="#do-the-vectors-add">a</a><a href="ctl.html#does-theory-explain-it">b</a>'
    text = nbformat.v4.new_output("display_data", {"text/html": shown + '<a href="#x">c</a>'})
    cells = [nbformat.v4.new_markdown_cell("# A"), nbformat.v4.new_code_cell("1", outputs=[text])]
    book = nbformat.v4.new_notebook(cells=cells)
    copy = outputs.in_jupyterlab(book, "tangent")
    told = copy.cells[1].outputs[0].data["text/html"]
    assert 'href="#Do-the-vectors-add?"' in told and 'href="#x"' in told
    assert 'href="ctl.ipynb#Does-theory-explain-it?"' in told
    assert book.cells[1].outputs[0].data["text/html"].startswith(shown)
