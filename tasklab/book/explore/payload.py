"""The data of an editor in a page: scores of some images, affine in the coefficients.

    S(x; a) = S_0(x) + sum_t a_t dS_t(x)

Only the largest score matters: a shift of all classes and a factor per image are free, and 16 bits
are enough (`quantised`). Of a model that is not linear the page holds its predictions at the points
of a grid of coefficients. NumPy suffices: a site is built without torch.

The page is one piece of HTML that makes no request: notebooks and the site show the same text, with
or without a kernel, from `file://`. Without scripts a table of accuracies at the presets remains.

Letters: T task vectors, N images, C classes, K images that are shown, S their side in pixels.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import uuid
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Int16, UInt8
from PIL import Image

from tasklab.errors import TasklabError
from tasklab.storage.templates import filled

_STEPS = np.iinfo(np.int16).max
_QUALITY = 80  # of pictures, from 1 to 95


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ShownTask:
    """One task's images."""

    name: str
    classes: tuple[str, ...]
    labels: Int[np.ndarray, " N"]  #: True classes
    #: S_0, dS_1, ..., dS_T (N, C, T + 1), from `quantised`; or predicted classes at the points of a
    #: grid (G, ..., G, N).
    scores: Int16[np.ndarray, "N C T1"]
    pictures: UInt8[np.ndarray, "K S S 3"]  #: The first images; none for a text task

    def accuracy(self, alphas: Sequence[float], grid: Sequence[float] = ()) -> float:
        """Return the accuracy in % at coefficients (T,), summed in the order of the script."""
        if grid:
            found = self.scores[tuple(np.abs(np.subtract(grid, a)).argmin() for a in alphas)]
        else:
            total = self.scores[..., 0].astype(float)
            for k, alpha in enumerate(alphas):
                total = total + float(alpha) * self.scores[..., k + 1]
            found = total.argmax(1)
        return float(100 * (found == self.labels).mean())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Recorded mean accuracies in % along a shared coefficient."""

    label: str
    alphas: tuple[float, ...]
    means: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Payload:
    """All data of an editor."""

    method: str  #: Its label
    images: str  #: Which they are, in words
    vectors: tuple[str, ...]  #: Tasks with a vector (T), in the order of the coefficients
    tasks: tuple[ShownTask, ...]  #: Their images; a task without a vector is the control
    presets: Mapping[str, tuple[float, ...]]  #: Label -> coefficients (T,)
    curves: tuple[Curve, ...] = ()  #: Of non-linear models
    grid: tuple[float, ...] = ()  #: Coefficients of a measured model; none for a linear one
    start: str = "pre-trained"  #: Its name where all coefficients are 0

    @property
    def counted(self) -> str:
        """The number of images in words, with those of the control."""
        controls = [len(task.labels) for task in self.tasks if task.name not in self.vectors]
        return self.images + "".join(f", {count} of the control" for count in controls)

    def accuracies(self, alphas: Sequence[float] | Mapping[str, float]) -> dict[str, float]:
        """Return the accuracy in % on each task, at coefficients (T,) or by task (others 0)."""
        if isinstance(alphas, Mapping):
            if unknown := [name for name in alphas if name not in self.vectors]:
                raise TasklabError(f"no vector of {unknown[0]!r}: {', '.join(self.vectors)}.")
            alphas = [alphas.get(name, 0.0) for name in self.vectors]
        if len(alphas) != len(self.vectors):
            raise TasklabError(f"{len(self.vectors)} vectors need as many coefficients.")
        return {task.name: task.accuracy(alphas, self.grid) for task in self.tasks}

    def document(self) -> str:
        """Return the page's HTML."""
        style, script = (
            files(__package__).joinpath(f"editor.{kind}").read_text("utf-8")
            for kind in ("css", "js")
        )
        name = f"tasklab-{uuid.uuid4().hex}"
        about = {"name": name, "style": style, "script": script.replace("@ID@", name)}
        return filled("book/explore/editor.html", **about, content=self, percent=percent)

    def json(self) -> str:
        """Return JSON that is safe in HTML."""
        document = dataclasses.asdict(self) | {"presets": dict(self.presets)}
        document["tasks"] = [
            {
                "name": task.name,
                "classes": list(task.classes),
                "labels": task.labels.tolist(),
                "scores": _base64(task.scores.astype("<i2").tobytes()),
                "pictures": len(task.pictures),
            }
            for task in self.tasks
        ]
        document["counted"] = self.counted
        document["sprite"] = _sprite([task.pictures for task in self.tasks])
        return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


def percent(accuracy: float) -> str:
    """Return an accuracy with one digit, halves to even, as the page's script does.

    Four digits are kept before: 100 * (51 / 80) is a little less than 63.75.

    >>> percent(100 * (51 / 80)), percent(100 * 41 / 80)
    ('63.8', '51.2')
    """
    return f"{round(accuracy, 4):.1f}"


def quantised(
    base: Float[np.ndarray, "N C"], slopes: Float[np.ndarray, "T N C"]
) -> Int16[np.ndarray, "N C T1"]:
    """Return scores in 16 bits that order classes as the given ones, but for near ties.

    The middle of the classes' range is subtracted per image and term, and the largest number of an
    image becomes 32,767.
    """
    terms = np.concatenate([base[None], slopes]).transpose(1, 2, 0)
    terms = terms - (terms.max(1, keepdims=True) + terms.min(1, keepdims=True)) / 2
    largest = np.abs(terms).max((1, 2), keepdims=True)
    return np.rint(terms * (_STEPS / np.maximum(largest, 1e-30))).astype(np.int16)


def _sprite(strips: Sequence[UInt8[np.ndarray, "K S S 3"]]) -> dict[str, Any]:
    """Return one JPEG with a row of pictures for each task.

    Lossless it would be five times as large. Chroma is not subsampled: small pictures would blur.
    """
    size = max((strip.shape[1] for strip in strips), default=1)
    most = max((len(strip) for strip in strips), default=0)
    jpeg = sheet(strips, size, most, "JPEG", quality=_QUALITY, subsampling=0)
    return {"jpeg": _base64(jpeg), "size": size, "columns": most}


def sheet(
    strips: Sequence[UInt8[np.ndarray, "K S S 3"]],
    size: int,
    columns: int,
    kind: str,
    **options: Any,
) -> bytes:
    """Return the bytes of one image file with a row of pictures for each strip.

    Args:
        strips: K pictures each, of S x S pixels.
        size: Pixels S.
        columns: Pictures in a row.
        kind: Format of Pillow, e.g. `"webp"`.
        options: Of the format, such as `quality`.
    """
    pixels = np.zeros((max(1, len(strips) * size), max(1, columns * size), 3), np.uint8)
    for row, strip in enumerate(strips):
        for column, picture in enumerate(strip):
            pixels[row * size :, column * size :][:size, :size] = picture
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
