"""An editor as one piece of HTML: markup, style, script and numbers, without any request.

Notebooks and the site show the same text, with or without a kernel, from `file://`. Without
scripts a table of the accuracies at the presets remains.
"""

from __future__ import annotations

import uuid
from importlib.resources import files

from tasklab.explore import payload
from tasklab.explore.payload import Payload
from tasklab.templates import filled


def document(content: Payload) -> str:
    """Return the editor of a payload."""
    style, script = (
        files(__package__).joinpath(f"editor.{kind}").read_text("utf-8") for kind in ("css", "js")
    )
    name = f"tasklab-{uuid.uuid4().hex}"
    about = {"name": name, "style": style, "script": script.replace("@ID@", name)}
    return filled("explore/editor.html", **about, content=content, percent=payload.percent)
