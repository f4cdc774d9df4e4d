"""An editor as one piece of HTML: markup, style, script and numbers, without any request.

Notebooks and the site show the same text, with or without a kernel, from `file://`. Without
scripts a table of the accuracies at the presets remains.
"""

from __future__ import annotations

import uuid
from importlib.resources import files

from jinja2 import Template

from tasklab.explore import payload
from tasklab.explore.payload import Payload


def document(content: Payload) -> str:
    """Return the editor of a payload."""
    html, style, script = (
        files(__package__).joinpath(f"editor.{kind}").read_text("utf-8")
        for kind in ("html", "css", "js")
    )
    name = f"tasklab-{uuid.uuid4().hex}"
    about = {"name": name, "style": style, "script": script.replace("@ID@", name)}
    template = Template(html, autoescape=True)
    return template.render(**about, content=content, percent=payload.percent)
