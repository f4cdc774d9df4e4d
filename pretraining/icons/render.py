"""Drawings as pictures of 32 x 32, black or coloured on white: the same bytes on every machine.

The renderer is software with no fonts; after it there are integers only. `drawn_sha256` of the
tasks that ship would tell another renderer.
"""

from __future__ import annotations

import collections
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from pretraining import pool
from pretraining.icons import source
from pretraining.icons.source import IconSet
from tasklab.errors import TasklabError

SIDE = 32
LAYOUT = "drawings-1"


class Drawings(NamedTuple):
    """The rendered drawings of a set."""

    about: dict  #: The fields of `IconSet` but the drawings
    names: list[str]
    pictures: NDArray[np.uint8]  #: (n, 3, S, S), or (n, 1, S, S) where nothing is coloured


def picture(svg: str) -> NDArray[np.uint8]:
    """Return a drawing on white, (3, S, S)."""
    import resvg_py  # an optional dependency

    data = resvg_py.svg_to_bytes(svg_string=svg, skip_system_fonts=True)
    with Image.open(io.BytesIO(bytes(data))) as opened:
        values = np.asarray(opened.convert("RGBA"), np.uint16)
    colour, alpha = values[..., :3], values[..., 3:]
    white = (colour * alpha + 255 * (255 - alpha) + 127) // 255
    return white.astype(np.uint8).transpose(2, 0, 1)


def rendered(one: IconSet) -> Drawings:
    """Return the drawings of a set; those that fail or are blank are left out."""
    names, pictures = [], []
    for name, svg in one.drawings.items():
        try:
            drawn = picture(svg)
        except ValueError:  # not every SVG is valid
            continue
        if int((drawn.min(0) < 128).sum()) >= 12:
            names.append(name)
            pictures.append(drawn)
    stack = np.stack(pictures) if pictures else np.zeros((0, 3, SIDE, SIDE), np.uint8)
    if (stack == stack[:, :1]).all():
        stack = stack[:, :1]
    about = {key: value for key, value in asdict(one).items() if key != "drawings"}
    return Drawings(about, names, np.ascontiguousarray(stack))


def render(package: Path, folder: Path) -> None:
    """Render all allowed sets into one file each, unless done; write the names of logos."""
    brands = folder / "brands.json"
    if brands.exists():
        return
    source.check(package)
    counted: collections.Counter[str] = collections.Counter()
    for one in source.sets(package):
        if one.category == "Logos":
            counted.update(set(one.drawings))
        file = folder / "drawings" / f"{one.prefix}.safetensors"
        if source.allowed(one) and not file.exists():
            drawn = rendered(one)
            text = {"layout": LAYOUT, "about": drawn.about, "names": drawn.names}
            pool.write(file, {"pictures": torch.from_numpy(drawn.pictures)}, text)
            print(f"{one.prefix}: {len(drawn.names)} drawings", flush=True)
    names = sorted(name for name, sets in counted.items() if sets >= 3)
    brands.write_text(json.dumps(names))


def read(folder: Path) -> list[Drawings]:
    """Return the rendered sets in the order of their names."""
    files = sorted((folder / "drawings").glob("*.safetensors"))
    result = []
    for file in files:
        try:
            tensors, about = pool.read(file)
        except ValueError as error:
            raise TasklabError(f"{error}; delete it and start again") from error
        result.append(Drawings(about["about"], about["names"], tensors["pictures"].numpy()))
    return result
