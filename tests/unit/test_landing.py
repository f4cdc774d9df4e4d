"""What the landing page takes from elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def landing():
    pytest.importorskip("sphinx", reason="the extra `book` is not installed")
    sys.path.insert(0, str(ROOT / "book" / "_ext"))
    try:
        import landing
    finally:
        sys.path.pop(0)
    return landing


def test_bibtex_says_what_the_citation_file_says_and_no_more(landing):
    cff = {"title": "t: u", "version": "0.1", "authors": [{"name": "the t developers"}]}
    assert landing.bibtex(cff).splitlines() == [
        "@software{tasklab,",
        "  author = {{the t developers}},",
        "  title = {{t: u}},",
        "  version = {0.1},",
        "}",
    ]
    assert "  year = {2027}," in landing.bibtex(cff | {"date-released": "2027-01-02"}).splitlines()
