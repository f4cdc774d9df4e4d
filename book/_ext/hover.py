"""Sphinx extension: links show a figure, paper or term before they are followed.

Each page carries what its own links need, so that no page is fetched, which pages opened from files
may not do (`sphinx-tippy` loads its scripts from the web, `hoverxref` asks a server for each tip).
"""

from __future__ import annotations

import html
import itertools
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx

LINK = re.compile(r'<a [^>]*?\bhref="([^"]+)"')
SECTION = re.compile(r'<section id="([^"]+)">')
FIGURE = re.compile(r'<figure [^>]*?\bid="([^"]+)".*?</figure>', re.DOTALL)
SOURCE = re.compile(r'<img [^>]*?\bsrc="([^"]+\.svg)"')
CAPTION = re.compile(r"<figcaption>(.*?)</figcaption>", re.DOTALL)
PAPER = re.compile(r'<div class="citation" id="([^"]+)".*?</span></span>(.*?)</div>', re.DOTALL)
TERM = re.compile(r'<dt id="(term-[^"]+)">.*?</dt>\s*<dd>(.*?)</dd>', re.DOTALL)
HEADER = re.compile(r'<a class="headerlink".*?</a>', re.DOTALL)
TAGS = re.compile(r"<[^>]*>|\\[()]|\\(?=[a-z])", re.DOTALL)  # and the marks of a formula


def setup(app: Sphinx) -> dict[str, object]:
    """Write the tips when all pages are there, before they are made lean.

    Jupyter Book adds `hover.js`, as every script of `_static`.
    """
    app.connect("build-finished", _write, priority=800)
    return {"version": "1", "parallel_read_safe": True}


def _write(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    top = Path(app.outdir)
    files = [one for one in top.rglob("*.html") if "_static" not in one.parts]
    pages = {one.relative_to(top).as_posix(): one.read_text("utf-8") for one in files}
    known, papers = {}, {}
    for name, text in pages.items():
        known |= {f"{name}#{where}": told for where, told in tips(text, name).items()}
        papers |= urls(text)
    for name, text in pages.items():
        here = {}
        shown = HEADER.sub("", text.partition("<article")[2])
        for link in {*LINK.findall(shown)}:
            target = _target(name, html.unescape(link))
            told = known.get(target) or papers.get(target)
            if told and name != "bibliography.html":
                here[html.unescape(link)] = told
        if here:
            data = json.dumps(here, ensure_ascii=False, sort_keys=True).replace("</", "<\\/")
            tag = f'<script type="application/json" id="tl-tips">{data}</script>\n</body>'
            (top / name).write_text(text.replace("</body>", tag, 1), "utf-8")


def tips(text: str, name: str) -> dict[str, Any]:
    """Return the previews of a page's papers, terms, figures, and sections with figures.

    Args:
        text: The page.
        name: Its path below the site's top folder.
    """
    found = {where: [_plain(entry)] for where, entry in PAPER.findall(text) + TERM.findall(text)}
    drawn = {}
    for one in FIGURE.finditer(text):
        picture, told = SOURCE.search(one[0]), CAPTION.search(one[0])
        if picture and told:
            place = re.sub(r"[^/]*/\.\./", "", (Path(name).parent / picture[1]).as_posix())
            photographs = "photographs" in one[0].partition("<figcaption>")[0]
            found[one[1]] = drawn[one.start()] = [_plain(told[1]), place, int(photographs)]
    for section, after in itertools.pairwise([*SECTION.finditer(text), None]):
        end = after.start() if after else len(text)
        first = next((at for at in sorted(drawn) if section.start() < at < end), None)
        if first is not None:
            found[section[1]] = drawn[first]
    return found


def urls(text: str) -> dict[str, list[str]]:
    """Return a page's papers by their addresses at arXiv, to which chapters link."""
    papers = [_plain(entry) for _, entry in PAPER.findall(text)]
    numbers = [re.search(r"arXiv:(\d{4}\.\d{4,5})", paper) for paper in papers]
    return {
        f"https://arxiv.org/abs/{number[1]}": [paper]
        for number, paper in zip(numbers, papers, strict=True)
        if number
    }


def _target(page: str, link: str) -> str:
    """Return the page and anchor that a link leads to, or its address on the web."""
    parts = urlsplit(link)
    if parts.scheme or not parts.fragment:
        return link
    place = (Path(page).parent / unquote(parts.path)).as_posix() if parts.path else page
    return f"{re.sub(r'[^/]*/[.][.]/', '', place)}#{parts.fragment}"


def _plain(text: str) -> str:
    return " ".join(html.unescape(TAGS.sub("", HEADER.sub("", text))).split())
