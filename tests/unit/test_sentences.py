"""No sentence outside the chapters has a result that was typed: those become wrong unnoticed."""

from tasklab.evidence import study

FIXED = {"protocol.md"}  # thresholds written down before any result, and the levels then reached


def test_numbers_of_results_are_computed_in_pages_too(root, typed_results):
    expected = ["57.83", "12.5 %", "3 points"]
    assert typed_results("It reaches 57.83, in 12.5 % or 3 points.") == expected
    typed = "The mean of two seeds averaged is three or four points lower."
    assert typed_results(typed) == ["two seeds averaged", "three or four points"]
    assert not typed_results("At $0.123$, `0.123`, 95 % and in steps of 0.05.")
    pages = [root / "README.md", *sorted((root / "book").glob("*.md"))]
    found = {page.name: typed_results(page.read_text("utf-8")) for page in pages}
    said = " ".join(one.text for one in study.findings([]))  # the README has them: below
    found["README.md"] = [n for n in found["README.md"] if n != "3.11" and n not in said]
    assert {name: numbers for name, numbers in found.items() if numbers and name not in FIXED} == {}


def test_the_readme_opens_with_the_findings_of_the_landing_page(root):
    text = " ".join((root / "README.md").read_text("utf-8").split())
    found = [f"**{one.title}** ({one.number}). {one.text}" for one in study.findings([])]
    assert found and [one for one in found if one not in text] == []
