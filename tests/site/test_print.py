"""The site as one PDF."""

import importlib.util
import shutil

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def printing(root):
    spec = importlib.util.spec_from_file_location("printing", root / "book" / "print.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_printed_in_order(printing, site, browser, tmp_path):
    if not shutil.which("pdfunite"):
        pytest.skip("pdfunite is not installed")
    target = tmp_path / "dist" / "tasklab.pdf"
    printing.printed(browser, [site / "bibliography.html", site / "install.html"], target)
    assert target.read_bytes().startswith(b"%PDF") and target.stat().st_size > 20_000


def test_folds_of_text_are_open_on_paper_and_code_is_not(printing, site, browser):
    page = browser.new_page()
    page.goto((site / "notebooks" / "tangent.html").as_uri())
    folds, code = page.locator("article details:not(.hide)"), page.locator("article details.hide")
    closed = "all => all.filter(e => !e.open).length"
    assert folds.evaluate_all(closed) > 0 and code.evaluate_all(closed) > 0
    page.evaluate(printing.OPENED)
    assert folds.evaluate_all(closed) == 0 and code.evaluate_all(closed) > 0
    page.close()


def test_what_is_missing_is_a_sentence(printing, tmp_path, monkeypatch):
    monkeypatch.setattr(printing, "SITE", tmp_path)
    assert printing.main() == "the site lacks index.html: run `make report` first."
