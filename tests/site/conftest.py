"""The built site, and a browser to open it in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tasklab.book import report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "msedge")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


@pytest.fixture(scope="session")
def site(root: Path, chapters_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site: that of `make report` if it is current, else of a rehearsal.

    The rehearsal runs every cell at two steps, in a copy of the sources: the site that a reader may
    have built stays as it is.
    """
    if report.is_current(root):
        return root / "book" / "_build" / "html"
    copy = tmp_path_factory.mktemp("clone") / "tasklab"
    skipped = shutil.ignore_patterns(".*", "_build", "__pycache__", "*.egg-info", "build", "dist")
    shutil.copytree(root, copy, symlinks=True, ignore=skipped)
    command = [sys.executable, "-m", "tasklab", "report", "--steps", "2"]
    env = os.environ | {"TASKLAB_STORE": str(chapters_store)}
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return copy / "book" / "_build" / "html"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start a browser that is on this machine; skip where there is none, fail where one must be."""
    wanted = os.environ.get("TASKLAB_BROWSER")
    path = wanted or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        told = f"no browser: none of {', '.join(BROWSERS)} is there, TASKLAB_BROWSER names none"
        if os.environ.get("TASKLAB_REQUIRE_BROWSER"):
            pytest.fail(told)
        pytest.skip(told)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield browser
        browser.close()
