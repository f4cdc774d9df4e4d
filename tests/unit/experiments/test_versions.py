"""Kept results are found again until the code that made them changes."""

import json

import pytest

from tasklab.evidence.experiments import editing, runner, versions


@pytest.fixture
def locked(tmp_path, monkeypatch):
    file = tmp_path / "versions.json"
    monkeypatch.setattr(versions, "LOCK", file)

    def lock(entry):
        file.write_text(json.dumps({"tasklab.experiments.editing": entry}))
        versions._locked.cache_clear()
        return versions.version(editing.alone)

    yield lock
    monkeypatch.undo()
    versions._locked.cache_clear()


def test_the_lock_is_of_this_code():
    homes = {versions.frozen(home): home for home in versions._homes()}
    locked = versions._locked().items()
    changed = [one for one, entry in locked if entry["code"] != now(homes[one])]
    assert not changed, "same numbers as before: run `make same`; others: `make new OF=...`"

    def made(text):
        there = {"__name__": "__main__"}
        exec(text, there)
        return versions.version(there["measure"])

    one = made("def measure(trial):\n    return [1]\n")
    assert one == made("def measure(trial):\n    return [1]  # the same\n")
    assert one != made("def measure(trial):\n    return [2]\n")
    assert set(one) == {"code"}


def now(home):
    return versions.code(home)


def test_keys_follow_the_locked_code(locked, monkeypatch):
    code = now("tasklab.evidence.experiments.editing")
    assert locked({"code": code, "name": ""}) == {}  # keys are those of the first edition
    assert locked({"code": code, "name": "abc"}) == {"code": "abc"}
    assert locked({"code": "older", "name": ""}) == {"code": code}
    assert locked({"code": "older", "name": "abc"}) == {"code": code}
    code = now("tasklab.evidence.experiments.editing")
    locked({"code": "older", "name": ""})
    monkeypatch.setattr(versions, "REGISTRY", type("", (), {"homes": lambda: [editing.__name__]}))
    versions.lock(["editing"], "for a test")
    assert versions.version(editing.alone) == {"code": code}
    versions.lock()
    (entry,) = versions._locked().values()
    assert entry["code"] == entry["name"] == code


def test_the_version_is_in_the_key(monkeypatch):
    asked = []
    monkeypatch.setattr(runner, "version", lambda function: {"code": function.__name__})
    monkeypatch.setattr(runner, "_stored", lambda lab, config, make: asked.append(config) or [])
    runner.stored(None, {"experiment": "norms"}, editing.alone)
    assert asked == [{"experiment": "norms", "code": "alone"}]
