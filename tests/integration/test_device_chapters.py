"""The five chapters where nothing is recorded, on the pretended device: all cells compute.

Cells run in this process, with the smallest model, and figures are made but not rendered; the
rehearsal runs all pages in kernels, on the CPU, and renders them. Experiments that appendices
alone run have tests of their own.
Networks trained from scratch have a few pictures of each class here, and figures few dots.
"""

import collections
import itertools
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from papermill.iorw import load_notebook_node

from tasklab.bench.parameters import Parameters
from tasklab.evidence.chapters import CHAPTERS
from tasklab.evidence.figures import pictures
from tasklab.storage import placement

FOLDER = Path(__file__).parents[2] / "notebooks"
SETTING = {"model": "mini_xs", "steps": 1}
FROM_RANDOM = {"linear_layers": {"init": "random"}}  # in place of pre-trained weights


@pytest.fixture(scope="module")
def store(shared):
    return str(shared / "device")  # each chapter is read in whichever process is free


@pytest.fixture
def shell():
    shell = InteractiveShell.instance()
    shell.shown = []
    shell.displayhook.write_format_data = lambda data, about=None: shell.shown.append(data)
    yield shell
    InteractiveShell.clear_instance()


class Forgets(dict):
    def __setitem__(self, key, value):
        pass


@pytest.fixture
def half_full(monkeypatch):
    """Have a device on which every other vector and every other task's images fit.

    What does not stays on the CPU, and shows who forgets to move it.
    """
    turns = collections.defaultdict(lambda: itertools.cycle([False, False, True, True]))
    monkeypatch.setattr(placement, "_KEPT", Forgets())  # so it is asked twice for each
    monkeypatch.setattr(placement, "fits", lambda size, device: next(turns[size]))


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_cell_runs(chapter, store, shell, device, half_full, few_pictures, monkeypatch):
    monkeypatch.setattr(pictures, "png", lambda figure: "")
    monkeypatch.setattr(Parameters, "light", property(lambda self: self.rehearsal))
    notebook = load_notebook_node(str(FOLDER / f"{chapter}.ipynb"))
    first, *others = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    space = shell.user_ns
    with capture_output():
        shell.run_cell(first).raise_error()
        space.update(SETTING | FROM_RANDOM.get(chapter, {}), store_root=store)
        for cell in others:
            shell.run_cell(cell).raise_error()
    assert any("figures and tables: computed here" in str(data) for data in shell.shown)
    assert sum("image/png" in data for data in shell.shown) > 3
    labs_there = [space["lab"], *space.get("labs", [])]
    assert {lab.clip.encoder.device.type for lab in labs_there} == {"cuda"}
