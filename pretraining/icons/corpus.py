"""What the second world's CLIPs learn from: the other drawings, and captions made of their names.

Left out are the drawings whose name is exactly that of a class, all drawings of the other tasks,
and near copies of any of these. The words of the classes still occur in other names ("heart" in
"folder heart"): that is the dial that sets how well the model knows the tasks beforehand.
"""

from __future__ import annotations

import bisect
import collections
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pretraining import pool as files
from pretraining.icons import names
from tasklab.errors import TasklabError
from tasklab.mini.clip import CONTEXT, tokenize
from tasklab.mini.draw import Rng

LAYOUT = "corpus-1"
FILE = "corpus.safetensors"
COLOURED = 0.25  # share of the black drawings that are seen in two random colours
SHIFT = 2  # pixels, along each axis
SMALLER = 0.25  # share of the drawings that are seen at 3/4 of their size
# A caption and its share; {style} and {set} are left out where there is none.
FORMS = (
    ("{name}", 0.25), ("{name} icon", 0.2), ("icon of {name}", 0.2), ("{style} {name}", 0.1),
    ("{style} icon of {name}", 0.15), ("{set} icon of {name}", 0.1),
)  # fmt: skip
_UPTO = list(itertools.accumulate(share for _, share in FORMS[:-1]))


def write(folder: Path, pictures: Sequence[np.ndarray], captions: list[list[str]]) -> Path:
    """Write the corpus; return its file.

    Args:
        folder: Where to.
        pictures: Of each drawing, uint8 (1 or 3, S, S).
        captions: Of each drawing its name, the words of its style, and its set.
    """
    coloured = np.array([one.shape[0] == 3 for one in pictures])
    side = pictures[0].shape[-1]
    tensors: dict[str, np.ndarray] = {"is_coloured": coloured}
    for name, channels in (("black", 1), ("coloured", 3)):
        chosen = [one for one in pictures if one.shape[0] == channels]
        tensors[name] = np.array(chosen, np.uint8).reshape(-1, channels, side, side)
    path = folder / FILE
    about = {"layout": LAYOUT, "captions": captions}
    files.write(path, {name: torch.from_numpy(x) for name, x in tensors.items()}, about)
    return path


def style(name: str) -> str:
    """Return the words of a name that are about its style."""
    return " ".join(word for word in name.split("--")[0].split("-") if word in names.STYLES)


class Corpus:
    """The stream of pairs of a seed: every drawing once a round, seen and captioned anew.

    Args:
        folder: Where the corpus is.
        seed: Of the stream.
        size: Pairs in a part.
    """

    def __init__(self, folder: Path, seed: int, size: int) -> None:
        path = Path(folder) / FILE
        if not path.exists():
            raise TasklabError(f"{path} is missing: make it by `python -m pretraining.icons`.")
        try:
            tensors, about = files.read(path)
        except ValueError as error:
            raise TasklabError(
                f"{error}; make it again by `python -m pretraining.icons`"
            ) from error
        self.captions, self.seed, self.size = about["captions"], seed, size
        self.black, self.coloured = tensors["black"], tensors["coloured"]
        self.is_coloured = tensors["is_coloured"]
        self.words: dict[str, list[int]] = {}
        self.marks = tokenize([""], "icons")[0, :2].tolist()  # of the beginning and the end
        place = torch.cumsum(self.is_coloured.long(), 0)
        count = torch.arange(len(self.is_coloured))
        self.place = torch.where(self.is_coloured, place - 1, count - place)

    def turn(self, index: int) -> dict[str, Tensor]:
        """Return the `index`-th part of the stream: `images` (n, 3, S, S) and `tokens`."""
        total, start = len(self.captions), index * self.size
        rows: list[int] = []
        while len(rows) < self.size:  # a part may end one round and begin the next
            lap, at = divmod(start + len(rows), total)
            order = torch.randperm(total, generator=Rng(7, self.seed, lap).generator)
            rows += order[at : at + self.size - len(rows)].tolist()
        rng, chosen = Rng(8, self.seed, index), torch.tensor(rows)
        chances = rng.uniform(len(rows)).tolist()
        said = map(self._caption, rows, chances)
        return {"images": seen(rng, self._pictures(chosen), ~self.is_coloured[chosen]),
                "tokens": torch.stack([self._tokens(caption) for caption in said])}  # fmt: skip

    def _pictures(self, rows: Tensor) -> Tensor:
        side = self.black.shape[-1]
        result = torch.empty(len(rows), 3, side, side, dtype=torch.uint8)
        coloured, place = self.is_coloured[rows], self.place[rows]
        result[coloured] = self.coloured[place[coloured]]
        result[~coloured] = self.black[place[~coloured]].expand(-1, 3, -1, -1)
        return result

    def _tokens(self, caption: str) -> Tensor:
        """Return the tokens of a caption: those of its words, each of which is read once."""
        ids: list[int] = []
        for word in caption.split():
            if word not in self.words:
                read = tokenize([word], "icons")[0]
                self.words[word] = read[1 : read.argmax()].tolist()  # the end mark is the largest
            ids += self.words[word]
        ids = [self.marks[0], *ids[: CONTEXT - 2], self.marks[1]]
        return torch.tensor(ids + [0] * (CONTEXT - len(ids)))

    def _caption(self, row: int, chance: float) -> str:
        name, look, of_set = self.captions[row]
        form = FORMS[bisect.bisect(_UPTO, chance)][0]
        return " ".join(form.format(name=name, style=look, set=of_set.lower()).split())


def seen(rng: Rng, pictures: Tensor, black: Tensor) -> Tensor:
    """Return pictures (n, 3, S, S) smaller, shifted, and black ones in any colours."""
    n, side = len(pictures), pictures.shape[-1]
    result = pictures.clone()
    small = rng.chance(n, SMALLER)
    edge = side // 8
    shrunk = torch.nn.functional.interpolate(
        result[small].float(), size=side - 2 * edge, mode="area"
    )
    result[small] = 255
    inner = slice(edge, side - edge)
    framed = result[small]
    framed[:, :, inner, inner] = shrunk.round().byte()
    result[small] = framed
    padded = torch.nn.functional.pad(result, (SHIFT,) * 4, value=255)
    across, down = (rng.integers(n, 2 * SHIFT + 1) for _ in range(2))
    for x in range(2 * SHIFT + 1):
        for y in range(2 * SHIFT + 1):
            here = (across == x) & (down == y)
            result[here] = padded[here, :, y : y + side, x : x + side]
    two = black & rng.chance(n, COLOURED)
    ink, ground = (rng.integers(int(two.sum()) * 3, 256).view(-1, 3, 1, 1) for _ in range(2))
    share = result[two].int()
    result[two] = ((share * ground + (255 - share) * ink + 127) // 255).byte()
    return result


def said(captions: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return how often each word of the captions is said."""
    counted: collections.Counter[str] = collections.Counter()
    for name, look, of_set in captions:
        counted.update(f"{name} {name} {look} {of_set.lower()}".split())
    return dict(counted)
