"""Sphinx extension: when and with what each chapter was executed, and the executed notebooks.

    ```{executions}
    ```

is a table with a row for each chapter. The executed notebooks are taken from Jupyter Book's cache,
whether `make report` or Jupyter Book itself ran them; they are put beside the pages, and a line
below each chapter's title leads to them. A chapter that was not executed has neither, and the table
says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from jupyter_cache import get_cache
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tasklab.book import outputs, sources
from tasklab.book.captions import KEY

PAGE = "executions"
FOLDER = "executed"  # of the site: beside the folder of the chapters' pages
_CHAPTERS = "notebooks/"


class executions(nodes.General, nodes.Element):  # noqa: N801 - docutils names nodes so
    """Stands where the table will be, until all pages are read."""


class Executions(SphinxDirective):
    """The table of executions."""

    def run(self) -> list[nodes.Node]:
        """Return a placeholder, replaced once all pages are read."""
        self.env.note_reread()  # it changes with the chapters, and not with its own source
        return [executions()]


def setup(app: Sphinx) -> dict[str, object]:
    """Connect to the build."""
    app.add_node(executions)
    app.add_directive("executions", Executions)
    app.connect("doctree-resolved", _fill)
    app.connect("doctree-resolved", _lead)
    return {"version": "1", "parallel_read_safe": True}


def kept(source: Path, cache: Path) -> tuple[nbformat.NotebookNode, dict[str, Any]] | None:
    """Return a chapter with its outputs, and what is known of its run; `None` if it never ran.

    Args:
        source: The chapter.
        cache: Folder of Jupyter Book's cache.
    """
    if not source.is_file() or not (cache / "global.db").is_file():
        return None
    store = get_cache(str(cache))
    try:
        pk, notebook = store.merge_match_into_notebook(nbformat.read(source, as_version=4))
    except KeyError:
        return None
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = outputs.readable(cell.outputs)
    told = [
        output.metadata[KEY]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if KEY in output.get("metadata", {})
    ]
    seconds = store.get_cache_record(pk).data.get("execution_seconds")
    return notebook, {**(told[-1] if told else {}), "seconds": seconds}


def row(run: Mapping[str, Any]) -> list[str]:
    """Return what the table says of one run: when and how long, preset, machine, versions.

    Args:
        run: What `kept` knows; a run by other code than a chapter of ours may lack all of it.
    """
    where = run.get("machine", {})
    device = where.get("gpu") or where.get("cpu")
    size = f", {where['cores']} cores, {where['ram_gib']:.0f} GiB" if where.get("ram_gib") else ""
    versions = {"tasklab": "tasklab", "python": "Python", "torch": "PyTorch"}
    told = [f"{name} {run[key]}" for key, name in versions.items() if run.get(key)]
    if run.get("commit"):
        told[:1] = [f"{told[0]} ({run['commit'][:9]})"]
    seeds = run.get("seeds", [])
    given = [run.get("model"), run.get("preset"), f"seeds {seeds}" if len(seeds) > 1 else None]
    began = f"{run['utc'][:16]} UTC" if run.get("utc") else None
    long = f"in {duration(run['seconds'])}" if run.get("seconds") is not None else None
    return [
        ", ".join(filter(None, (began, long))) or "–",
        ", ".join(filter(None, given)) or "–",
        f"{device}{size}" if device else "–",
        ", ".join(told) or "–",
    ]


def duration(seconds: float) -> str:
    """Return a time as a reader says it.

    >>> duration(8.4), duration(90), duration(4000)
    ('8 s', '1.5 min', '67 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.{0 if seconds >= 600 else 1}f} min"


def _chapters(app: Sphinx) -> list[str]:
    names = sources.pages(Path(app.srcdir))
    return [name for name in names if name.startswith(_CHAPTERS)]


def _kept(app: Sphinx, name: str) -> tuple[nbformat.NotebookNode, dict[str, Any]] | None:
    cache = Path(app.outdir).parent / ".jupyter_cache"
    return kept(Path(app.srcdir) / f"{name}.ipynb", cache)


def _fill(app: Sphinx, doctree: nodes.document, name: str) -> None:
    for place in list(doctree.findall(executions)):
        head = ("chapter", "executed", "model, preset", "machine", "versions")
        rows = []
        for chapter in _chapters(app):
            found = _kept(app, chapter)
            title = app.env.titles[chapter].astext()
            page = app.builder.get_relative_uri(name, chapter)
            cells = row(found[1]) if found else ["not executed for this site", *"–––"]
            link = nodes.reference("", title, refuri=page, internal=True)
            rows.append([link, *map(nodes.Text, cells)])
        place.replace_self(_table(head, rows))


def _table(head: tuple[str, ...], rows: list[list[nodes.Node]]) -> nodes.table:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
    group += nodes.thead("", _row([nodes.Text(text) for text in head]))
    group += nodes.tbody("", *map(_row, rows))
    return nodes.table("", group, classes=["tasklab-executions"])


def _row(cells: list[nodes.Node]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))


def _raise_findings(chapter: nodes.section) -> None:
    """Put what a chapter found below what is claimed: its first paragraph."""
    cells = (node for node in chapter.children if "tag_found" in node.get("classes", ()))
    claim = next((node for node in chapter.children if isinstance(node, nodes.paragraph)), None)
    if claim is not None and (cell := next(cells, None)) is not None:
        chapter.remove(cell)
        chapter.insert(chapter.index(claim) + 1, cell)


def _lead(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Put the executed notebook beside the pages, and a line with links below the title."""
    found = (
        _kept(app, name) if name.startswith(_CHAPTERS) and app.builder.format == "html" else None
    )
    title = next(doctree.findall(nodes.title), None)
    if title is not None:
        _raise_findings(title.parent)
    if found is None or title is None:
        return
    notebook, run = found
    file = Path(app.outdir) / FOLDER / f"{Path(name).name}.ipynb"
    file.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(outputs.in_jupyterlab(notebook, Path(name).name), file)
    size = f"{file.stat().st_size / 1e6:.1f} MB"
    line = nodes.paragraph(classes=["tasklab-executed"])
    for text, target in (
        (f"Executed notebook ({size})", f"../{FOLDER}/{file.name}"),
        ("its source", f"../_sources/{name}.ipynb"),
    ):
        line += [addnodes.download_reference("", "", nodes.Text(text), refuri=target)]
        line += nodes.Text(", ")
    began, *_ = row(run)
    when = "as it was run" if began == "–" else f"run {began}"
    if PAGE in app.env.found_docs:
        link = app.builder.get_relative_uri(name, PAGE)
        line += [nodes.reference("", when, refuri=link, internal=True)]
    else:
        line += nodes.Text(when)
    title.parent.insert(title.parent.index(title) + 1, line)
