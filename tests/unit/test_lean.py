"""What the site leaves out: rules, glyphs and code that no page uses."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def lean(extension):
    return extension("lean")


def test_rules_of_classes_that_no_page_names_are_left_out(lean):
    words = lean.words_in(['<p class="used other">', 'e.classList.add("made-"+kind)'])
    kept = lean.pruned(
        "p{a:b}.used,.not-there{c:d}.not-there p{e:f}p:not(.not-there){g:h}"
        "@media print{.not-there{i:j}.other{k:l}}@font-face{font-family:x}.made-up{m:n}"
        '@layer one;.used:before{content:"\\f0c9"}',
        words,
    )
    assert kept.split("\n") == [
        "p{a:b}",
        ".used{c:d}",
        "p:not(.not-there){g:h}",
        "@media print{.other{k:l}}",
        "@font-face{font-family:x}",
        ".made-up{m:n}",
        "@layer one;",
        '.used:before{content:"\uf0c9"}',
    ]


def test_a_font_keeps_the_glyphs_that_are_used(lean, tmp_path):
    import matplotlib
    from fontTools.ttLib import TTFont

    source = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    font = tmp_path / "font.ttf"
    font.write_bytes(source.read_bytes())
    lean.shrink(font, {ord("a"), ord("ß")})
    assert set(TTFont(font).getBestCmap()) == {ord("a"), ord("ß")}
    assert font.stat().st_size < source.stat().st_size / 20


def test_fonts_of_equations_lack_what_only_unnamed_commands_of_ams_show(lean, tmp_path):
    from fontTools.ttLib import TTFont

    mathjax = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    scripts = [(mathjax / f"input/{n}.js").read_text() for n in ("tex-base", "tex/extensions/ams")]
    unused = lean.unused_symbols(*scripts, [r"<p>\(\lesssim_t a ≿ b\)", r"\leqq"])
    assert {ord(x) for x in "⊞⋔⪅"} <= unused
    assert not unused & {ord(x) for x in "≲≿≦ΔA−→"}  # named, written out, or also of TeX itself
    assert ord("≦") in lean.unused_symbols(*scripts, [])
    font = tmp_path / "font.woff"
    source = mathjax / "output/chtml/fonts/woff-v2/MathJax_AMS-Regular.woff"
    font.write_bytes(source.read_bytes())
    lean.shrink(font, {ord("R"), ord("ℶ")})
    assert font.read_bytes()[:4] == b"wOFF" and font.stat().st_size < source.stat().st_size / 8
    assert set(TTFont(font).getBestCmap()) == {ord("R"), ord("ℶ")}


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
        assert [p.relative_to(folder).as_posix() for p in folder.rglob("*.*")] == [
            "woff-v2/one.svg"
        ]
        assert "@DATA@" not in target.read_text()


def test_pictures_wait_until_they_are_seen_and_keep_their_place(lean, tmp_path):
    from PIL import Image

    (tmp_path / "_images").mkdir()
    Image.new("L", (30, 20)).save(tmp_path / "_images" / "a b.png")
    text = '<img alt="x" src="_images/a%20b.png" style="width: 100%;" /><img src="_static/b.png">'
    expected = text.replace("<img alt", '<img loading="lazy" width="30" height="20" alt')
    assert lean.lazy(text, tmp_path) == expected
    assert lean.lazy(expected, tmp_path) == expected  # a page that an earlier build left
