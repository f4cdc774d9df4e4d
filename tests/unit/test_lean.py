"""What the site leaves out or puts off."""

import pytest


@pytest.fixture(scope="module")
def lean(extension):
    return extension("lean")


def test_rules_of_classes_that_no_page_names_are_left_out(lean):
    kept = lean.pruned(
        "/* .used */p{a:b}.used,.not-there{c:d}.not-there p{e:f}p:not(.not-there){g:h}"
        "@media print{.not-there{i:j}.other{k:l}}@font-face{font-family:x}.made-up{m:n}"
        "@layer one;.used:is(.gone,.other):before{content:'x'}@keyframes k{12.5%{o:p}}",
        {"used", "other", "made-", "print"},
    )
    assert kept == (
        "p{a:b}.used{c:d}p:not(.not-there){g:h}@media print{.other{k:l}}@font-face{font-family:x}"
        ".made-up{m:n}@layer one;.used:is(.gone,.other):before{content:'x'}@keyframes k{12.5%{o:p}}"
    )


def test_equations_code_is_one_file_and_its_fonts_stay(lean, tmp_path):
    folder = tmp_path / "mathjax"
    for name in lean._MATH:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.js").write_text(f"// {name}")
    fonts = folder / "output/chtml/fonts/woff-v2"
    fonts.mkdir()
    (fonts / "one.svg").write_bytes(b"1")
    target = tmp_path / "math.js"
    for _ in range(2):  # a second build finds the folder as the first left it
        lean.bundle_math(folder, target)
        expected = ["woff-v2/one.svg"]
        assert [p.relative_to(folder).as_posix() for p in folder.rglob("*.*")] == expected
        assert "@DATA@" not in target.read_text()


def test_pictures_wait_until_they_are_seen_and_keep_their_place(lean, tmp_path):
    (tmp_path / "_images").mkdir()
    (tmp_path / "_images" / "a b.svg").write_text('<svg width="30pt" height="15.5pt" x="1">')
    text = '<img alt="x" src="_images/a%20b.svg" style="width: 100%;" /><img src="_static/b.svg">'
    expected = text.replace("<img alt", '<img loading="lazy" width="40" height="21" alt')
    expected = expected.replace("width: 100%", "--natural: 40px; width: 100%")
    assert lean.lazy(text, tmp_path) == expected
    assert lean.lazy(expected, tmp_path) == expected  # a page that an earlier build left


def test_what_unfolds_the_navigation_has_a_name(lean):
    link = '<a class="reference internal" href="a.html">tasklab: the top</a><details open="open">'
    text = f"{link}<summary><span></span></summary></details><details><summary>Words</summary>"
    named = lean.with_named_folds(text)
    label = '<summary aria-label="Pages under tasklab: the top">'
    assert named == text.replace("<summary>", label, 1)
    assert lean.with_named_folds(named) == named  # a page that an earlier build left
    cell = '<summary aria-label="Toggle hidden content">\n<p>Show source</p></summary>'
    assert lean.with_named_folds(cell) == "<summary>\n<p>Show source</p></summary>"
