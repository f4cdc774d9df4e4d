"""Images of a suite's tasks; drawn worlds are drawn once, stored, and checked when read.

    CACHE/<world>/<task>-<split>-<count>-<hash>.safetensors   x uint8 (N, 3, H, W), y int64 (N,)

A split is shuffled once, so that its first n images are a sample of it. Should drawing end in other
bits than `drawn_sha256.json` has (another PyTorch might give other random numbers), the images are
not kept, and results on them have keys of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import operator
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias

import safetensors
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from tasklab import mini
from tasklab.errors import TasklabError, choose, shown
from tasklab.isolation import isolated
from tasklab.mini.catalog import CONTROL_SIZES, SIZES
from tasklab.storage import atomic, checksums, folders, shipped
from tasklab.storage.tensors import explained, safe_open, write_tensors
from tasklab.tasks import icons
from tasklab.tasks.suites import GLOSSES, Suite, suite
from tasklab.tasks.texts import encoded

_SUITES = ("mini", "mini_text")
_GLOSS_SPLITS = {"train": "train", "val": "validation", "test": "test"}
PICTURES = ("mini", icons.NAME)  # suites of small pictures, which a larger model has enlarged
SIDE = 32  # height and width of drawn images
ENLARGED = 3  # version of how an encoder enlarges small images: as Pillow does, bit for bit
CHECKSUMS = Path(__file__).with_name("drawn_sha256.json")
_MEMORY: dict[Path, tuple[tuple[int, ...] | None, Images, str]] = {}  # stamp, images, checksum
_log = logging.getLogger(__name__)


Device: TypeAlias = torch.device | str
Order = Callable[[int, int], Tensor]  # step, number of images -> indices (B,) of the step's images


class Images(NamedTuple):
    """Images of one split (of a text suite: token ids) and their labels."""

    x: UInt8[Tensor, "N C H W"] | Int[Tensor, "N L"]
    y: Int[Tensor, " N"]

    def sha256(self) -> str:
        """Return the checksum of types, shapes and values."""
        digest = hashlib.sha256()
        for name, tensor in self._asdict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(memoryview(tensor.contiguous().numpy()))
        return digest.hexdigest()


class SuiteImages(Protocol):
    """The images of a suite's tasks, wherever they come from."""

    @property
    def suite(self) -> Suite:
        """The tasks."""

    def load(
        self, task: str, split: str, *, n: int | None = None, device: Device = "cpu"
    ) -> Images:
        """Return a split, or its first n images.

        Args:
            task: Name of a task.
            split: `"train"`, `"val"` or `"test"`.
            n: Only the first n images; `None` for all.
            device: Where the model or the images are to be.
        """

    def size(self, task: str, split: str) -> int:
        """Return the number of images of a split."""

    def version(self, task: str, split: str) -> str:
        """Return the identity of a split's images, for the key of a result."""

    def identity(self, task: str) -> dict[str, Any]:
        """Return further entries of a training run's key."""

    def batches(
        self, task: str, order: Order, steps: range, *, seed: int, device: Device
    ) -> Iterator[Images]:
        """Yield the training images of each step.

        Args:
            task: Name of a task.
            order: Step and number of images -> the indices of the images.
            steps: Numbers of the steps.
            seed: Seed of random augmentations and orders.
            device: Where the model or the images are to be.
        """


@dataclasses.dataclass(frozen=True)
class DrawnImages:
    """The images of a drawn world. Training does not augment them."""

    suite: Suite
    #: Folder of drawn images; `None` is `$TASKLAB_DATA` or the user's cache. If it cannot be
    #: written to, images are drawn again in every process.
    cache: Path | str | None = None
    #: Height and width of the model's input, to which images are enlarged; `None` is theirs.
    side: int | None = None
    #: Height and width to which they are enlarged, before the centre is cut out; `None` is `side`.
    shorter: int | None = None
    #: How, by the model's card: `"bilinear"`; `None` is bicubic. Squares are never squashed.
    resize: str | None = None

    @isolated
    def load(
        self, task: str, split: str, *, n: int | None = None, device: Device = "cpu"
    ) -> Images:
        """Return a split, or its first n images.

        Args:
            task: Name of a task.
            split: `"train"`, `"val"` or `"test"`.
            n: Only the first n images; `None` for all.
            device: Where the images go; they are a copy.
        """
        n = count_of(n, self.size(task, split), f"{task}/{split}")
        images, _ = self._checked(task, split)
        # a copy: what a caller writes to it must not change what the next one gets
        return Images(*(part[:n].to(device, copy=True) for part in images))

    def size(self, task: str, split: str) -> int:
        """Return the number of images of a split."""
        sizes = self._sizes(task)
        choose("split", split, sizes)
        return sizes[split]

    @isolated
    def version(self, task: str, split: str) -> str:
        """Return the identity of a split's images, drawing them if need be."""
        version = self._version(task, split)
        return (
            version
            if self.side in (None, SIDE)
            else version + enlarged(self.side, self.shorter, self.resize)
        )

    def identity(self, task: str) -> dict[str, Any]:
        """Return {}: no augmentation adds to a run's key."""
        return {}

    def batches(
        self, task: str, order: Order, steps: range, *, seed: int, device: Device
    ) -> Iterator[Images]:
        """Yield the training images of each step, without augmentation.

        Args:
            task: Name of a task.
            order: Step and number of images -> the indices of the images.
            steps: Numbers of the steps.
            seed: Unused: nothing is random in them.
            device: Where the images go.
        """
        images = self.load(task, "train", device=device)
        if not steps:
            return
        # all at once: a copy to a GPU in each step would wait for the step before
        rows = torch.stack([order(step, len(images.y)) for step in steps]).to(images.x.device)
        for index in rows:
            yield Images(images.x[index], images.y[index])

    @property
    def _world(self) -> str:
        return mini.VERSION if self.suite.name == "mini" else mini.TEXT_VERSION

    def _sizes(self, task: str) -> dict[str, int]:
        return SIZES | (CONTROL_SIZES if self.suite[task].control else {})

    def _version(self, task: str, split: str) -> str:
        name, (_, sha256) = self._name(task, split), self._checked(task, split)
        return name if sha256 == _checksums().get(name) else f"{name}/{sha256[:12]}"

    def _name(self, task: str, split: str) -> str:
        return f"{self._world}/{task}/{split}/{self.size(task, split)}"

    def _checked(self, task: str, split: str) -> tuple[Images, str]:
        name = self._name(task, split)
        expected = _checksums().get(name)
        stem = "-".join([*name.split("/")[1:], (expected or _sources_sha256())[:12]])
        file = folders.data(self.cache) / self._world / f"{stem}.safetensors"
        stamp, images, sha256 = _MEMORY.get(file, (None, None, ""))
        if images is None or stamp != _stamp(file):
            images = _read(file, name, expected) or self._draw(file, name, expected)
            sha256 = images.sha256()
            _MEMORY[file] = _stamp(file), images, sha256
        return images, sha256

    def _draw(self, file: Path, name: str, expected: str | None) -> Images:
        _, task, split, count = name.split("/")
        sample = mini.sample if self.suite.name == "mini" else mini.sample_text
        images = Images(*sample(task, split, int(count)))
        sha256 = images.sha256()
        if expected not in (None, sha256):
            _warn_of_others()
            return images
        header = {"images": name, "sha256": sha256}
        try:
            with explained(file.parent, "keep drawn images in", instead=folders.DATA):
                file.parent.mkdir(parents=True, exist_ok=True)
                atomic.sweep(file.parent)
                with atomic.replacing(file) as draft:
                    write_tensors(images._asdict(), draft, header)
        except TasklabError as error:
            _log.warning("%s", error)
        return images


@dataclasses.dataclass(frozen=True)
class IconImages(DrawnImages):
    """The drawings of the second world, which ship. Training does not augment them."""

    def _sizes(self, task: str) -> dict[str, int]:
        return icons.entry(task)["sizes"]

    def _version(self, task: str, split: str) -> str:
        return f"{icons.VERSION}/{task}/{split}/{icons.entry(task)['sha256'][:12]}"

    def _checked(self, task: str, split: str) -> tuple[Images, str]:
        return Images(*icons.split(task, split)), icons.entry(task)["sha256"]


@dataclasses.dataclass(frozen=True)
class Glosses(DrawnImages):
    """The texts of the third world, which ship: bytes (`tasks.texts`) in place of pixels."""

    def _sizes(self, task: str) -> dict[str, int]:
        sizes = _texts().sizes(task)
        return {ours: n for ours, theirs in _GLOSS_SPLITS.items() if (n := sizes.get(theirs, 0))}

    def _version(self, task: str, split: str) -> str:
        prompts = "\n".join(self.suite[task].prompts())
        words = hashlib.sha256(prompts.encode()).hexdigest()  # of classes in templates
        return f"{_texts().VERSION}/{task}/{split}/{_glosses(task, split)[1][:12]}/{words[:12]}"

    def _checked(self, task: str, split: str) -> tuple[Images, str]:
        return _glosses(task, split)


def _texts() -> ModuleType:
    from tasklab.tasks import wordnet  # here: images are evaluated without it

    return wordnet


@functools.cache
def _glosses(task: str, split: str) -> tuple[Images, str]:
    written, labels = _texts().texts(task, _GLOSS_SPLITS[split])
    images = Images(encoded(written), torch.tensor(labels))
    return images, images.sha256()


def count_of(n: int | None, whole: int, split: str) -> int:
    """Return a checked number of images of a split.

    Args:
        n: The number that is asked for; `None` for all.
        whole: Images in the split.
        split: Its name, for the message.
    """
    try:
        number = operator.index(whole if n is None else n)
    except TypeError:
        number = 0
    if not 1 <= number <= whole:
        raise TasklabError(f"{split} has {whole} images: n must be from 1 to {whole}.")
    return number


def enlarged(side: int | None, shorter: int | None, resize: str | None = None) -> str:
    """Return the end of an enlarged image set's version: the resize of a model's input.

    Args:
        side: Height and width of the input.
        shorter: To which images are enlarged, before the centre is cut out; `None` is `side`.
        resize: How; `None` is bicubic.
    """
    part = "" if shorter is None else f"/{side}of{shorter}"
    return f"/enlarged{ENLARGED}{part}" + ("/bilinear" if "bilinear" in (resize or "") else "")


def images_of(
    suite: Suite,
    side: int | None = None,
    shorter: int | None = None,
    resize: str | None = None,
) -> SuiteImages:
    """Return the images of a suite: its own, or the drawn ones, enlarged to a side.

    `side`, `shorter` and `resize` are those of `DrawnImages`.

    Args:
        suite: The tasks with their images.
        side: Height and width of the model's input; `None` as drawn.
        shorter: To which the shorter side is resized before the centre is cut out; `None` is
            `side`.
        resize: How; `None` is bicubic.
    """
    if not isinstance(suite, Suite):
        raise TasklabError(f"images are those of a suite, not of {shown(suite)}.")
    if suite.data is not None:
        return suite.data
    if suite.name == icons.NAME:
        return IconImages(suite, side=side, shorter=shorter, resize=resize)
    if suite.name == GLOSSES:
        return Glosses(suite)
    if suite.name not in _SUITES:
        raise TasklabError(f"suite {suite.name!r} has no images yet: a Lab finds them.")
    return DrawnImages(suite, side=side, shorter=shorter, resize=resize)


def write_checksums() -> None:
    """Draw missing images and write the checksums of all splits, after a new version.

    python -c "from tasklab.tasks import drawn; drawn.write_checksums()"
    """
    table = {}
    for images in (DrawnImages(suite(name)) for name in _SUITES):
        for task in (*images.suite.tasks, images.suite.control):
            for split in ("val", "test") if task.control else SIZES:
                table[images._name(task.name, split)] = images._checked(task.name, split)[1]
    CHECKSUMS.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    shipped.lock()


def _read(file: Path, name: str, expected: str | None) -> Images | None:
    try:
        with safe_open(file) as opened:
            header = opened.metadata() or {}
            images = Images(*map(opened.get_tensor, Images._fields))
        if header["images"] != name or header["sha256"] != images.sha256():
            raise ValueError("its checksum does not match")
    except FileNotFoundError:
        return None
    except (safetensors.SafetensorError, OSError, ValueError, KeyError) as error:
        _log.warning("%s is damaged (%s): its images are drawn again", file, error)
        return None
    return images if expected in (None, header["sha256"]) else None  # drawn by other rounding


def _stamp(file: Path) -> tuple[int, ...] | None:
    with contextlib.suppress(OSError):
        return checksums.state(file)
    return None


@functools.cache
def _warn_of_others() -> None:
    _log.warning(
        "images drawn by this PyTorch (%s, %s) differ from those of other machines: results on "
        "them are kept under keys of their own", torch.__version__, platform.machine(),
    )  # fmt: skip


@functools.cache
def _checksums() -> dict[str, str]:
    return json.loads(shipped.content(CHECKSUMS))


@functools.cache
def _sources_sha256() -> str:
    """Return a hash of the code that draws, for a world that is still being made."""
    digest = hashlib.sha256()
    for file in sorted(Path(mini.__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
