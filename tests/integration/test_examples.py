"""The scripts in `examples/`, at tiny size."""

import runpy
from pathlib import Path

import pytest

TINY = {"model": "mini_xs", "steps": 25, "progress": False}
PAIR = ("Signs", "Textures")


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    if not (root / "examples").is_dir():
        pytest.skip("an installed package has no examples")
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TASKLAB_STORE", str(folder / "store"))
        patch.chdir(folder)
        yield lambda name, **given: runpy.run_path(str(root / "examples" / f"{name}.py"))["main"](
            **given
        )


def test_two_skills_add(run):
    rows = {row["task"]: row for row in run("add_two_skills", **TINY).rows}
    assert all(rows[task]["gain"] > 0 for task in PAIR)


def test_one_is_forgotten(run):
    rows = {row["task"]: row for row in run("forget_one", **TINY).rows}
    assert rows["Signs"]["gain"] < 0


def test_merges_are_compared(run, capsys):
    page = run("compare_merges", **TINY).read_text("utf-8")
    assert "TSV-M" in page and '"gain"' in capsys.readouterr().out


def test_a_network_of_ones_own_is_linearized(run):
    losses = run("linearize_your_network", steps=60)
    assert losses[-1] < 0.75 * losses[0]


def test_interference_is_measured(run):
    found = run("interference_of_a_pair", **TINY)
    assert len(found) == 4 and all(0 <= value <= 100 for value in found.values())


def test_a_merged_model_goes_back_to_open_clip(run):
    features = run("back_to_open_clip", **TINY)
    assert features.shape[0] == 1 and features.isfinite().all()


def test_every_example_is_shown_and_tested(root):
    page = root / "book" / "examples.md"
    if not page.exists():
        pytest.skip("an installed package has no book")
    text, tests = page.read_text("utf-8"), Path(__file__).read_text("utf-8")
    for script in (root / "examples").glob("*.py"):
        assert script.name in text and f'"{script.stem}"' in tests
        assert len(script.read_text("utf-8").splitlines()) <= 48, script.name
