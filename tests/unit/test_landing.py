"""What the landing page takes from elsewhere."""

import pytest


@pytest.fixture(scope="module")
def landing(extension):
    return extension("landing")


def test_bibtex_says_what_the_citation_file_says_and_no_more(landing):
    cff = {"title": "t: u", "version": "0.1", "authors": [{"name": "the t developers"}]}
    assert landing.bibtex(cff).splitlines() == [
        "@software{tasklab,", "  author = {{the t developers}},", "  title = {{t: u}},",
        "  version = {0.1},", "}",
    ]  # fmt: skip
    assert "  year = {2027}," in landing.bibtex(cff | {"date-released": "2027-01-02"}).splitlines()
