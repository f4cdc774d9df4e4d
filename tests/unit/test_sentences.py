"""No sentence outside the chapters has a result that was typed: those become wrong unnoticed."""

from __future__ import annotations

FIXED = {"protocol.md"}  # thresholds written down before any result, and the levels then reached


def test_numbers_of_results_are_computed_in_pages_too(root, typed_results):
    assert typed_results("It reaches 57.83, in 12.5 % or 3 points.") == [
        "57.83",
        "12.5 %",
        "3 points",
    ]
    typed = "The mean of two seeds averaged is three or four points lower."
    assert typed_results(typed) == ["two seeds averaged", "three or four points"]
    assert not typed_results("At $0.123$, `0.123`, 95 % and in steps of 0.05.")
    pages = [root / "README.md", *sorted((root / "book").glob("*.md"))]
    found = {page.name: typed_results(page.read_text("utf-8")) for page in pages}
    found["README.md"] = [n for n in found["README.md"] if n != "3.11"]  # of Python
    assert {name: numbers for name, numbers in found.items() if numbers and name not in FIXED} == {}
