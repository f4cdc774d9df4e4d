"""No serious fault that axe-core finds, on any page of the site; it is no dependency."""

import importlib.resources
from pathlib import Path

import pytest

from tasklab.book import sources

PAGES = sources.pages(Path(__file__).parents[2])
FAULTS = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
    .filter(one => ['serious', 'critical'].includes(one.impact))
    .flatMap(one => one.nodes.map(node => one.id + ': ' + node.html.slice(0, 120)))"""

pytestmark = pytest.mark.slow  # before the first of them the site is built


@pytest.fixture(scope="module")
def axe():
    package = pytest.importorskip("axe_core_python", reason="install axe-core-python to check")
    return importlib.resources.files(package).joinpath("axe.min.js").read_text("utf-8")


def faults(browser, axe, address, width, scheme):
    """Return the faults of a page, with its network loaded if it has one."""
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page.set_default_timeout(120_000)
    page.goto(address)
    load = page.get_by_role("button", name="Load the network")
    if load.count():
        load.click()
        page.locator(".tl-network-page .tl-live[data-done]").wait_for()
    page.evaluate(axe)
    found = page.evaluate(FAULTS)
    page.close()
    return found


def test_it_finds_a_fault(browser, axe, tmp_path):
    file = tmp_path / "bad.html"
    file.write_text("<html><body><p style='color: #ccc; background: #fff'>pale</p><img src='x'>")
    found = faults(browser, axe, file.as_uri(), 390, "light")
    assert {one.partition(":")[0] for one in found} >= {"color-contrast", "image-alt"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_serious_fault(browser, axe, site, name, width, scheme):
    assert faults(browser, axe, (site / f"{name}.html").as_uri(), width, scheme) == []
