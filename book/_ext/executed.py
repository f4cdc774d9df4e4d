"""Sphinx extension: no outputs of an older package, no warning unheard, no figure without words.

Jupyter Book's cache knows a page by its code cells. When the package that those cells call has
changed, or the cache itself was damaged or altered, it is emptied before anything is read from it,
and the pages that execute code are read again.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

from tasklab.book import execution, outputs

LOGGER = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, object]:
    """Connect to the build."""
    execution.quiet_kernels()
    app.keep_going = True  # so that a bare `jupyter-book build book/` fails on a warning, too
    app.connect("builder-inited", _no_remote_kernels)
    app.connect("builder-inited", _drop_stale)
    app.connect("env-get-outdated", _pages_with_code)
    app.connect("build-finished", _seal)
    app.connect("doctree-resolved", _captions_as_text)
    return {"version": "1", "parallel_read_safe": True}


def _no_remote_kernels(app: Sphinx) -> None:
    """Leave out what Jupyter Book adds to every page for running cells on a public server."""
    for listeners in app.events.listeners.values():
        for listener in listeners[:]:
            if listener.handler.__module__ == "sphinx_thebe" and listener.handler.__name__ in {
                "init_thebe_default_config",
                "init_thebe_core",
                "update_thebe_context",
            }:
                listeners.remove(listener)


def _drop_stale(app: Sphinx) -> None:
    app.tasklab_stale = outputs.drop_stale(_cache(app))
    if app.tasklab_stale:
        LOGGER.info("tasklab or the kept outputs have changed: executing the pages again")


def _seal(app: Sphinx, _: Exception | None) -> None:
    """Remember the outputs as they are now, also those of a build that failed later."""
    outputs.seal(_cache(app))


def _cache(app: Sphinx) -> Path:
    return Path(app.outdir).parent / ".jupyter_cache"


def _pages_with_code(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Return the pages to read again although their sources are unchanged."""
    if not app.tasklab_stale:
        return []
    return [name for name in env.found_docs if env.metadata.get(name, {}).get("kernelspec")]


def _captions_as_text(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Give a figure without a description its caption, and all a link to the whole picture."""
    for figure in doctree.findall(nodes.figure):
        for caption in figure.findall(nodes.caption):
            for image in figure.findall(nodes.image):
                image.setdefault("alt", caption.astext())
                image.setdefault("width", "100%")  # of the column; Sphinx links what is resized
