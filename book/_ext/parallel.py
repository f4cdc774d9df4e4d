"""Sphinx extension: two processes read and write the pages, where the system lets them.

A build makes millions of nodes and keeps them: looking for lost ones among them after every 700
new objects, as Python does, took a third of its time.
"""

from __future__ import annotations

import gc

from sphinx.application import Sphinx

# These do not say so: they set paths, register a writer, and number sections after the reading.
_SAFE = ("sphinx-mathjax-offline", "sphinx_jupyterbook_latex", "sphinx_multitoc_numbering")


def setup(app: Sphinx) -> dict[str, object]:
    """Connect to the start of the build, when all extensions are known."""
    gc.set_threshold(50_000, 20, 50)
    app.connect("builder-inited", _share)
    return {"version": "1", "parallel_read_safe": True}


def _share(app: Sphinx) -> None:
    app.parallel = max(2, app.parallel)
    for name in app.extensions.keys() & {*_SAFE}:
        app.extensions[name].parallel_read_safe = True
