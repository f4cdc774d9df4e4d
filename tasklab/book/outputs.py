"""Jupyter Book's cache of outputs, which it reads before it executes a page."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tasklab.book.sources import checksum, fingerprint, measured, read_notebook
from tasklab.book.words import IN_NOTEBOOKS, ON_SITE
from tasklab.errors import TasklabError
from tasklab.evidence.records.claims import CLAIMS
from tasklab.evidence.records.statements import evidence_link
from tasklab.storage import atomic

if TYPE_CHECKING:
    from nbformat import NotebookNode

_STAMP = "tasklab.sha256"
_INDEX, _OUTPUTS = "global.db", "executed"  # names in Jupyter Book's cache
_SVG = "image/svg+xml"
FOUND = "found"  # tag of the cells with what a chapter found: of words, and of code
_WIDGET = "application/vnd.jupyter.widget-view+json"  # dead without a kernel


def drop_stale(cache: Path) -> bool:
    """Empty Jupyter Book's cache if it cannot be trusted; return whether one existed.

    It is trusted if the package and the benchmarks are those that filled it, and its index and
    files are, byte for byte, those that `seal` saw.
    """
    if _sealed(cache):
        return False
    stale = cache.exists()
    for own in (cache / _INDEX, cache / _STAMP, *(cache / _OUTPUTS).glob("[0-9a-f]*")):
        if own.parent == cache or re.fullmatch("[0-9a-f]{32}", own.name):  # else not the cache's
            atomic.remove(own)
    with contextlib.suppress(OSError):  # not there, or something else is in it
        (cache / _OUTPUTS).rmdir()
    cache.mkdir(parents=True, exist_ok=True)
    seal(cache)
    return stale


def seal(cache: Path) -> None:
    """Write checksums of the outputs in the cache and of the code that made them."""
    (cache / _STAMP).write_text(json.dumps(_state(cache)))


def _sealed(cache: Path) -> bool:
    try:
        return json.loads((cache / _STAMP).read_bytes()) == _state(cache)
    except (OSError, ValueError):
        return False


def _state(cache: Path) -> dict[str, str]:
    files = (cache / _INDEX, *(cache / _OUTPUTS).rglob("*"))
    kept = checksum(path for path in files if path.is_file())
    return {"package": fingerprint(), "benchmarks": checksum(measured()), "files": kept}


def remember(executed: NotebookNode, source: Path, cache: Path, seconds: float) -> None:
    """Put the outputs of a chapter or page into Jupyter Book's cache.

    The cache matches code cells and their metadata: the source is stored with outputs added.
    Papermill's parameters, in a cell of their own, are shown below the parameters cell.

    Args:
        executed: The executed copy.
        source: The notebook or page itself.
        cache: Folder of the cache.
        seconds: Duration of the execution.

    Raises:
        TasklabError: If the source changed since it was executed.
    """
    import nbformat
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    notebook = read_notebook(source)
    language = executed.metadata.get("language_info")  # a page of text does not tell its own
    if language:
        notebook.metadata["language_info"] = language
    passed, done = "", []
    for cell in executed.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            lines = cell.source.splitlines()  # those that assign something
            passed = "\n".join(line for line in lines if line and not line.startswith("#"))
        elif cell.cell_type == "code":
            done.append(cell)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.source for cell in cells] != [cell.source for cell in done]:
        raise TasklabError(f"{source.name} was changed while it ran: build the report again.")
    for cell, ran in zip(cells, done, strict=True):
        cell.execution_count = ran.execution_count
        cell.outputs = readable(ran.outputs)
        if passed and "parameters" in cell.metadata.get("tags", []):
            text = f"Replaced for this build:\n{passed}\n"
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
    get_cache(str(cache)).cache_notebook_bundle(
        CacheBundleIn(notebook, str(source), data={"execution_seconds": seconds}),
        check_validity=False,  # it counts executions without gap, and a cell was left out
        overwrite=True,
    )
    seal(cache)


def readable(outputs: Iterable[NotebookNode]) -> list[NotebookNode]:
    """Return outputs without widgets, which are dead where no kernel runs."""
    return [output for output in outputs if _WIDGET not in output.get("data", {})]


def _is_found(cell: NotebookNode) -> bool:
    return cell.cell_type == "markdown" and FOUND in cell.metadata.get("tags", [])


def in_jupyterlab(executed: NotebookNode, chapter: str) -> NotebookNode:
    """Return an executed chapter for JupyterLab: one picture a figure, links to notebooks."""
    places = dict.fromkeys(claim.evidence for claim in CLAIMS)
    links = {
        f'href="{evidence_link(place, chapter, site=True)}"': (
            f'href="{evidence_link(place, chapter, site=False)}"'
        )
        for place in places
    }
    notebook = copy.deepcopy(executed)
    notebook.cells = [cell for cell in notebook.cells if not _is_found(cell)]  # an output has it
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        data = output.get("data", {})
        if data.pop(_SVG, None) and "text/html" not in data:
            output["metadata"]["image/png"] = {"width": 750}  # of a page's column
        if text := data.get("text/html", ""):
            text = re.sub(r'href="[^"]*"', lambda found: links.get(found[0], found[0]), text)
            data["text/html"] = text
        if text := data.get("text/markdown", ""):
            data["text/markdown"] = text.replace(ON_SITE, IN_NOTEBOOKS)
    return notebook
