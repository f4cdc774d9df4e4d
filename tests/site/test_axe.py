"""No serious fault that axe-core finds on pages of the site as a dark phone shows them.

Those of a light screen are looked for on the pages that `test_pages` has open.
"""

import pytest

from tests.faults import faults

PHONE = ["index", "notebooks/merging", "verdicts", "reference/tasklab"]  # a page of each kind

pytestmark = pytest.mark.slow  # before the first of them the site is built


def found(browser, address, scheme):
    page = browser.new_page(
        viewport={"width": 390, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page.set_default_timeout(120_000)
    page.goto(address)
    told = faults(page)
    page.close()
    return told


def test_it_finds_a_fault(browser, tmp_path):
    file = tmp_path / "bad.html"
    same = "<p>black</p>" * 10
    file.write_text(f"<html><body>{same}<p style='color: #ccc'>pale</p><img src='x'>")
    told = found(browser, file.as_uri(), "light")
    assert {one.partition(":")[0] for one in told} >= {"color-contrast", "image-alt"}


@pytest.mark.parametrize("name", PHONE)
def test_a_dark_phone_shows_no_serious_fault(browser, site, name):
    assert found(browser, (site / f"{name}.html").as_uri(), "dark") == []
