"""`make same` refuses a changed formula, and `make new` keeps its reason."""

import json
import subprocess
import sys

import pandas as pd
import pytest

from tasklab.analyses import disentanglement, editing, layers, stitching
from tasklab.evidence.experiments import versions
from tasklab.evidence.experiments.registry import REGISTRY
from tests import frozen, locks
from tests.helpers import refuses

ROOM = "tasklab.experiments."  # frozen
# A function of an analysis -> the module of experiments that it is used in, and one of these.
PLANTED = [
    (editing, "normalised", "editing", "addition"),
    (disentanglement, "symmetric_kl", "disentanglement", "disentanglement"),
    (layers, "cosines", "layers", "cosines"),
    (stitching, "accuracy", "stitching", "stitched_addition"),
]


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Return a function that has modules count as changed; locks and numbers are copies."""
    for module, name in ((versions, "LOCK"), (frozen, "FILE")):
        copy = tmp_path / getattr(module, name).name
        copy.write_bytes(getattr(module, name).read_bytes())
        monkeypatch.setattr(module, name, copy)

    def change(*homes):
        locked = json.loads(versions.LOCK.read_text())
        for home in homes:
            locked[ROOM + home]["code"] = "older"
        versions.LOCK.write_text(json.dumps(locked))
        versions._locked.cache_clear()

    yield change
    monkeypatch.undo()
    versions._locked.cache_clear()


def test_every_experiment_is_frozen():
    known = json.loads(frozen.FILE.read_text())["numbers"]
    assert known.keys() == {*REGISTRY}, "an experiment is new or gone: run `make same`"
    costs = {"closed_cost"}  # whose metrics are times
    assert {name for name, numbers in known.items() if not numbers} == costs


@pytest.mark.parametrize(("analysis", "function", "home", "name"), PLANTED)
def test_a_doubled_formula_is_refused(changed, monkeypatch, analysis, function, home, name):
    changed(home)
    before = versions.LOCK.read_text()
    monkeypatch.setattr(frozen, "of", lambda homes: [name] if homes else [])
    right = getattr(analysis, function)
    monkeypatch.setattr(analysis, function, lambda *a, **k: doubled(right(*a, **k)))
    said = refuses("numbers differ", locks.same)
    assert name in said and "make new OF=" in said
    assert versions.LOCK.read_text() == before
    monkeypatch.setattr(analysis, function, right)
    locks.same()
    assert versions.changed() == []


def doubled(value):
    if isinstance(value, pd.DataFrame):
        return value.assign(**2 * value.select_dtypes("float"))
    return 2 * value


def test_new_numbers_need_a_reason_and_keep_it(changed, monkeypatch):
    changed("layers", "editing")
    monkeypatch.setattr(frozen, "measure", lambda names: {name: {"norm": 7.0} for name in names})
    refuses('WHY="', locks.main, ["new", "layers", " "])
    refuses("command of tests.locks", locks.main, ["--help"])
    refuses("did you mean 'layers'", versions.lock, ["layer"], "because")
    name = versions.version(REGISTRY["cosines"].call)
    locks.main(["new", "layers", "cosines are means over tasks"])
    entry = json.loads(versions.LOCK.read_text())[f"{ROOM}layers"]
    assert entry["name"] == entry["code"] == name["code"]
    (reason,) = entry["reasons"]
    assert reason["why"] == "cosines are means over tasks" and reason["name"] == entry["name"]
    assert json.loads(frozen.FILE.read_text())["numbers"]["cosines"] == {"norm": 7.0}
    changed("layers")
    locks.main(["new", "layers", "another"])
    assert len(json.loads(versions.LOCK.read_text())[f"{ROOM}layers"]["reasons"]) == 2


def test_the_processor_is_that_of_the_numbers_that_stay(changed, monkeypatch):
    there = json.loads(frozen.FILE.read_text())["make"]
    monkeypatch.setattr(frozen, "_about", lambda: {"make": "another"})
    frozen.freeze({"cosines": {"norm": 7.0}}, anew=["cosines"])
    assert json.loads(frozen.FILE.read_text())["make"] == there
    frozen.freeze({name: {"norm": 1.0} for name in REGISTRY}, anew=[*REGISTRY])
    assert json.loads(frozen.FILE.read_text())["make"] == "another"


def test_the_check_names_what_is_not_locked(changed):
    assert locks.unlocked() == []
    changed("layers")
    refuses("experiments.layers has changed: make same", locks.main, ["check"])


def test_locks_of_data_need_no_evidence_which_reads_them(root):
    loaded = "import sys, tests.locks; print(*(n for n in sys.modules if 'tasklab.evidence' in n))"
    run = subprocess.run([sys.executable, "-c", loaded], cwd=root, capture_output=True, check=True)
    assert run.stdout.split() == []
