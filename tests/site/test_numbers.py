"""How many numbers chapters print, and one number for one thing."""

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from tasklab.evidence.chapters import CHAPTERS

MOST = 600  # decimals in the five chapters
SAID = {  # quantities of the synthetic benchmark, and how pages say them
    "pre-trained": [r"pre-trained model scores {}"],
    "one model a task": [
        r"Non-linear fine-tuning reaches {}", r"full fine-tuning \({}\)",
        r"one model a task\s+\({}\)",
    ],
    "one linearized model a task": [r"(?<!that of )[Ll]inearized fine-tuning (?:reaches )?{}"],
    "sum": [
        r"One model with the sum of eight vectors scores {}", r"the sum of non-linear ones {}",
        r"with all of them {}", r"that of full fine-tuning {}(?= and that)",
        r"the sum (?:reaches )?{}",
    ],
    "sum of linearized vectors": [
        r"sum of eight linearized vectors scores {}", r"that of linearized fine-tuning {}",
    ],
    "TSV-M": [r"TSV-M (?:reaches )?{}"],
    "RegMean++": [r"RegMean\+\+(?:, which also reads training inputs,)? (?:reaches )?{}"],
    "least E of 256 images": [r"reaches {} without a label"],
    "least E, coefficient from labels": [r"without a label, and {} with a coefficient from label"],
}  # fmt: skip
LABELS = (r"this chapter['’]s", r"(?<=[(, ])\w+ seeds", "On real drawings", "same seeds")
UNREAD = "script, style, svg, pre, .math, .cell_input, .tasklab-editor"
LEVEL = re.compile(
    r"(?:Mean accuracy(?: on ([^:]*images[^:]*):)? [\d.]+ % \(pre-trained|pre-trained model scores)"
    r" ([\d.]+) %"
)


def decimals(page):
    """Return how many decimals an article prints: text, verdicts, tables, captions, folds."""
    article = BeautifulSoup(page, "html.parser").find("article")
    for part in article.select(UNREAD):
        part.decompose()
    return len(re.findall(r"\d\.\d", article.get_text(" ")))


def levels(texts):
    """Return the mean accuracies of the pre-trained model by the images that they are of."""
    found = {}
    for text in texts:
        for images, value in LEVEL.findall(" ".join(text.split())):
            found.setdefault(images or "test images", set()).add(value)
    return found


def quantities(passages):
    """Return the values of each quantity by its label: which seeds, whose runs."""
    found = {}
    for text in passages:
        told = " ".join(text.split())
        for name, forms in SAID.items():
            for form in forms:
                for one in re.finditer(form.replace("{}", r"([\d.]+) %"), told):
                    start = max(told.rfind(". ", 0, one.start()), 0)
                    start = max(told.rfind(".** ", 0, one.start()), start)
                    around = told[start : one.end()] + told[one.end() :].partition(". ")[0]
                    label = " ".join(m[0] for m in map(lambda p: re.search(p, around), LABELS) if m)
                    found.setdefault((name, label), {}).setdefault(float(one[1]), set()).add(told)
    return found


def passages(page):
    """Return the paragraphs and items of a page's article, each once."""
    article = BeautifulSoup(page, "html.parser").find("article")
    if article is None:  # as on the page of the search
        return []
    for part in article.select(UNREAD):
        part.decompose()
    return [one.get_text(" ") for one in article.select("p, li") if not one.select("p, li")]


def test_one_quantity_with_two_values_needs_two_labels():
    def values(*said):
        return {key: set(told) for key, told in quantities(said).items()}

    first = "The sum of non-linear ones 1.0 %. the sum of non-linear ones 76.4 %. It is so."
    assert values(first, "From vectors the sum reaches 76.5 %.")["sum", ""] == {76.4, 76.5}
    own = "It does. From this chapter's eight vectors the sum reaches 76.5 %, TSV-M 82.8 %."
    found = values(first, own)
    assert found["sum", ""] == {76.4} and found["sum", "this chapter's"] == {76.5}
    assert values("A (two seeds). TSV-M reaches 82.8 %. B.", "TSV-M 82.9 % (two seeds).") == {
        ("TSV-M", ""): {82.8}, ("TSV-M", "two seeds"): {82.9},
    }  # fmt: skip


@pytest.mark.slow
def test_one_quantity_has_one_number(site, root):
    pages = [*site.glob("*.html"), *Path(site, "notebooks").glob("*.html")]
    said = [one for page in pages for one in passages(page.read_text("utf-8"))]
    readme = (root / "README.md").read_text("utf-8")
    found = quantities([*said, *re.split(r"\n\n|\n- ", readme)])
    assert {name for name, _ in found} == {*SAID}
    assert len(found["sum", ""]) == 1 and sum(map(len, found["sum", ""].values())) > 4
    assert {key: values for key, values in found.items() if len(values) > 1} == {}


def test_decimals_are_counted_where_they_are_read():
    page = (
        "<p>0.1</p><article><p>It is 1.5, not <b>2.25</b> %.</p><table><td>3.1</td></table>"
        "<figcaption>4.5</figcaption><details><p>5.5</p></details><pre>6.5</pre>"
        "<div class='cell_input'>7.5</div><span class='math'>8.5</span></article>"
    )
    assert decimals(page) == 5


def test_a_level_of_other_images_needs_their_name():
    said = "The pre-trained model scores 55.8 %."
    of_others = "Mean accuracy on 80 validation images of each task: 76.4 % (pre-trained 54.7 %): 1"
    found = levels([said, of_others])
    assert found == {"test images": {"55.8"}, "80 validation images of each task": {"54.7"}}
    unnamed = levels([said, "Mean accuracy 76.4 % (pre-trained 54.7 %): 1 image"])
    assert unnamed == {"test images": {"55.8", "54.7"}}


@pytest.mark.slow
def test_chapters_print_few_decimals(site):
    pages = {name: (site / "notebooks" / f"{name}.html").read_text("utf-8") for name in CHAPTERS}
    counts = {name: decimals(page) for name, page in pages.items()}
    assert min(counts.values()) > 20
    assert sum(counts.values()) <= MOST, counts


@pytest.mark.slow
def test_the_pre_trained_model_has_one_accuracy_on_the_same_images(browser, site):
    shown = [*site.glob("*.html"), *Path(site, "notebooks").glob("*.html")]
    texts = [BeautifulSoup(one.read_text("utf-8"), "html.parser").get_text() for one in shown]
    for name in ("index", "notebooks/tangent"):
        page = browser.new_page()
        page.goto((site / f"{name}.html").as_uri())
        texts.append(page.locator(".tasklab-editor [role=status]").first.inner_text())
        page.close()
    found = levels(texts)
    assert len(found) == 2 and all(len(values) == 1 for values in found.values()), found


@pytest.mark.slow
def test_worlds_that_differ_are_one_click_away(site):
    for name in CHAPTERS:
        page = BeautifulSoup(
            (site / "notebooks" / f"{name}.html").read_text("utf-8"), "html.parser"
        )
        for frame in page.select("article a.tl-world"):
            row = frame.find_previous_sibling("a", class_="tl-chip")
            assert frame["href"] == row["href"] and "#verdict-" in frame["href"]
