"""No room names one above it, not as a text either; results are read without torch; sizes hold."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tasklab

PACKAGE = Path(tasklab.__file__).parent
CONTRACTS = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text("utf-8"))
LAYERS = [one for one in CONTRACTS["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
NAMED = re.compile(r"tasklab(\.\w+)+")


def ranks():
    """Return a number for each room, higher for higher ones; those side by side have the same."""
    found = {}
    for contract in LAYERS:
        (container,) = contract["containers"]
        for rank, layer in enumerate(reversed(contract["layers"])):
            found |= {f"{container}.{room}": rank for room in layer.split(" : ")}
    return found


def strings(file):
    """Yield the names of modules that stand in a file's texts, docstrings aside."""
    if file.suffix == ".pyi":  # a table of lazy names
        package = ".".join(file.parent.relative_to(PACKAGE.parent).parts)
        for place, name in re.findall(r"^from \.([\w.]*) import (\w+)", file.read_text(), re.M):
            yield f"{package}.{place or name}"
        return
    tree = ast.parse(file.read_text("utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield from (match.group() for match in [NAMED.match(node.value)] if match)


def above(own, other):
    """Return whether a module is in a room above that of another one, in the same container."""
    for contract in LAYERS:
        (container,) = contract["containers"]
        depth = container.count(".") + 2
        rooms = [".".join(name.split(".")[:depth]) for name in (other, own)]
        known = ranks()
        if all(room in known and room.startswith(f"{container}.") for room in rooms):
            if known[rooms[0]] != known[rooms[1]]:
                return known[rooms[0]] > known[rooms[1]]
    return False


FILES = [
    file
    for pattern in ("*.py", "*.pyi")
    for file in sorted(PACKAGE.rglob(pattern))
    if file.parent != PACKAGE  # the face above all storeys
]


def test_no_text_names_a_room_above():
    assert len(FILES) > 300
    wrong = []
    for file in FILES:
        own = ".".join(file.with_suffix("").relative_to(PACKAGE.parent).parts)
        wrong += [f"{own}: {name}" for name in strings(file) if above(own, name)]
    assert wrong == []


def test_a_name_above_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "tasklab")
    file = tmp_path / "tasklab" / "evidence" / "records" / "schema.py"
    file.parent.mkdir(parents=True)
    file.write_text('"""tasklab.book"""\nload("tasklab.evidence.experiments.registry")\n')
    (named,) = strings(file)
    assert above("tasklab.evidence.records.schema", named)
    assert above("tasklab.bench.lab", "tasklab.evidence.figures")
    assert not above("tasklab.book.page", "tasklab.bench.lab")


def loaded(code):
    """Return the modules that a new Python has after some code, and lines of the package's."""
    after = (
        "import json, sys\n"
        "own = [m for n, m in sys.modules.items() if n.split('.')[0] == 'tasklab']\n"
        "files = {m.__file__ for m in own if (m.__file__ or '').endswith('.py')}\n"
        "lines = sum(open(f, encoding='utf-8').read().count('\\n') for f in files)\n"
        "print(json.dumps([sorted(sys.modules), lines]))"
    )
    words = [sys.executable, "-c", f"{code}\n{after}"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    names, lines = json.loads(told.splitlines()[-1])
    return {*names}, lines


def test_declarations_and_verdicts_are_read_without_torch_or_an_experiment():
    code = (
        "from tasklab import records, study\n"
        "from tasklab.evidence.records.schema import COMPARISONS, EXPERIMENTS\n"
        "assert len(EXPERIMENTS) > 40 and len(COMPARISONS) > 15\n"
        "found = study.evidence('linear_layers')\n"
        "verdicts = records.verdicts(found, 'linear_layers', model='mini')\n"
        "assert len(verdicts) > 10"
    )
    names, lines = loaded(code)
    assert not {name for name in names if name.startswith("tasklab.evidence.experiments.")}
    assert "torch" not in names and lines <= 12_000, lines


@pytest.mark.parametrize(
    ("code", "most"),
    [
        (
            "import torch\n"
            "from tasklab import TaskVector, analyses\n"
            "a, b = (TaskVector({'w': torch.ones(2, 2) * n}) for n in (1, 2))\n"
            "analyses.merging.merge('ties', [a, b])",
            3_500,
        ),
        (
            "import tempfile, torch\n"
            "from tasklab import Lab, TaskVector\n"
            "about = {'store_root': tempfile.mkdtemp(), 'device': 'cpu', 'progress': False}\n"
            "lab = Lab('mini_xs', tasks=['Signs'], **about)\n"
            "params = lab.clip.encoder.params.items()\n"
            "lab.evaluate(TaskVector({n: torch.zeros_like(x) + 1e-3 for n, x in params}))",
            12_000,
        ),
    ],
)
def test_few_lines_are_loaded(code, most):
    names, lines = loaded(code)
    assert not {name for name in names if name.startswith("tasklab.evidence")}
    assert lines <= most, lines


def test_the_top_has_few_entries():
    there = {file.name for file in PACKAGE.iterdir()} - {"py.typed", "__init__.pyi", "__pycache__"}
    assert len(there) <= 20


def test_modules_have_at_most_400_lines():
    folders = (PACKAGE, *(PACKAGE.parent / name for name in ("benchmarks", "pretraining", "book")))
    files = [file for folder in folders for file in folder.rglob("*.py")]
    assert len(files) > 300
    long = {file.name: file.read_text("utf-8").count("\n") for file in files}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}
