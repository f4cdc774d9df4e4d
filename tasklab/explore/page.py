"""An editor as one piece of HTML: markup, style, script and numbers, without any request.

Notebooks and the site show the same text, with or without a kernel, from `file://`. Without
scripts a table remains.
"""

from __future__ import annotations

import html
import uuid
from importlib.resources import files

from tasklab.explore import payload
from tasklab.explore.payload import Payload


def document(content: Payload) -> str:
    """Return the editor of a payload."""
    name = f"tasklab-{uuid.uuid4().hex}"
    style, script = (files(__package__).joinpath(f"editor.{kind}") for kind in ("css", "js"))
    return "\n".join(
        [
            f'<div class="tasklab-editor" id="{name}">',
            f"<style>{style.read_text('utf-8')}</style>",
            f'<div class="tl-table">{_table(content)}</div>',
            f'<script type="application/json">{content.json()}</script>',
            f"<script>{script.read_text('utf-8').replace('@ID@', name)}</script>",
            "</div>",
        ]
    )


def _table(content: Payload) -> str:
    """Return the accuracies at the presets, for readers without scripts."""
    accuracies = {label: content.accuracies(alphas) for label, alphas in content.presets.items()}
    head = "".join(f'<th scope="col">{html.escape(label)}</th>' for label in accuracies)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(task.name)}</th>'
        + "".join(f"<td>{payload.percent(at[task.name])}</td>" for at in accuracies.values())
        + "</tr>"
        for task in content.tasks
    )
    caption = html.escape(
        f"Accuracy in % of the {content.method} model; {content.counted}. Sliders need scripts: in "
        "JupyterLab, trust the notebook or run the cell."
    )
    return (
        f"<table><caption>{caption}</caption><thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )
