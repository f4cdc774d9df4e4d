"""Every page of the built site as its file: links, titles, downloads and records."""

import functools
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

from tasklab.book import sources
from tasklab.evidence import study
from tasklab.evidence.chapters import CHAPTERS, MORE
from tests.helpers import parsed

PAGES = sources.pages(Path(__file__).parents[2])
OF_CHAPTERS = [page for page in PAGES if page.removeprefix("notebooks/") in CHAPTERS]

pytestmark = pytest.mark.slow  # before the first of them the site is built


@functools.cache
def _anchors(path):
    return {tag["id"] for tag in parsed(path).select("[id]")}


@pytest.mark.parametrize("name", PAGES)
def test_no_output_is_an_objects_own_name(site, name):
    text = (site / f"{name}.html").read_text(encoding="utf-8")
    assert "&lt;IPython." not in text and "object at 0x" not in text


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(site, name):
    here = site / f"{name}.html"
    tags = parsed(here).select("[href], [src]")
    for tag, link in [(tag.name, tag.get("href") or tag.get("src")) for tag in tags]:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        path = (here.parent / unquote(parts.path)).resolve() if parts.path else here
        assert path.exists(), f"{tag} {link}"
        if tag == "a" and parts.fragment and path.suffix == ".html":
            assert unquote(parts.fragment) in _anchors(path), f"{tag} {link}"


@pytest.mark.parametrize("name", PAGES)
def test_no_script_is_loaded_twice(site, name):
    loaded = [
        tag["src"].partition("?")[0]
        for tag in parsed(site / f"{name}.html").select("[src$='.js'], [src*='.js?']")
    ]
    assert loaded and len({*loaded}) == len(loaded)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_title_a_description_and_an_icon(site, name):
    soup = parsed(site / f"{name}.html")
    assert soup.find("h1") is not None
    assert soup.find("meta", {"name": "description"})["content"]
    assert soup.find("link", {"rel": "icon"})


def test_the_landing_page_has_findings_and_leads_to_every_page(site):
    soup = parsed(site / f"{PAGES[0]}.html")
    findings = study.findings([])
    assert len(soup.select("article .tl-finding")) == len(findings)
    assert soup.select("article figure img") or not findings
    assert soup.select("article .tasklab-editor")
    assert "@software{tasklab" in soup.get_text()
    assert "(Ilharco et al., 2023)" in soup.get_text() and "and others" not in soup.get_text()
    listed = parsed(site / "bibliography.html").select("article .citation .label")
    assert "Ilharco et al., 2023" in " ".join(label.get_text() for label in listed)
    links = {link.get("href", "").split("#")[0] for link in soup.select("article a")}
    assert {f"{page}.html" for page in PAGES[1:]} <= links


@pytest.mark.parametrize("chapter", [page for page in PAGES if page.startswith("notebooks/")])
def test_executed_chapters_can_be_downloaded(site, chapter):
    lead = parsed(site / f"{chapter}.html").select_one("article p.tasklab-executed")
    claim = lead.find_next_sibling("p")
    if not chapter.endswith(MORE):
        assert claim.text.startswith("Claim.")
        assert "tag_found" in claim.find_next_sibling()["class"]  # what was found stands below it
    copy = nbformat.read(site / "notebooks" / lead.select_one("a[download]")["href"], 4)
    assert any("image/png" in output.get("data", {}) for output in _outputs(copy))


def test_every_chapter_has_a_row_among_the_executions(site):
    rows = parsed(site / "executions.html").select("table.tasklab-executions tbody tr")
    assert len(rows) == len([page for page in PAGES if page.startswith("notebooks/")])
    assert all("UTC" in row.get_text() and "PyTorch" in row.get_text() for row in rows)


def _outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


@pytest.mark.parametrize("chapter", OF_CHAPTERS)
def test_figures_link_to_the_records_that_they_draw(site, chapter):
    figures = parsed(site / f"{chapter}.html").select(
        "article figure[id]:not(.tl-opening-figure):has(img[src$='.svg'])"
    )
    assert [one["id"] for one in figures if not one.select("a.tl-csv")] == []
    for one in figures:
        for link in one.select("a.tl-csv"):
            head, *lines = (site / "notebooks" / link["href"]).read_text("utf-8").splitlines()
            assert "value" in head.split(",") and lines
