"""The scripts in `examples/` as a reader runs them, and their outputs in the book."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

PAIR = ("Signs", "Textures")
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
MERGE = re.compile("RegMean|TSV-M|TIES")  # of about the same accuracy: their order may differ


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    """Return a function that runs a script's `main` and compares its output with the book's."""
    if not (root / "examples").is_dir():
        pytest.skip("an installed package has no examples")
    folder = tmp_path_factory.mktemp("examples")

    def call(name, *, near=10.0, **given):
        with contextlib.redirect_stdout(io.StringIO()) as told:
            result = runpy.run_path(str(root / "examples" / f"{name}.py"))["main"](**given)
        shown = (root / "examples" / "output" / f"{name}.txt").read_text("utf-8")
        assert _words(told.getvalue()) == _words(shown)
        assert _numbers(told.getvalue()) == pytest.approx(_numbers(shown), abs=near)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASKLAB_STORE", str(folder / "store"))
        patch.chdir(folder)
        yield call


def _words(text):
    return sorted(MERGE.sub("merge", NUMBER.sub("#", text)).split())


def _numbers(text):
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def test_two_skills_add_and_one_is_forgotten(run):
    rows = {row["task"]: row for row in run("add_two_skills", progress=False).rows}
    assert all(rows[task]["gain"] > 0 for task in PAIR)
    # Near the threshold another machine may choose the next coefficient.
    rows = {row["task"]: row for row in run("forget_one", near=30, progress=False).rows}
    assert rows["Signs"]["gain"] < 0


def test_merges_are_compared_and_go_back_to_open_clip(run):
    assert "TSV-M" in run("compare_merges", progress=False).read_text("utf-8")
    features = run("back_to_open_clip", progress=False)
    assert features.shape[0] == 1 and features.isfinite().all()


def test_networks_of_ones_own_and_interference(run):
    losses = run("linearize_your_network", near=0.1)
    assert losses[-1] < 0.75 * losses[0]
    found = run("interference_of_a_pair", progress=False)
    assert len(found) == 4 and all(0 <= value <= 100 for value in found.values())


def test_every_example_is_shown_and_tested(root):
    page = root / "book" / "examples.md"
    if not page.exists():
        pytest.skip("an installed package has no book")
    text, tests = page.read_text("utf-8"), Path(__file__).read_text("utf-8")
    for script in (root / "examples").glob("*.py"):
        assert script.name in text and f'"{script.stem}"' in tests
        assert f"output/{script.stem}.txt" in text
        assert len(script.read_text("utf-8").splitlines()) <= 48, script.name
