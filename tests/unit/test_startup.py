"""What is imported before anything is asked for: the time to a first answer is that of imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each takes from a tenth of a second to seconds.
TABLES = ("pandas", "seaborn", "matplotlib", "scipy", "sklearn")
NETWORKS = ("torch", "torchvision", "open_clip", "timm", "transformers", "jaxtyping", "numpy")


def imported(code: str) -> set[str]:
    """Return the modules that a new Python has imported after running some code."""
    tell = "\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code + tell], capture_output=True, text=True, check=True, timeout=300
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["list"], ["--help"], ["grid", "--help"], ["list", "modles"]])
def test_the_command_line_waits_for_no_network_and_no_table(words):
    there = imported(f"from tasklab.__main__ import main\ntry: main({words})\nexcept SystemExit: 0")
    assert "tasklab.errors" in there
    assert not there & {*TABLES, *NETWORKS}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["grid", "--model", "minni"], "did you mean 'mini'"),
        (["grid", "--method", "liniarized", "--dry-run"], "did you mean 'linearized'"),
        (["grid", "--task", "Textuers", "--dry-run"], "did you mean 'Textures'"),
        (["grid", "--steps", "none"], "steps"),
        (["study", "tangent", "--part", "mapps", "--dry-run"], "did you mean 'maps'"),
        (["study", "tangent", "--model", "minni"], "did you mean 'mini'"),
    ],
)
def test_what_is_misspelt_is_told_without_torch(words, told, capfd):
    there = imported(f"from tasklab.__main__ import main\nassert main({words}) == 2")
    assert not there & {*TABLES, "torch"}


def test_a_lab_waits_for_what_it_computes_with_alone():
    there = imported("import tasklab; tasklab.Lab, tasklab.Parameters")
    assert {"torch", "tasklab.experiments.lab"} <= there
    assert not there & {*TABLES, "open_clip", "timm", "transformers"}


def test_a_dry_run_builds_no_model(tmp_path):
    grid = ["grid", "--task", "Signs", "--dry-run", "--store-root", str(tmp_path)]
    there = imported(f"from tasklab.__main__ import main\nassert main({grid}) == 0")
    assert "tasklab.models.loading" in there
    assert not there & {*TABLES, "torchvision", "open_clip", "timm", "transformers"}


def test_judging_claims_loads_no_torch():
    # the chapter whose claims take most analyses; the landing page judges all of them
    judge = "records.verdicts(evidence('ctl'), 'ctl', model='mini')"
    there = imported(f"from tasklab import evidence, records\n{judge}")
    assert "tasklab.analyses.transitivity" in there and not there & {"torch", "open_clip"}
