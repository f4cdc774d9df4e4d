"""Several chapters at once: which begin first, how many, and what they make together."""

import io

import nbclient.exceptions
import nbformat
import papermill
import pytest

from tasklab import machine
from tasklab.bench.parameters import Parameters
from tasklab.book import execution, report, sources
from tests.helpers import refuses


def test_the_longest_begins_first(tmp_path):
    short, long = (tmp_path / f"{name}.ipynb" for name in ("a", "b"))
    for path, count in ((short, 1), (long, 2)):
        cells = [nbformat.v4.new_code_cell("1") for _ in range(count)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    assert report.longest_first([short, long]) == [long, short]


def test_a_changed_caption_asks_for_another_execution(tmp_path):
    def asked(caption):
        cell = nbformat.v4.new_code_cell("1", metadata={"tasklab": {"caption": caption}})
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "a.ipynb")
        return execution.asked(tmp_path / "a.ipynb", {})["captions"]

    assert asked("One.") == [{"caption": "One."}] != asked("Two.")


def test_a_kernel_that_is_killed_is_one_sentence(tmp_path, monkeypatch):
    def killed(*_, **more):
        raise nbclient.exceptions.DeadKernelError("Kernel died")

    monkeypatch.setattr(papermill, "execute_notebook", killed)
    nbformat.write(nbformat.v4.new_notebook(), source := tmp_path / "a.ipynb")
    asked = {"parameters": {}, "log": io.StringIO()}
    refuses(r"^a\.ipynb .* \(Kernel died\)", execution.execute, source, tmp_path / "b", **asked)


def test_pages_with_code_are_executed_with_the_chapters(tmp_path):
    (tmp_path / "_toc.yml").write_text("root: plain\nchapters:\n- file: coded\n- file: gone\n")
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "plain.md").write_text("# Words\n\n```\n1\n```\n")
    coded = tmp_path / "book" / "coded.md"
    coded.write_text("---\nfile_format: mystnb\n---\n# Code\n\n```{code-cell}\n1 + 1\n```\n")
    assert sources.computed(tmp_path) == (coded,)
    cells = sources.read_notebook(coded).cells
    assert [cell.source for cell in cells if cell.cell_type == "code"] == ["1 + 1"]
    assert execution.asked(coded, {})["cells"] == ["# Code", "1 + 1"]
    assert "benchmarks" in execution.asked(coded, {})  # a page shows what they measured


@pytest.mark.parametrize(
    ("given", "count", "jobs"),
    [
        ({"model": "mini"}, 5, 4),
        ({"model": "mini"}, 3, 3),
        ({"model": "mini"}, 0, 1),
        ({"model": "vitb32", "init": "random"}, 5, 1),
    ],
)
def test_as_many_as_there_are_cores_where_models_are_small(monkeypatch, given, count, jobs):
    monkeypatch.setattr(machine, "cores", lambda: 4.5)
    assert report.usual_jobs(Parameters(device="cpu", **given), count) == jobs
