"""A pool of drawn pictures on disk, seen in several rounds.

Drawing is as dear as a training step of a small model, so each part of the stream
(`pretraining.stream`) is drawn once and kept as uint8 in a file of its own. A file carries the
SHA-256 of its contents; one that is missing, cut off or altered is drawn anew, and the same pixels
come out, since a part is determined by its seed and its number.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from pretraining import stream
from tasklab.mini.clip import tokenize
from tasklab.storage import atomic
from tasklab.storage.tensors import digest, write_tensors

PART = 8192  # pictures in a file, 25 MB
LAYOUT = "pool-1"


def write(path: Path, tensors: dict[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and texts with their digest: all of it, or the file stays as it was.

    Args:
        path: The file.
        tensors: By name.
        about: Kept beside them as JSON.
    """
    text = json.dumps(about, sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(path) as draft:
        write_tensors(tensors, draft, {"about": text, "sha256": digest(tensors, text)})


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `write` wrote.

    Raises:
        ValueError: If the file is damaged.
    """
    data = path.read_bytes()  # not mapped, or a file cut off meanwhile would end the process
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    meta = header.get("__metadata__", {})
    text = meta.get("about", "")
    if digest(tensors, text) != meta.get("sha256"):
        raise ValueError(f"{path} is damaged: its checksum does not match")
    return tensors, json.loads(text)


class Pool:
    """The first `parts` parts of a seed's stream.

    Args:
        folder: Where the files are; those of several seeds and sizes share it.
        seed: Of the stream.
        parts: How many.
        size: Pictures in a part.
    """

    def __init__(self, folder: Path, seed: int, parts: int, size: int = PART) -> None:
        self.folder, self.seed, self.parts, self.size = Path(folder), seed, parts, size

    def path(self, number: int) -> Path:
        """Return the file of a part."""
        return self.folder / f"{LAYOUT}-seed{self.seed}-{self.size}" / f"{number:05d}.safetensors"

    def part(self, number: int) -> dict[str, Tensor]:
        """Return a part, drawn if need be: `images`, `tokens` (n, 12) and the numbers of `Part`."""
        path = self.path(number)
        if path.exists():
            try:
                return read(path)[0]
            except ValueError as error:
                print(f"{error}; it is drawn anew", file=sys.stderr, flush=True)
        drawn = stream.draw(self.seed, number, self.size)
        tensors = {"images": drawn.images, "tokens": tokenize(drawn.captions).short()}
        tensors |= {name: getattr(drawn, name).short() for name in ("kind", "noun", "form", "tone")}
        write(path, tensors, {"layout": LAYOUT, "seed": str(self.seed), "part": str(number)})
        return tensors

    def turn(self, index: int) -> dict[str, Tensor]:
        """Return the part that is seen `index`-th, counted over all rounds, in its order then.

        Each round takes all parts in an order of its own, and each part's pictures as well.
        """
        lap, place = divmod(index, self.parts)
        order = torch.randperm(self.parts, generator=_generator(self.seed, lap, 0))
        tensors = self.part(int(order[place]))
        shuffle = torch.randperm(self.size, generator=_generator(self.seed, index, 1))
        return {name: x[shuffle] for name, x in tensors.items()}

    def fill(self) -> None:
        """Draw every part that is missing or damaged."""
        for number in range(self.parts):
            self.part(number)


def _generator(*seed: int) -> torch.Generator:
    from tasklab.mini.draw import Rng

    return Rng(*seed).generator
