"""The page *Extend it* does what it says: its code, put into a copy of the package, runs."""

import os
import re
import subprocess
import sys
import textwrap

from tasklab.storage import shipped

LOCK = "from tasklab.storage import shipped; shipped.lock()\n"
CHECKS = """
import torch
from tasklab import figures
from tasklab.evidence.chapters import CHAPTERS
from tasklab.cli import names
from tasklab.evidence.chapters import outlook
from tasklab.models import zoo
from tasklab.evidence.records.schema import unit

assert spread["value"].between(0, 1).all() and set(spread["method"]) == {"nonlinear", "mlp"}
assert len(spread) == 4 and unit("spread") == ""
assert {name.split(".")[-2] for name in lab.vectors("mlp", 0)["Signs"]} == {"c_fc", "c_proj"}
pair = lab.vectors("nonlinear", 0)
lower = (torch.minimum(pair["Scenes"][n], x).equal(middle[n]) for n, x in pair["Signs"].items())
assert all(lower)  # of an even number, torch takes the lower one in the middle
work = outlook.outlook(lab, "norms").own
assert (work.runs, work.stored) == (4, 2)  # linearized; nonlinear is there
assert zoo.spec("vitb16_laion").tower.parameters > 8e7
assert [*CHAPTERS][-1] == "norms" and [one.outcome for one in verdicts] == ["not tested"]
every = {name: {entry for entry, *_ in names.rows(name)} for name in ("models", "methods")}
assert "vitb16_laion" in every["models"] and "mlp" in every["methods"]
assert "spread" in dir(experiments) and callable(experiments.spread)
axes = figures.plot(spread).axes[0]
assert {text.get_text() for text in axes.get_yticklabels()} == {"Scenes", "Signs"}
"""


def blocks(page):
    found = re.findall(
        r"```(?:python|text)\n# ([^\n,]+)(?:, first in (\w+))?\n(.*?)```", page, re.S
    )
    assert len(found) == page.count("```") // 2
    return found


def copied(root, to):
    for file in root.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            new = to / file.relative_to(root.parent)
            new.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix in (".py", ".csv", ".pyi") or file.name == shipped.SUMS.name:
                new.write_bytes(file.read_bytes())
            else:
                new.symlink_to(file)


def test_the_page_runs(root, tmp_path):
    copied(root / "tasklab", tmp_path)
    run = ""
    for path, place, text in blocks((root / "book/extend.md").read_text("utf-8")):
        file = tmp_path / path
        if path == "in use":
            run = text
        elif place:
            start = rf"^{place}\b[^\n]*= (?:MappingProxyType\(\n    \{{|\()\n"
            there, count = re.subn(start, lambda m, t=text: m[0] + t, file.read_text(), flags=re.M)
            assert count == 1, f"{path} has no table {place}"
            file.write_text(there)
        else:
            assert file.suffix == ".csv" or not file.exists()
            file.write_text((file.read_text() if file.exists() else "") + text)
    there = {"PYTHONPATH": str(tmp_path), "TASKLAB_STORE": str(tmp_path / "store")}
    done = subprocess.run(
        [sys.executable, "-c", LOCK + run + textwrap.dedent(CHECKS)],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **there},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
