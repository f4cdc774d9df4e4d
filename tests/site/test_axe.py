"""No serious fault that axe-core finds, on pages of the site."""

import importlib.resources
from pathlib import Path

import axe_playwright_python
import pytest

from tasklab.book import sources

KINDS = ("tasklab", "figures", "merging")  # of the pages that docstrings make: all are alike
PAGES = [
    page
    for page in sources.pages(Path(__file__).parents[2])
    if not page.startswith("reference/") or page.removeprefix("reference/") in KINDS
]
PHONE = ["index", "notebooks/merging", "verdicts", "reference/tasklab"]  # a page of each kind
SAME = 5  # texts of one look whose contrast is measured: of all, some pages take half a minute
# A look is the font and colour of a text and every background below it.
FAULTS = """async most => {
    const how = {resultTypes: ['violations'], preload: false}, rule = 'color-contrast';
    const below = new Map(), looks = {}, texts = [];
    for (const node of document.querySelectorAll('*')) {
        const style = getComputedStyle(node), above = below.get(node.parentElement);
        const own = [style.backgroundColor, style.backgroundImage, style.opacity].join();
        below.set(node, own === 'rgba(0, 0, 0, 0),none,1' ? above : above + own);
        if (![...node.childNodes].some(one => one.nodeType === 3 && one.data.trim())) continue;
        if (!node.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        const look = [style.color, style.fontSize, style.fontWeight, below.get(node)].join();
        looks[look] = (looks[look] || 0) + 1;
        if (looks[look] <= most) texts.push(node);
    }
    const runs = [
        await axe.run(document, {...how, rules: {[rule]: {enabled: false}}}),
        await axe.run({include: texts}, {...how, runOnly: [rule]}),
    ];
    return runs.flatMap(run => run.violations)
        .filter(one => ['serious', 'critical'].includes(one.impact))
        .flatMap(one => one.nodes.map(node => one.id + ': ' + node.html.slice(0, 120)));
}"""

pytestmark = pytest.mark.slow  # before the first of them the site is built


@pytest.fixture(scope="module")
def axe():
    return (
        importlib.resources.files(axe_playwright_python).joinpath("axe.min.js").read_text("utf-8")
    )


def faults(browser, axe, address, width, scheme):
    """Return the faults of a page, with its formulas set and its network loaded."""
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page.set_default_timeout(120_000)
    page.goto(address)
    if page.locator("article .math").count():
        page.locator("mjx-container").first.wait_for(state="attached")
        page.evaluate("() => MathJax.startup.promise.then(() => null)")
    load = page.get_by_role("button", name="Load the network")
    if load.count():
        load.click()
        page.locator(".tl-network-page .tl-live[data-done]").wait_for()
    page.evaluate(axe)
    found = page.evaluate(FAULTS, SAME)
    page.close()
    return found


def test_it_finds_a_fault(browser, axe, tmp_path):
    file = tmp_path / "bad.html"
    same = "<p>black</p>" * 10
    file.write_text(f"<html><body>{same}<p style='color: #ccc'>pale</p><img src='x'>")
    found = faults(browser, axe, file.as_uri(), 390, "light")
    assert {one.partition(":")[0] for one in found} >= {"color-contrast", "image-alt"}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_serious_fault(browser, axe, site, name):
    assert faults(browser, axe, (site / f"{name}.html").as_uri(), 1440, "light") == []


@pytest.mark.parametrize("name", PHONE)
def test_a_dark_phone_shows_no_serious_fault(browser, axe, site, name):
    assert faults(browser, axe, (site / f"{name}.html").as_uri(), 390, "dark") == []
