"""The container runs the commands that the README names, from files that are there."""

from __future__ import annotations

import json
import re


def test_its_commands_are_targets_and_its_packages_what_they_need(root):
    text = (root / "Dockerfile").read_text()
    targets = set(re.findall(r"^(\w+):", (root / "Makefile").read_text(), re.M))
    called = set(re.findall(r"\bmake (\w+)", text)) - {"git"}  # a package after another
    assert called == {"env", "report", "test"} <= targets
    assert re.search(r"^FROM python:3\.11", text, re.M)  # what requirements.txt is resolved for
    assert {"make", "git", "chromium", "libatomic1"} <= set(text.split())  # the last: of playwright
    ignored = (root / ".dockerignore").read_text().split()
    assert {".venv", "book/_build"} <= {*ignored} and "tasklab" not in ignored


def test_the_devcontainer_builds_it(root):
    found = json.loads((root / ".devcontainer" / "devcontainer.json").read_text())
    folder = root / ".devcontainer"
    assert (folder / found["build"]["dockerfile"]).resolve() == (root / "Dockerfile").resolve()
    assert found["postCreateCommand"] == "make env"
