"""Chapters on texts in the preset `quick`: counted products, by which ten minutes are enough."""

import functools
import re
from pathlib import Path
from unittest import mock

import nbformat
import pytest
import torch

from tasklab import Lab, TaskVector, analyses, explore, finetune, recorded
from tasklab.errors import LeftOutError
from tasklab.evidence import experiments, records
from tasklab.models import bert
from tasklab.tuning import steps, tangent
from tasklab.tuning.methods import LINEAR
from tests import sentences as tiny

OPENS = "chapters.open"  # what a chapter's first cell calls
FOLDER = Path(__file__).parents[2] / "notebooks"
# Thousands of a text by all weights of all-MiniLM-L6-v2: with all else each took 6 milliseconds of
# a core with AVX-512, so that 200 would be ten minutes of two.
MOST = {"tangent": 95, "linear_layers": 155, "ctl": 60, "merging": 80}


class Products:
    """Counts products of a text with the weights: one a forward pass (`analyses.cost`)."""

    def __init__(self, monkeypatch):
        self.steps = self.passes = 0
        self._dual = False
        monkeypatch.setattr(steps.Step, "__call__", self.step(steps.Step.__call__))
        monkeypatch.setattr(bert.Bert, "forward", self.forward(bert.Bert.forward))
        monkeypatch.setattr(tangent, "_dual_pass", self.dual(tangent._dual_pass))

    def step(self, _):
        """Return a step that trains as far as any, in any direction."""

        def step(step, what, x, y, others):
            self.steps += len(y) * (5 if step.config.method in LINEAR else 3)
            delta = step._problem.delta | step._problem.own
            return torch.ones(()), {name: torch.randn_like(x) for name, x in delta.items()}

        return step

    def forward(self, usual):
        @functools.wraps(usual)
        def forward(module, ids):
            recorded = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
            self.passes += len(ids) * (1 + 2 * self._dual + 2 * recorded)
            return usual(module, ids)

        return forward

    def dual(self, usual):
        def dual(*given):
            self._dual = True
            try:
                return usual(*given)
            finally:
                self._dual = False

        return dual


def computed(chapter, lab):
    """Run what a chapter computes where nothing is recorded, without its figures and sentences."""
    page = mock.MagicMock()

    def results(lab, _, run, methods=None, **options):
        found = run(lab, *(() if methods is None else (methods,)), **options)
        found.attrs["kind"] = "live"
        return found

    page.results = results
    cells = {
        "lab": lab, "model": "minilm", "page": page, "experiments": experiments, "records": records,
        "analyses": analyses, "recorded": recorded,
        "figures": mock.MagicMock(), "study": mock.MagicMock(), "explore": explore,
        "TaskVector": TaskVector, "finetune": finetune, "pd": mock.MagicMock(),
        "values": {}, "conditions": [], "titles": [], "columns": [],  # networks of pictures
    }  # fmt: skip
    for cell in nbformat.read(FOLDER / f"{chapter}.ipynb", 4).cells:
        sentence = {"remove-input", "parameters", "hide-cell"} & {*cell.metadata.get("tags", ())}
        code = cell.source if cell.cell_type == "code" and not sentence else ""
        if re.search(r"recorded\(|results\(|experiments\.|lab\.", code) and OPENS not in code:
            try:
                exec(compile(code, chapter, "exec"), cells)
            except LeftOutError:
                continue  # a model without relatives


@pytest.mark.parametrize(
    "chapter",
    [pytest.param(one, marks=() if one == "ctl" else pytest.mark.slow) for one in MOST],
)
def test_a_chapter_takes_ten_minutes_of_two_cores(chapter, tmp_path, monkeypatch):
    tiny.tiny(tmp_path, monkeypatch)
    count = Products(monkeypatch)
    lab = Lab("minilm", preset="quick", store_root=tmp_path / "store", device="cpu", progress=False)
    computed(chapter, lab)
    assert MOST[chapter] / 2 < (count.steps + count.passes) / 1000 <= MOST[chapter]
