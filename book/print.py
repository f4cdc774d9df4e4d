"""Print the built site as one PDF, `dist/tasklab.pdf`: every page but the reference, in order.

Chromium prints the pages as a reader sees them, with folds of text opened; `pdfunite` (Debian:
poppler-utils) joins them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser, Error, sync_playwright

from tasklab.book import sources

ROOT = Path(__file__).resolve().parents[1]
SITE, TARGET = ROOT / "book" / "_build" / "html", ROOT / "dist" / "tasklab.pdf"
LOOK = {
    "format": "A4",
    "scale": 0.8,
    "margin": dict.fromkeys(("top", "bottom", "left", "right"), "16mm"),
}
OPENED = """async () => {  // paper has no folds; code stays in its own
    document.querySelectorAll("article details:not(.hide)").forEach(fold => { fold.open = true; });
    document.querySelectorAll("img").forEach(image => { image.loading = "eager"; });
    await Promise.all([...document.images].map(image => image.decode().catch(() => null)));
    while (document.querySelector(".math") && !document.querySelector("mjx-container")) {
        await new Promise(later => setTimeout(later, 50));
    }
}"""


def printed(browser: Browser, files: Sequence[Path], target: Path) -> None:
    """Print pages and join them in one file."""
    target.parent.mkdir(exist_ok=True)
    page = browser.new_page()
    page.emulate_media(media="print", color_scheme="light")
    with tempfile.TemporaryDirectory() as folder:
        parts = [Path(folder) / f"{number:02}.pdf" for number in range(len(files))]
        for file, part in zip(files, parts, strict=True):
            page.goto(file.as_uri())
            page.evaluate(OPENED)
            page.pdf(path=part, **LOOK)
        subprocess.run(["pdfunite", *parts, target], check=True)
    page.close()


def main() -> str | None:
    """Print the site; return a sentence if that is not possible."""
    names = [name for name in sources.pages(ROOT) if not name.startswith("reference/")]
    files = [SITE / f"{name}.html" for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        return f"the site lacks {missing[0]}: run `make report` first."
    if not shutil.which("pdfunite"):
        return "pdfunite is missing, which joins the pages: install poppler-utils."
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        try:
            browser = playwright.chromium.launch(executable_path=found)
        except Error:
            return "no Chromium to print with: install chromium."
        printed(browser, files, TARGET)
    print(f"{len(files)} pages of the site: {TARGET}, {TARGET.stat().st_size / 1e6:.0f} MB")
    return None


if __name__ == "__main__":
    sys.exit(main())
