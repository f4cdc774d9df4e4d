"""The built site, and a browser to open it in."""

import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "msedge")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


@pytest.fixture(scope="session")
def site(rehearsal):
    return rehearsal / "book" / "_build" / "html"


@pytest.fixture(scope="session")
def browser():
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
