"""Texts with blanks, in files beside the modules that fill them: cards, pages, lists."""

from __future__ import annotations

import functools
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("tasklab", ""),
        autoescape=select_autoescape(),  # of files that end in .html
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )


def filled(template: str, **values: Any) -> str:
    """Return a file of the package, such as `"exchange/card.md"`, with its blanks filled."""
    return _environment().get_template(template).render(values)
