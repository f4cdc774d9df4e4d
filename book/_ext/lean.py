"""Sphinx extension: pages carry the styles, icons and equations' code that they use, and no more.

The theme brings all of Font Awesome twice, as fonts and as a script of 1.5 MB that draws the same
icons; all of Bootstrap's rules; MathJax comes with menus, eleven notations and a speech engine;
every page loads the index of all words, and the pictures of a phone's figures on a desktop.
After the build, what no page of this site names is left out. What remains of MathJax is one
compressed file that the browser unpacks: servers of static files often do not compress.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

import tinycss2
from fontTools import subset, ttLib
from PIL import Image
from sphinx.application import Sphinx

# TeX commands beyond these are errors in the page, which a test looks for.
_MATH = (
    "startup", "core", "input/tex-base", "input/tex/extensions/ams",
    "input/tex/extensions/newcommand", "input/tex/extensions/boldsymbol", "output/chtml",
    "output/chtml/fonts/tex", "a11y/assistive-mml",
)  # fmt: skip
_UNPACK = Path(__file__).with_name("math.js")
_SCRIPTS = "fontawesome"
_SEARCH = "searchtools|language_data|searchindex"  # the theme asks for them where nothing is found
_ICON = re.compile("[\ue000-\uf8ff]")  # where Font Awesome's icons are
_WORD = re.compile(r"[A-Za-z_][\w-]*")
_COMMAND = re.compile(r"\\([A-Za-z]+)")  # of TeX
_PICTURE = re.compile(r'<img (?![^>]*\bloading=)[^>]*\bsrc="([^"]*_images/[^"]+\.png)"')
_SYMBOL = re.compile(r'\b([A-Za-z]+):\[?"\\u([0-9A-Fa-f]{4})"')  # a command's, in MathJax's code


def setup(app: Sphinx) -> dict[str, object]:
    """Connect to the build: the last to touch its files."""
    app.connect("config-inited", _own_math, priority=900)
    app.connect("build-finished", _slim, priority=900)
    return {"version": "1", "parallel_read_safe": True}


def _own_math(app: Sphinx, config: object) -> None:
    config.mathjax_path = "math.js"


def _slim(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    pages = [page for page in Path(app.outdir).rglob("*.html") if static not in page.parents]
    for page in pages:
        scripts = _SCRIPTS if page.name == "search.html" else f"{_SCRIPTS}|{_SEARCH}"
        text = page.read_text("utf-8")
        text = re.sub(rf"<script[^>]*(?:{scripts})\.js[^>]*></script>\s*", "", text)
        text = lazy(text, page.parent)
        page.write_text(text, "utf-8")
    for unused in (*static.glob("scripts/fontawesome.js*"), *static.rglob("*.map")):
        unused.unlink(missing_ok=True)
    texts = [page.read_text("utf-8") for page in pages]
    bundle_math(static / "mathjax", static / "math.js", texts)
    sources = [*pages, *(s for s in static.rglob("*.js") if s.name != "math.js")]
    words = words_in(source.read_text("utf-8") for source in sources)
    codes: set[int] = set()
    for sheet in static.rglob("*.css"):
        css = pruned(sheet.read_text("utf-8"), words)
        codes |= {ord(icon) for icon in _ICON.findall(css)}
        css = _ICON.sub(lambda icon: f"\\{ord(icon[0]):x}", css)
        sheet.write_text(re.sub(r'url\([^()]*\.woff2\) format\("woff2"\),', "", css), "utf-8")
    for font in static.glob("vendor/fontawesome/webfonts/*"):
        if font.suffix == ".ttf":
            shrink(font, codes)
        else:
            font.unlink()


def lazy(text: str, folder: Path) -> str:
    """Return a page whose pictures are loaded when they come into sight, with their place kept.

    Args:
        text: The page.
        folder: Where it lies.
    """

    def told(found: re.Match[str]) -> str:
        with Image.open(folder / unquote(found[1])) as picture:
            width, height = picture.size
        return f'<img loading="lazy" width="{width}" height="{height}"{found[0][4:]}'

    return _PICTURE.sub(told, text)


def bundle_math(folder: Path, target: Path, pages: Iterable[str] = ()) -> None:
    """Write the needed parts of MathJax as one file, and leave only its fonts in the folder.

    Args:
        folder: Where MathJax was copied to.
        target: The script.
        pages: What is set with it: of the fonts, symbols that nothing here asks for are left out.
    """
    fonts = folder / "output" / "chtml" / "fonts" / "woff-v2"
    if fonts.exists():  # else an earlier build left this folder as it is now
        parts = {name: (folder / f"{name}.js").read_text("utf-8") for name in _MATH}
        packed = gzip.compress(json.dumps(parts).encode(), mtime=0)
        data = base64.b64encode(packed).decode("ascii")
        target.write_text(_UNPACK.read_text("utf-8").replace("@DATA@", data), "utf-8")
        unused = unused_symbols(parts["input/tex-base"], parts["input/tex/extensions/ams"], pages)
        for font in fonts.glob("*.woff"):
            shrink(font, set(ttLib.TTFont(font).getBestCmap()) - unused)
        kept = folder.with_name("mathjax.kept")
        shutil.move(fonts, kept)
        shutil.rmtree(folder)
        shutil.move(kept, folder / "woff-v2")


def unused_symbols(base: str, ams: str, pages: Iterable[str]) -> set[int]:
    """Return the code points that are reached by commands of AMS alone, none of which is named.

    Those of TeX itself stay: they are parts of other signs too.

    Args:
        base: MathJax's script with the commands of TeX.
        ams: That with those of AMS.
        pages: Texts with formulas.
    """
    named: set[str] = set()
    kept = {int(code, 16) for _, code in _SYMBOL.findall(base)}
    for page in pages:
        named.update(_COMMAND.findall(page))
        kept.update(map(ord, page))
    symbols = [(name, int(code, 16)) for name, code in _SYMBOL.findall(ams)]
    return {code for _, code in symbols} - kept - {c for name, c in symbols if name in named}


def words_in(texts: Iterable[str]) -> set[str]:
    """Return all words of pages and scripts: what a class can be called there."""
    return {word for text in texts for word in _WORD.findall(text)}


def pruned(css: str, words: set[str]) -> str:
    """Return a style sheet without the selectors whose classes are never named.

    A word that ends in a hyphen stands for all that begin so: scripts put such names together.

    Args:
        css: The sheet.
        words: Of all pages and scripts.
    """
    starts = tuple(word for word in words if word.endswith("-") and len(word) > 3)
    rules = tinycss2.parse_stylesheet(css, skip_comments=True, skip_whitespace=True)
    return _kept(rules, words, starts)


def _kept(rules: list, words: set[str], starts: tuple[str, ...]) -> str:
    found = []
    for rule in rules:
        if rule.type == "qualified-rule":
            selectors = [s for s in _split(rule.prelude) if _named(s, words, starts)]
            if selectors:
                head = ",".join(tinycss2.serialize(s).strip() for s in selectors)
                found.append(f"{head}{{{tinycss2.serialize(rule.content)}}}")
        elif rule.type == "at-rule" and rule.lower_at_keyword in ("media", "supports", "layer"):
            inner = rule.content and tinycss2.parse_rule_list(
                rule.content, skip_comments=True, skip_whitespace=True
            )
            body = ";" if rule.content is None else f"{{{_kept(inner, words, starts)}}}"
            found.append(f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{body}")
        else:
            found.append(rule.serialize())
    return "\n".join(found)


def _split(prelude: list) -> list[list]:
    """Return the selectors of a rule."""
    selectors: list[list] = [[]]
    for token in prelude:
        if token.type == "literal" and token.value == ",":
            selectors.append([])
        else:
            selectors[-1].append(token)
    return selectors


def _named(selector: list, words: set[str], starts: tuple[str, ...]) -> bool:
    """Say whether all classes of a selector occur; those inside `:not(...)` need not."""
    for dot, name in zip(selector, selector[1:], strict=False):
        if dot.type == "literal" and dot.value == "." and name.type == "ident":
            if name.value not in words and not name.value.startswith(starts):
                return False
    return True


def shrink(font: Path, codes: set[int]) -> None:
    """Leave in a font the glyphs of these code points."""
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # it tells every table
    options = subset.Options(layout_features=[], notdef_outline=True)
    loaded = ttLib.TTFont(font)
    options.flavor = loaded.flavor
    chooser = subset.Subsetter(options)
    chooser.populate(unicodes=codes)
    chooser.subset(loaded)
    loaded.save(font)
