"""Sphinx extension: two processes read and write the pages, where the system lets them."""

from __future__ import annotations

from sphinx.application import Sphinx

# These do not say so: they set paths, register a writer, and number sections after the reading.
_SAFE = ("sphinx-mathjax-offline", "sphinx_jupyterbook_latex", "sphinx_multitoc_numbering")


def setup(app: Sphinx) -> dict[str, object]:
    """Connect to the start of the build, when all extensions are known."""
    app.connect("builder-inited", _share)
    return {"version": "1", "parallel_read_safe": True}


def _share(app: Sphinx) -> None:
    app.parallel = max(2, app.parallel)
    for name in app.extensions.keys() & {*_SAFE}:
        app.extensions[name].parallel_read_safe = True
