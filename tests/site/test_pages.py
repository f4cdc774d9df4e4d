"""Every page of the built site, as a reader without a network sees it."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tasklab.book import sources
from tasklab.evidence.chapters import CHAPTERS
from tasklab.evidence.records.judgement import OUTCOMES
from tasklab.evidence.records.statements import PLAIN
from tests.faults import faults
from tests.helpers import parsed

PAGES = sources.pages(Path(__file__).parents[2])
KINDS = ("tasklab", "figures", "merging")  # of the pages that docstrings make: all are alike
OF_KINDS = [
    page
    for page in PAGES
    if not page.startswith("reference/") or page.removeprefix("reference/") in KINDS
]
DESKTOP, PHONE = 1280, 400

pytestmark = pytest.mark.slow  # before the first of them the site is built


@pytest.fixture(scope="module", params=PAGES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def page(browser, site, name):
    page = _opened(browser, site, name, DESKTOP)
    yield page
    page.close()


def _opened(browser, site, name, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(120_000)  # a busy machine is not a broken page
    page.problems, page.asked = [], []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
    page.on("request", lambda r: page.asked.append(r.url))
    page.goto((site / f"{name}.html").as_uri())
    return page


def test_a_page_is_small_and_asks_for_nothing(page):
    assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.problems == []
    _all_loaded(page)
    files = {unquote(urlsplit(url).path) for url in page.asked if url.startswith("file:")}
    weight = sum(Path(file).stat().st_size for file in files if "/_images/" not in file)
    assert weight < (1.8e6 if "/reference/" in page.url else 1.5e6)


def _all_loaded(page):
    if page.locator("article .math").count():
        page.wait_for_function("() => document.querySelector('mjx-container')")
        page.evaluate("() => MathJax.startup.promise.then(() => null)")
    page.evaluate("() => new Promise(drawn => requestAnimationFrame(() => setTimeout(drawn)))")
    page.evaluate("() => document.fonts.ready.then(() => null)")


def _overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


BROKEN = """() => {
    const broken = [];
    for (const cell of document.querySelectorAll("article td, article th")) {
        const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            for (const word of walker.currentNode.data.matchAll(/[A-Za-z]+/g)) {
                const range = document.createRange();
                range.setStart(walker.currentNode, word.index);
                range.setEnd(walker.currentNode, word.index + word[0].length);
                if (range.getClientRects().length > 1) broken.push(word[0]);
            }
        }
    }
    return broken;
}"""


SCROLLED = """chosen => [...document.querySelectorAll(chosen)].filter(one => {
    let box = one;
    while (box.tagName !== "ARTICLE" && !/auto|scroll/.test(getComputedStyle(box).overflowX)) {
        box = box.parentElement;
    }
    return box.tagName !== "ARTICLE" && box.scrollWidth > box.clientWidth + 1;
}).map(one => one.textContent)"""


def test_a_phone_shows_it_all_and_breaks_no_word_in_a_table(page):
    page.set_viewport_size({"width": PHONE, "height": 900})
    try:
        assert _overflow(page) <= 0
        assert page.evaluate(BROKEN) == []
    finally:
        page.set_viewport_size({"width": DESKTOP, "height": 900})


def test_code_is_not_cut_off_and_no_cell_failed(page):
    assert page.evaluate(SCROLLED, "article div.highlight pre") == []
    assert page.locator(".output.traceback, .output.stderr, .cell_output .stderr").count() == 0
    text = page.locator("article").inner_text()
    assert "Traceback (most recent call last)" not in text
    assert [one for one in page.locator("article table").all_inner_texts() if "nan)" in one] == []
    assert _overflow(page) <= 0


LOADED = """async image => {
    image.loading = "eager";
    await image.decode();
    return [image.naturalWidth, image.naturalHeight];
}"""


UNFOLD = """open => {
    const closed = `article details${open ? ":not([open])" : "[data-unfolded]"}`;
    for (const one of document.querySelectorAll(closed)) {
        one.open = open;
        one.toggleAttribute("data-unfolded", open);
    }
}"""


PICTURES = """async () => {
    const load = %s, found = [];
    for (const image of document.querySelectorAll("article img")) {
        const captions = image.closest("figure")?.querySelectorAll("figcaption") ?? [];
        found.push({
            source: image.getAttribute("src"), alt: image.alt,
            size: await load(image).catch(() => [0, 0]),
            captions: [...captions].map(one => one.innerText.trim()),
        });
    }
    return found;
}"""


def test_figures_are_drawn_and_captioned(page):
    page.evaluate(UNFOLD, True)
    for one in page.evaluate(PICTURES % LOADED):
        assert min(one["size"]) > 0, one["source"]
        assert not one["source"].startswith("data:"), "it weighs on every reader"
        assert one["alt"], f"no text alternative: {one['source']}"
        assert len(one["captions"]) == 1, f"no caption: {one['source']}"
        assert one["captions"][0] and one["alt"] not in one["captions"][0]
    page.evaluate(UNFOLD, False)


def test_no_figure_is_cut_at_an_edge(browser, site):
    pictures = [*(site / "_images").glob("*.svg")]
    assert len(pictures) > 60
    page = browser.new_page()
    for start in range(0, len(pictures), 20):
        some = [f"<p>{file.read_text('utf-8')}</p>" for file in pictures[start : start + 20]]
        page.set_content("".join(some))
        assert page.locator("p > svg").count() == len(some)
        assert page.evaluate(BEYOND) == [], [file.name for file in pictures[start : start + 20]]
    page.close()


BEYOND = """() => [...document.querySelectorAll('p > svg')].flatMap((svg, which) => {
    const whole = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('g[id^="text"]')].map(e => e.getBoundingClientRect())
        .filter(b => b.width && (b.left < whole.left - 1 || b.top < whole.top - 1
            || b.right > whole.right + 1 || b.bottom > whole.bottom + 1))
        .map(b => [which, b.left, b.top, b.right, b.bottom]);
})"""


def test_equations_are_set(page):
    _all_loaded(page)
    count = page.locator("article .math").count()
    assert page.locator("article .math:has(mjx-container)").count() == count
    assert page.locator("mjx-merror").count() == 0


OF_CHAPTERS = [page for page in PAGES if page.removeprefix("notebooks/") in CHAPTERS]


@pytest.mark.parametrize("name", OF_CHAPTERS, indirect=True)
def test_a_chapter_is_read_in_ten_minutes(page, name):
    _all_loaded(page)
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.locator("article").bounding_box()["height"] <= 18 * 900
    page.set_viewport_size({"width": DESKTOP, "height": 900})
    assert page.locator("article figure:not(.tasklab-editor figure)").count() <= 14


@pytest.mark.parametrize("name", OF_KINDS, indirect=True)
def test_a_page_has_no_serious_fault(page):
    """As the last of those on an open page: it loads the network."""
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.set_viewport_size({"width": 1440, "height": 900})
    assert faults(page) == []
    page.emulate_media(color_scheme="null", reduced_motion="null")
    page.set_viewport_size({"width": DESKTOP, "height": 900})


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_rows_of_the_forest_lead_where_the_list_does(browser, site, size):
    page = _opened(browser, site, "verdicts", size)
    page.evaluate(UNFOLD, True)
    rows = page.locator(".tasklab-forest a[aria-label]:visible")
    if not rows.count():
        pytest.skip("nothing is recorded yet")
    href = "all => all.map(one => one.getAttribute('href'))"
    links = rows.evaluate_all(href)
    assert {*links} <= {*page.locator(".tasklab-verdicts tbody a").evaluate_all(href)}
    picture = page.locator(".tasklab-forest img:visible").bounding_box()
    assert picture["x"] >= 0 and _overflow(page) <= 0  # a phone scrolls the figure, not the page
    boxes = rows.evaluate_all("all => all.map(e => [e.offsetWidth, e.offsetHeight])")
    assert all(
        height > 10 and width == pytest.approx(picture["width"], abs=1) for width, height in boxes
    )
    rows.first.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == links[1]
    rows.last.click()
    assert page.url.endswith(links[-1])
    page.close()


def test_verdicts_can_be_filtered(browser, site):
    page = _opened(browser, site, "verdicts", DESKTOP)
    every = page.locator(".tasklab-verdicts").last  # the headlines have a list of their own
    rows = every.locator("tbody tr:visible")
    groups = every.locator(".tv-group")
    assert groups.count() == len(CHAPTERS) and not rows.count()
    every.get_by_role("button", name="open all").click()
    told = every.locator("[role=status]")
    assert told.inner_text() == f"{rows.count()} of {rows.count()} rows"  # parts are not counted
    outcomes = every.get_by_label("Outcome")
    last = outcomes.locator("option").all_inner_texts()[-1]  # after "all" those that there are
    assert last in {PLAIN.get(one, one) for one in OUTCOMES}
    outcomes.select_option(last)
    some = rows.count()
    assert some > 0
    assert {*every.locator("tr:visible .tv-outcome b").all_inner_texts()} == {last}
    alone = every.get_by_label("on these tasks alone")
    if alone.is_visible():
        outcomes.select_option("open")
        many = rows.count()
        alone.check()
        told_there = every.locator("tr:visible").evaluate_all(
            "all => all.filter(row => row.dataset.here).map(row => row.dataset.here)"
        )
        assert {*told_there} == {"open"} and rows.count() != many
        alone.uncheck()
        outcomes.select_option(last)
    every.get_by_label("parts").check()
    assert rows.count() > some
    every.get_by_label("parts").uncheck()
    outcomes.select_option("")
    worlds = every.get_by_role("combobox", name="World")
    assert worlds.locator("option").all_inner_texts()[1:] == ["real drawings", "texts"]
    worlds.select_option("real drawings")
    there = every.locator("tr:visible td[data-world]:visible")
    assert {*there.evaluate_all("all => all.map(e => e.dataset.head)")} == {"real drawings"}
    assert "–" not in there.all_inner_texts() and rows.count() < 100
    outcomes.select_option("confirmed")
    assert {*there.locator("b").all_inner_texts()} == {"confirmed"}
    outcomes.select_option("")
    worlds.select_option("")
    every.get_by_label("worlds differ").check()
    assert 0 < rows.count() == every.locator("tr:visible[data-differ]").count()
    label = CHAPTERS["merging"].label
    page.goto(page.url.partition("?")[0] + f"?paper={label}")  # where the chapter's link leads
    assert {*every.locator("tr:visible").evaluate_all("a => a.map(r => r.dataset.paper)")} <= {
        label,
        None,
    }
    page.goto(page.url.partition("?")[0])
    every.locator("input[placeholder=words]").fill("no such words")
    assert rows.count() == 0
    assert told.inner_text().startswith("Nothing matches")
    page.close()


def test_without_scripts_parts_of_statements_are_shown_when_asked_for(browser, site):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto((site / "verdicts.html").as_uri())
    every = page.locator(".tasklab-verdicts").last
    parts = every.locator(".tv-part:visible")
    if not every.locator(".tv-part").count():
        pytest.skip("nothing is recorded yet")
    assert parts.count() == 0
    every.get_by_label("parts").check()
    for group in every.locator(".tv-group > summary").all():
        group.click()
    assert parts.count() > 0
    page.context.close()


def test_a_link_to_a_verdict_opens_its_group(browser, site):
    row = parsed(site / "verdicts.html").select(".tv-group tr.tv-whole[id]")[-1]["id"]
    page = _opened(browser, site, "verdicts", DESKTOP)
    assert not page.locator(f"#{row}").is_visible()
    page.goto(f"{page.url}#{row}")
    assert page.locator(f"#{row}").is_visible()
    page.close()


def test_the_list_of_verdicts_is_read_in_eight_screens(browser, site):
    page = _opened(browser, site, "verdicts", 1440)
    _all_loaded(page)
    assert page.locator("article").bounding_box()["height"] <= 8 * 900
    page.close()


def test_the_index_fits_a_phone_and_breaks_no_word(browser, site):
    page = _opened(browser, site, "genindex", PHONE)
    assert _overflow(page) <= 0
    widths = page.locator("table.genindextable td").evaluate_all(
        "all => all.map(e => e.clientWidth)"
    )
    assert min(widths) > 0.8 * PHONE
    page.close()


def test_a_dark_page_is_printed_dark_on_white(browser, site):
    page = _opened(browser, site, "notebooks/tangent", DESKTOP)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.emulate_media(media="print")
    colour = "e => getComputedStyle(e).color.match(/[0-9.]+/g).slice(0, 3).map(Number)"
    for kind in (
        "article p",
        "article p code",
        "article p a",
        ".tl-verdicts li",
        ".tl-verdicts a.tl-chip",
        "article figcaption",
    ):
        parts = page.locator(kind).first.evaluate(colour)
        assert sum(parts) < 3 * 150, (kind, parts)
    page.close()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("where", [PAGES[0], "notebooks/tangent"])
def test_what_the_sliders_do_stays_in_sight(browser, site, where, size):
    page = _opened(browser, site, where, size)
    page.locator(".tasklab-editor .tl-task").last.scroll_into_view_if_needed()
    told = page.locator(".tasklab-editor [role=status]").bounding_box()
    header = page.locator(".bd-header-article").bounding_box()
    assert header["y"] + header["height"] <= told["y"] < 450
    page.close()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_pictures_are_loaded_when_seen_and_keep_their_place(browser, site, size):
    page = _opened(browser, site, "notebooks/tangent", size)
    page.evaluate("document.fonts.ready.then(() => null)")  # which sets lines anew
    page.wait_for_timeout(1500)  # the editor's opening sweep
    before = page.evaluate("document.documentElement.scrollHeight")
    pictures = page.locator("article figure img:visible").all()
    for picture in pictures:
        picture.scroll_into_view_if_needed()
        picture.evaluate("image => image.decode()")
    assert page.evaluate("document.documentElement.scrollHeight") == pytest.approx(before, rel=0.01)
    asked = {urlsplit(url).path for url in page.asked if "/_images/" in url}
    shown = {urlsplit(picture.evaluate("image => image.currentSrc")).path for picture in pictures}
    assert asked == shown and all(path.endswith(".svg") for path in asked)
    assert len(shown) >= len(pictures) - 1  # on a phone the main figure is the same file twice
    page.close()


def test_a_phone_shows_figures_at_a_size_that_can_be_read(browser, site):
    for chapter in OF_CHAPTERS:
        page = _opened(browser, site, chapter, PHONE)
        page.evaluate(UNFOLD, True)
        figures = page.locator("article figure:has(img[src$='.svg'])")
        pictures = figures.locator("img[src$='.svg']")
        assert figures.count() > 5
        for picture in pictures.all():
            picture.evaluate(LOADED)
        drawn = pictures.evaluate_all("all => all.map(e => [e.currentSrc, e.clientWidth])")
        assert all(source.endswith(".narrow.svg") for source, _ in drawn)
        widths = {width for _, width in drawn}  # 3.6 inches: nine points are 12 pixels
        assert min(widths) > 340 and max(widths) <= PHONE
        scrolled = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).length"
        assert figures.evaluate_all(scrolled) == 0 and _overflow(page) <= 0
        page.close()


OVERLAPPING = """() => [...document.querySelectorAll('p > svg')].flatMap((svg, which) => {
    const slanted = e => (e.innerHTML.match(/rotate\\((-?[\\d.]+)/) || [0, 0])[1] % 90;
    const boxes = [...svg.querySelectorAll('g[id^="text"]')].filter(e => !slanted(e))
        .map(e => e.getBoundingClientRect());
    const inside = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
    const over = (a, b) => a.width && b.width && inside(a, b);
    return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => over(a, b))
        .map(b => [which, Math.round(a.left), Math.round(b.left)]));
})"""


def test_no_words_of_a_figure_lie_on_one_another(browser, site):
    page = browser.new_page()
    page.set_content("<p><svg><g id='text_1'><rect width='9' height='9'/></g>"
                     "<g id='text_2'><rect x='5' width='9' height='9'/></g></svg></p>")  # fmt: skip
    assert len(page.evaluate(OVERLAPPING)) == 1
    for picture in _drawn_in_chapters(site):
        page.set_content(f"<p>{picture.read_text('utf-8')}</p>")
        assert page.evaluate(OVERLAPPING) == [], picture.name
    page.close()


def _drawn_in_chapters(site):
    """Return the pictures of the chapters' figures, and their narrow layouts."""
    names = {
        unquote(image["src"]).rpartition("/")[2]
        for chapter in OF_CHAPTERS
        for image in parsed(site / f"{chapter}.html").select("article figure img[src$='.svg']")
    }
    both = [site / "_images" / name for name in sorted(names)]
    return both + [one.with_suffix(".narrow.svg") for one in both]


@pytest.mark.parametrize("size", [1440, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("chapter", OF_CHAPTERS)
def test_a_chapter_opens_with_its_answer_and_main_figure(browser, site, chapter, size):
    page = _opened(browser, site, chapter, size)
    _all_loaded(page)
    found = page.locator(".tl-opening .tag_found").bounding_box()
    picture = page.locator(".tl-opening-figure img").bounding_box()
    assert found["y"] < 900
    if size == PHONE:  # directly below
        assert 0 <= picture["y"] - found["y"] - found["height"] < 60
    else:
        assert picture["y"] + picture["height"] / 2 < 900 and picture["x"] > found["x"] + 300
    link = page.locator(".tl-opening-figure figcaption a").first
    link.click()
    assert page.locator(f"figure[id='{page.url.partition('#')[2]}'] img").count() == 1
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_opens_larger_on_its_page_and_closes_again(browser, site, scheme):
    page = _opened(browser, site, "notebooks/tangent", DESKTOP)
    page.evaluate(f"document.documentElement.dataset.theme = '{scheme}'")
    link = page.locator("figure a.image-reference:visible").first
    shown = link.locator("img")
    for close in ("Escape", "Enter", "click"):
        link.press("Enter")
        larger = page.locator("dialog[open] img")
        assert larger.get_attribute("src") == shown.get_attribute("src")
        assert larger.bounding_box()["width"] > 1.2 * shown.bounding_box()["width"]
        look = "image => getComputedStyle(image).filter"
        assert larger.evaluate(look) == shown.evaluate(look)
        larger.click() if close == "click" else page.keyboard.press(close)
        assert page.locator("dialog[open]").count() == 0
        assert link.evaluate("link => link === document.activeElement")
    assert page.url.endswith("tangent.html") and page.problems == []
    page.close()


def test_a_link_shows_its_figure_before_it_is_followed(browser, site):
    page = browser.new_page(viewport={"width": DESKTOP, "height": 900})
    page.goto((site / "index.html").as_uri())
    link = page.locator('.tl-findings a[href*="#"]').first
    link.hover()
    tip = page.get_by_role("tooltip")
    tip.wait_for()
    assert tip.inner_text().startswith("Fig. ")
    page.wait_for_function("document.querySelector('.tl-tip img').naturalWidth > 100")
    page.keyboard.press("Escape")
    assert tip.count() == 0
    page.close()


def test_an_answer_is_folded_below_its_exercise(browser, site):
    page = browser.new_page(viewport={"width": DESKTOP, "height": 900})
    page.goto((site / "notebooks/tangent.html").as_uri())
    answer = page.locator("div.solution").first
    output = answer.locator(".cell_output").first
    assert page.locator("div.exercise").count() == 3 and not output.is_visible()
    answer.locator("button.toggle-button").first.click()
    assert output.is_visible()
    page.close()


def test_a_search_from_files_finds_pages_and_fails_at_nothing(browser, site):
    page = _opened(browser, site, "search", DESKTOP)
    page.goto((site / "search.html").as_uri() + "?q=disentanglement")
    page.locator("#search-results li a").first.wait_for()
    page.wait_for_timeout(500)
    assert page.problems == []
    page.close()
