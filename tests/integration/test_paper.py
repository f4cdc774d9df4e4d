"""`tasklab paper`: all steps by one command, interrupted and continued."""

import nbformat
import pytest

from tasklab.__main__ import main
from tasklab.book import sources
from tasklab.tuning import finetune

RUNS = 3 * 8  # methods, tasks


@pytest.fixture
def clone(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "_toc.yml").write_text(
        "format: jb-book\nroot: index\nchapters:\n- file: notebooks/tangent\n"
    )
    cell = nbformat.v4.new_code_cell('model = "mini"')
    cell.metadata["tags"] = ["parameters"]
    count = nbformat.v4.new_code_cell(f"open({str(tmp_path / 'count')!r}, 'a').write(model + ' ')")
    notebook = nbformat.v4.new_notebook(cells=[cell, count])
    python = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["kernelspec"] = python
    nbformat.write(notebook, tmp_path / "notebooks" / "tangent.ipynb")
    monkeypatch.setattr(sources, "find_root", lambda *start: tmp_path)
    return tmp_path


@pytest.fixture
def words(tmp_path):
    given = {"steps": 2, "preset": "quick", "seeds": 1, "device": "cpu", "chapter": "tangent"}
    options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    return ["paper", "mini_xs", *options, "--store-root", str(tmp_path / "store")]


def test_every_step_goes_on_where_it_was(clone, words, monkeypatch, capsys):
    assert main([*words, "--dry-run"]) == 0
    listed = capsys.readouterr().out
    for part in ("mini_xs ", "nonlinear, 8 runs", "chapters", "missing: "):
        assert part in listed
    assert not (clone / "store").exists()

    real, calls = finetune.Trainer.__call__, []

    def interrupted(self, config, *more):
        calls.append(config.task)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(self, config, *more)

    monkeypatch.setattr(finetune.Trainer, "__call__", interrupted)
    assert main(words) == 130 and not (clone / "count").exists()
    assert main(words) == 0
    assert len(calls) == 5 + RUNS - 4
    assert (clone / "count").read_text() == "mini_xs "
    folder = clone / "store" / "paper" / "mini_xs"
    assert [file.name for file in folder.glob("*.ipynb")] == ["tangent.ipynb"]

    capsys.readouterr()
    whole = (folder / "tangent.ipynb").read_text()
    (folder / "tangent.ipynb").write_text(whole[:99])  # as a kill leaves it
    monkeypatch.setattr(finetune.Trainer, "__call__", None)
    assert main(words) == 0
    assert (clone / "count").read_text() == "mini_xs "
    assert (folder / "tangent.ipynb").read_text() == whole
    listed = capsys.readouterr().out
    assert listed.count("done") == 5 and "missing: 0.0 GiB\n" in listed


def test_a_full_disk_and_a_wrong_chapter_are_told_first(clone, words, monkeypatch, capsys):
    from tasklab import machine

    monkeypatch.setattr(finetune.Trainer, "__call__", None)
    assert main([*words, "--chapter", "tangnt"]) == 2
    assert "did you mean 'tangent'" in capsys.readouterr().err
    full = machine.Disk(str(clone), 100, 100, True)
    monkeypatch.setattr(machine, "disk", lambda *place: full)
    assert main(words) == 2
    assert "free: take another disk" in capsys.readouterr().err
    assert not (clone / "store").exists()

    def disk(root):  # what goes to the store does not fill the cache's disk
        free, total = (2**50, 2**50) if root == clone / "store" else (0, 9)
        return machine.Disk(str(root), free, total, True)

    monkeypatch.setattr(machine, "disk", disk)
    assert main([*words, "--dry-run"]) == 0
    assert "free: take another disk" not in capsys.readouterr().out
