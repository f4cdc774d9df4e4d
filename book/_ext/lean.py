"""Sphinx extension: pages load what they show, and no more.

The theme draws its icons twice, with fonts and a script of 0.5 MB, and brings all of Bootstrap;
MathJax comes with menus, eleven notations and a speech engine; every page loads the index of all
words. After the build scripts, rules and the index are left out where they are not used, pictures
wait until they are in sight, and the needed parts of MathJax are one compressed file.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

from sphinx.application import Sphinx

# TeX commands beyond these are errors in the page, which a test looks for.
_MATH = (
    "startup", "core", "input/tex-base", "input/tex/extensions/ams",
    "input/tex/extensions/newcommand", "input/tex/extensions/boldsymbol", "output/chtml",
    "output/chtml/fonts/tex", "a11y/assistive-mml",
)  # fmt: skip
_UNPACK = Path(__file__).with_name("math.js")
_OPENING = "tl-opening-figure"  # of `opening`
_PHONE = 700  # pixels of a window, up to which it shows narrow figures, as in `tasklab.css`
_SCRIPTS = "fontawesome"
_SEARCH = "searchtools|language_data|searchindex"  # the theme asks for them where nothing is found
_WORD = re.compile(r"[A-Za-z_][\w-]*")
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")  # the innermost, also within `@media`
_PICTURE = re.compile(r'<img (?![^>]*\bloading=)[^>]*\bsrc="([^"]*_images/[^"]+\.svg)"[^>]*>')
_PART = re.compile(r'<metadata class="tl-(\w+)">([^<]*)</metadata>\n?')  # of a picture: a file
_FIGURE = re.compile(r'<figure [^>]*?\bid="([^"]+)".*?</figcaption>', re.DOTALL)
_STACKED = "<!-- below one another -->"  # of `tasklab.evidence.figures.narrow`
_SIDES = {
    "left": "above", "right": "below", "left panel": "upper panel", "right panel": "lower panel",
    "from left to right": "from top to bottom",
}  # fmt: skip
_SIDE = re.compile(r"<[^>]*>|\bfrom left to right\b|\b(?:left|right)(?: panel)?\b", re.IGNORECASE)
_FOLD = re.compile(r"(<a [^>]*>([^<]*)</a><details[^>]*>)<summary>")  # of the navigation
_SOURCE = re.compile(r'\bsrc="([^"]*_images/[^"]+)\.svg"')
_SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)pt" height="([\d.]+)pt"')


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
    part(static.with_name("_images"))
    pages = [page for page in Path(app.outdir).rglob("*.html") if static not in page.parents]
    for page in pages:
        scripts = _SCRIPTS if page.name == "search.html" else f"{_SCRIPTS}|{_SEARCH}"
        text = page.read_text("utf-8")
        text = re.sub(rf"<script[^>]*(?:{scripts})\.js[^>]*></script>\s*", "", text)
        text = text.replace('role="doc-biblioentry"', 'role="listitem"')  # in a `role="list"`
        text = with_named_folds(text)
        text = with_records(lazy(text, page.parent), page.parent)
        text = with_sides(text, page.parent)
        page.write_text(text, "utf-8")
    maps = (one for one in static.rglob("*.map") if one.with_suffix("").exists())  # of a script
    for unused in (*static.glob("scripts/fontawesome.js*"), *maps):
        unused.unlink(missing_ok=True)
    bundle_math(static / "mathjax", static / "math.js")
    sources = [*pages, *(s for s in static.rglob("*.js") if s.name != "math.js")]
    words = {word for source in sources for word in _WORD.findall(source.read_text("utf-8"))}
    for sheet in static.rglob("*.css"):
        sheet.write_text(pruned(sheet.read_text("utf-8"), words), "utf-8")


def part(folder: Path) -> None:
    """Make files of what pictures carry: a narrow layout, the records that are drawn.

    Args:
        folder: Of the site's pictures.
    """
    for picture in folder.glob("*.svg"):
        text = picture.read_text("utf-8")
        for kind, data in _PART.findall(text):
            target = picture.with_suffix(".narrow.svg" if kind == "svg" else f".{kind}")
            target.write_bytes(gzip.decompress(base64.b64decode(data)))
        if _PART.search(text):
            picture.write_text(_PART.sub("", text), "utf-8")


def with_records(text: str, folder: Path) -> str:
    """Return a page whose captions end with links to the records that their figures draw.

    Args:
        text: The page.
        folder: Where it lies.
    """

    def linked(found: re.Match[str]) -> str:
        files = dict.fromkeys(f"{one}.csv" for one in _SOURCE.findall(found[0]))
        there = [one for one in files if (folder / unquote(one)).exists()]
        if not there or "tl-csv" in found[0] or _OPENING in found[0].partition(">")[0]:
            return found[0]
        links = " ".join(
            f'<a class="tl-csv" href="{one}" download="{found[1]}.csv">CSV</a>' for one in there
        )
        before, end, after = found[0].rpartition("</p>")
        return f"{before} {links}{end}{after}" if end else found[0]

    return _FIGURE.sub(linked, text)


def with_named_folds(text: str) -> str:
    """Return a page whose buttons that unfold something say to a screen reader what it is.

    The navigation's name the link above the pages; a cell's keep their visible words.

    Args:
        text: The page.
    """
    text = text.replace('<summary aria-label="Toggle hidden content">', "<summary>")
    return _FOLD.sub(r'\1<summary aria-label="Pages under \2">', text)


def with_sides(text: str, folder: Path) -> str:
    """Return a page whose captions say above and below where a phone stacks a figure's panels.

    Args:
        text: The page.
        folder: Where it lies.
    """

    def turned(found: re.Match[str]) -> str:
        files = [folder / f"{unquote(one)}.narrow.svg" for one in _SOURCE.findall(found[0])]
        if "tl-narrow" in found[0] or not any(
            one.exists() and _STACKED in one.read_text("utf-8") for one in files
        ):
            return found[0]
        picture, start, caption = found[0].partition("<figcaption")
        return picture + start + _SIDE.sub(_both, caption)

    return _FIGURE.sub(turned, text)


def _both(found: re.Match[str]) -> str:
    """Return a word for a side, and the one that a phone shows in its place."""
    if found[0].startswith("<"):
        return found[0]
    other = _SIDES[found[0].lower()]
    other = other.capitalize() if found[0][0].isupper() else other
    return f'<span class="tl-wide-only">{found[0]}</span><span class="tl-narrow">{other}</span>'


def lazy(text: str, folder: Path) -> str:
    """Return a page whose pictures are loaded when they come into sight, with their place kept.

    Args:
        text: The page.
        folder: Where it lies.
    """

    def sized(found: re.Match[str]) -> str:
        size = _pixels(folder / unquote(found[1]))
        if size is None:
            return found[0]
        width, height = size
        tag = found[0].replace('style="', f'style="--natural: {width}px; ', 1)
        tag = f'<img loading="lazy" width="{width}" height="{height}"{tag[4:]}'
        small = f"{found[1].removesuffix('.svg')}.narrow.svg"
        size = _pixels(folder / unquote(small))
        if size is None:
            return tag
        media = f"(max-width: {_PHONE}px)"
        if _OPENING in text[: found.start()].rpartition("<figure")[2]:
            media = "all"  # beside text a figure is narrow, however wide the window is
        told = f'media="{media}" width="{size[0]}" height="{size[1]}"'
        return f'<picture><source srcset="{small}" {told}>{tag}</picture>'

    return _PICTURE.sub(sized, text)


def _pixels(picture: Path) -> tuple[int, int] | None:
    """Return the natural size of a picture; `None` if there is none or it does not say it."""
    size = _SIZE.search(picture.read_text("utf-8")[:2000]) if picture.exists() else None
    if size is None:
        return None
    width, height = (round(float(points) / 0.75) for points in size.groups())
    return width, height


def pruned(css: str, words: set[str]) -> str:
    """Return a style sheet without the selectors whose classes are never named.

    A word that ends in a hyphen stands for all that begin so: scripts put such names together.

    Args:
        css: The sheet.
        words: Of all pages and scripts.
    """
    starts = tuple(word for word in words if word.endswith("-") and len(word) > 3)

    def named(selector: str) -> bool:
        classes = re.findall(r"\.(-?[A-Za-z_][\w-]*)", re.sub(r":(not|is)\([^()]*\)", "", selector))
        return all(one in words or one.startswith(starts) for one in classes)

    def kept(rule: re.Match[str]) -> str:
        before, end, prelude = rule[1].rpartition(";")
        selectors = [one for one in re.split(r",(?![^()]*\))", prelude) if named(one)]
        return before + end + (f"{','.join(selectors)}{{{rule[2]}}}" if selectors else "")

    return _RULE.sub(kept, re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL))


def bundle_math(folder: Path, target: Path) -> None:
    """Write the needed parts of MathJax as one file, and leave only its fonts in the folder.

    Args:
        folder: Where MathJax was copied to.
        target: The script.
    """
    fonts = folder / "output" / "chtml" / "fonts" / "woff-v2"
    if fonts.exists():  # else an earlier build left this folder as it is now
        parts = {name: (folder / f"{name}.js").read_text("utf-8") for name in _MATH}
        packed = gzip.compress(json.dumps(parts).encode(), mtime=0)
        data = base64.b64encode(packed).decode("ascii")
        target.write_text(_UNPACK.read_text("utf-8").replace("@DATA@", data), "utf-8")
        kept = folder.with_name("mathjax.kept")
        shutil.move(fonts, kept)
        shutil.rmtree(folder)
        shutil.move(kept, folder / "woff-v2")
