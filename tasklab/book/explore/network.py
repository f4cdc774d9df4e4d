"""The network itself in a page: pictures go through theta_0 + sum_t alpha_t tau_t in the browser.

The page holds theta_0 in 8 bits and every task vector in 4, with one scale for each row of a
matrix, merges them at each movement of a slider and runs the network by a WebAssembly kernel
(`network.wat`): the non-linear model whose interference the book is about, and beside it its
linearization f(x; theta_0) + J(x) sum_t alpha_t tau_t from the same coefficients. It needs no
kernel of Jupyter and no server, and sends nothing anywhere.

Letters: T tasks, N pictures of each, S their side in pixels.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import html
import json
import uuid
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load as read_tensors
from safetensors.numpy import save as tensor_bytes

from tasklab.book import explore
from tasklab.errors import whole
from tasklab.isolation import isolated
from tasklab.storage import shipped

if TYPE_CHECKING:  # a site shows what ships, without torch
    from tasklab.evidence.experiments import Lab

_SHIPPED = "network.safetensors"


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """A network and its task vectors, as a page holds them."""

    info: dict[str, Any]  #: Shapes, tasks and pictures, for the script
    #: Bytes: theta_0, every vector and head in the order of `info`; then a PNG of all pictures, one
    #: row per task.
    values: np.ndarray

    def document(self, source: str | None = None) -> str:
        """Return the page's HTML, with the numbers or the address of the file of `script`."""
        name = f"tasklab-{uuid.uuid4().hex}"
        info = self.info | {"megabytes": round(len(self.values) / 3 * 4 / 1e6, 1)}
        data = json.dumps(info, separators=(",", ":")).replace("<", "\\u003c")
        style, more, script = (
            files(__package__).joinpath(file).read_text("utf-8")
            for file in ("editor.css", "network.css", "network.js")
        )
        where = "" if source is None else f' data-source="{html.escape(source)}"'
        inside = "" if source else f'<script type="text/plain">{self._text}</script>'
        return (
            f'<div class="tasklab-editor tl-network-page" id="{name}"{where}>\n'
            f"<style>{style}{more}</style>\n"
            f'<script type="application/json">{data}</script>\n{inside}'
            f"<script>{script.replace('@ID@', name)}</script>\n</div>"
        )

    def script(self) -> str:
        """Return the numbers as a script, which a page loads on request."""
        return f'window.tasklabNetwork="{self._text}";'

    def _repr_html_(self) -> str:
        return self.document()

    def __repr__(self) -> str:
        return f"network {self.info['model']} with {len(self.info['tasks'])} task vectors"

    def save(self, path: str | Path) -> None:
        """Write the network to a file; a path that ends in `.html` gets a page of its own."""
        path = Path(path)
        if path.suffix == ".html":
            head = '<!doctype html><html lang="en"><meta charset="utf-8">'
            head += '<meta name="viewport" content="width=device-width"><title>tasklab</title>'
            head += "<style>:root { color-scheme: light dark; background: Canvas }</style>"
            path.write_text(head + self.document(), "utf-8")
        else:
            path.write_bytes(tensor_bytes({"values": self.values}, {"info": json.dumps(self.info)}))

    @functools.cached_property
    def _text(self) -> str:
        return base64.b64encode(self.values.tobytes()).decode("ascii")


@isolated
def network(lab: Lab | None = None, method: str = "nonlinear", *, pictures: int = 20) -> Network:
    """Return a network with its task vectors, to be merged and run in a page.

    Args:
        lab: A small CLIP of plain blocks with zero-shot heads, e.g. `Lab(model="mini_s")`; its
            first seed is taken. By default the network that ships: `mini_s`, fine-tuned by the
            recipe of the preset `full`.
        method: One of `EDITS`.
        pictures: Validation images of each task that are shown and counted.
    """
    if lab is None:
        return _read(shipped.content(Path(__file__).with_name(_SHIPPED)))
    whole("pictures", pictures, 1)
    return Network(*explore.packing.packed(lab, method, pictures))


def _read(data: bytes) -> Network:
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    return Network(json.loads(metadata["info"]), read_tensors(data)["values"])
