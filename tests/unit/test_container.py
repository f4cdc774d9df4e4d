"""The container runs the commands that the README names, from files that are there."""

import json
import re


def test_the_container_has_what_it_needs_and_no_root(root):
    text = (root / "Dockerfile").read_text()
    targets = set(re.findall(r"^(\w+):", (root / "Makefile").read_text(), re.M))
    called = set(re.findall(r"\bmake (\w+)", text)) - {"git"}  # a package after another
    assert called == {"env", "report", "test"} <= targets
    # what requirements.txt is resolved for, in one version and on one system
    assert re.findall(r"^FROM (.*)", text, re.M) == ["python:3.11.9-slim-bookworm"]
    assert {"make", "git", "chromium", "libatomic1"} <= set(text.split())  # the last: of playwright
    ignored = (root / ".dockerignore").read_text().split()
    assert {".venv", "book/_build"} <= {*ignored} and "tasklab" not in ignored
    lines = (root / "Dockerfile").read_text().splitlines()
    user = lines.index("USER tasklab")
    assert [line for line in lines if line.startswith("USER")] == ["USER tasklab"]
    after = [line for line in lines[user:] if re.match("(RUN|CMD|COPY)", line)]
    assert [line.split()[0] for line in after] == ["COPY", "RUN", "CMD"]
    assert after[0].split()[1] == "--chown=tasklab:tasklab"
    found = json.loads((root / ".devcontainer" / "devcontainer.json").read_text())
    assert found["remoteUser"] == "tasklab"
    folder = root / ".devcontainer"
    assert (folder / found["build"]["dockerfile"]).resolve() == (root / "Dockerfile").resolve()
    assert found["postCreateCommand"] == "make env"
