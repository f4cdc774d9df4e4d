"""The line at the top of a notebook that runs in JupyterLab."""

import json
import types

from tasklab.book import running


def notebook(folder):
    cells = [
        {"cell_type": "markdown", "source": ["# A chapter\n", "\n", "text"]},
        {"cell_type": "code", "id": "a", "source": ["x = 1"]},
        {"cell_type": "markdown", "source": ["## Do they add?"]},
        {"cell_type": "code", "id": "b", "source": ["y = 2"]},
    ]
    path = folder / "chapter.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_the_line_names_the_section_and_the_cell(tmp_path):
    cells = running.cells_of(notebook(tmp_path))
    assert cells == [("a", "A chapter"), ("b", "Do they add?")]
    said = []
    line = running.Line(cells, said.append, began=running.time.monotonic() - 120)
    line.before(types.SimpleNamespace(cell_id="b"))
    assert said[-1].startswith("*Running: Do they add?, cell 2 of 2, ") and "so far" in said[-1]
    line.before(types.SimpleNamespace(cell_id="another"))  # a cell that the file does not have
    assert len(said) == 1
    line.after(types.SimpleNamespace(success=True))
    assert said[-1].startswith("*All 2 cells have run, in 2 min.")
    line.after(types.SimpleNamespace(success=False))
    assert said[-1] == "*Stopped at Do they add?, cell 2.*"


def test_it_is_shown_in_jupyterlab_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert running.watch() is None
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook(tmp_path)))
    assert running.watch() is None  # no kernel
    assert running.cells_of(tmp_path / "none.ipynb") == []


def test_run_all_is_taken_back_to_the_top_where_the_line_is(tmp_path, monkeypatch):
    shown, registered = [], {}

    class Handle:
        def update(self, one):
            shown.append(one)

    def display(one, *, display_id):
        shown.append(one)
        return Handle()

    events = types.SimpleNamespace(register=lambda name, call: registered.setdefault(name, call))
    shell = types.SimpleNamespace(events=events)
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook(tmp_path)))
    monkeypatch.setattr(running.IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr(running.IPython.display, "display", display)
    assert running.watch() is not None and len(shown) == 1
    assert "scrollTop = 0" in shown[0].data and "jp-mod-active" in shown[0].data
    registered["pre_run_cell"](types.SimpleNamespace(cell_id="b"))  # no script stays in the file
    assert shown[1].data.startswith("*Running: Do they add?, cell 2 of 2")
