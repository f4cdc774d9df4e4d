"""Images of a task as tensors: decoded or drawn once, memory-mapped from then on.

    CACHE/<suite>/<task>-<split>-<hash>.x.npy   uint8 (N, 3, H, W)
                                       .y.npy   int64 (N,)

A split is shuffled once, so that its first n images are a sample of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import platformdirs
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from tasklab import mini
from tasklab.errors import TasklabError, unknown
from tasklab.tasks.suites import Suite
from tasklab.tasks.suites import suite as find_suite

_SPLITS = {"train": 3000, "val": 500, "test": 1000}
SIZES = {"mini": _SPLITS, "mini_text": _SPLITS}
CONTROL_SIZES = {"mini": {"test": 2000}, "mini_text": {}}  # the control's, where they differ
FOLDER = "TASKLAB_DATA"  # environment variable: the cache, instead of the user's

_NOT_DRAWING = {"clip", "t5", "vit"}
_log = logging.getLogger(__name__)


class Images(NamedTuple):
    """Images of one split (of a text suite: token ids) and their labels."""

    x: UInt8[Tensor, "N C H W"] | Int[Tensor, "N L"]
    y: Int[Tensor, " N"]


class Data(Protocol):
    """The images of a suite's tasks, wherever they come from."""

    suite: Suite

    def load(
        self, task: str, split: str, *, n: int | None = None, device: torch.device | str = "cpu"
    ) -> Images:
        """Return a split, or its first n images; see `load` of this module."""

    def size(self, task: str, split: str) -> int:
        """Return how many images a split has."""

    def version(self, task: str, split: str) -> str:
        """Return what identifies the images of a split, for the key of a result."""

    def identity(self, task: str) -> dict[str, Any]:
        """Return what else determines a training run, for its key."""

    def batches(
        self,
        task: str,
        order: Callable[[int, int], Tensor],
        steps: range,
        *,
        seed: int,
        device: torch.device | str,
    ) -> Iterator[Images]:
        """Yield the training images of each step.

        Args:
            task: Name of the task.
            order: Step and number of images -> indices (B,) of the step's images.
            steps: The steps, in order.
            seed: Of what is random in an image, such as a crop.
            device: Where to put the images.
        """


@dataclasses.dataclass(frozen=True)
class Embedded:
    """The drawn images of an embedded suite. Training does not augment them."""

    suite: Suite

    def load(
        self, task: str, split: str, *, n: int | None = None, device: torch.device | str = "cpu"
    ) -> Images:
        """Return a split, or its first n images."""
        return load(self.suite.name, task, split, n=n, device=device)

    def size(self, task: str, split: str) -> int:
        """Return how many images a split has."""
        return size(self.suite.name, task, split)

    def version(self, task: str, split: str) -> str:
        """Return what identifies the images of a split."""
        return version(self.suite.name, task, split)

    def identity(self, task: str) -> dict[str, Any]:
        """Return nothing: there is no augmentation."""
        return {}

    def batches(
        self,
        task: str,
        order: Callable[[int, int], Tensor],
        steps: range,
        *,
        seed: int,
        device: torch.device | str,
    ) -> Iterator[Images]:
        """Yield the training images of each step, as they are."""
        images = self.load(task, "train", device=device)
        for step in steps:
            index = order(step, len(images.y)).to(images.x.device)
            yield Images(images.x[index], images.y[index])


def of(suite: Suite) -> Data:
    """Return the images of a suite: its own, or the drawn ones.

    Raises:
        TasklabError: If the suite is not embedded and was not given its images.
    """
    if suite.data is not None:
        return suite.data
    if suite.name not in SIZES:
        raise TasklabError(f"suite {suite.name!r} has no images yet: a Lab finds them.")
    return Embedded(suite)


def load(
    suite: str,
    task: str,
    split: str,
    *,
    n: int | None = None,
    device: torch.device | str = "cpu",
    cache: Path | str | None = None,
) -> Images:
    """Return a split of a task, drawing it on the first call.

    Args:
        suite: Name of the suite.
        task: Name of one of its tasks, or of its control.
        split: `"train"`, `"val"` or `"test"`.
        n: Only the first n images.
        device: Where to put the tensors.
        cache: Folder of drawn images; `None` is `$TASKLAB_DATA` or the user's cache. If it cannot
            be written to, images are drawn again on every call.

    Raises:
        TasklabError: If a name is unknown, or the split has fewer than n images.
    """
    whole = size(suite, task, split)
    if n is not None and not 1 <= n <= whole:
        raise TasklabError(f"{task}/{split} has {whole} images: n must be from 1 to {whole}.")
    cache = Path(cache) if cache is not None else default_cache()
    path = cache / suite / f"{task}-{split}-{_drawn_by(version(suite, task, split))}"
    images = _cached(path)
    if images is None:
        images = Images(*_draw(suite, task, split, whole))
        _keep(path, images)
    return Images(*(tensor[:n].to(device) for tensor in images))


def size(suite: str, task: str, split: str) -> int:
    """Return how many images a split has.

    Raises:
        TasklabError: If a name is unknown.
    """
    entry = find_suite(suite)[task]
    sizes = SIZES[suite] | (CONTROL_SIZES[suite] if entry.control else {})
    if split not in sizes:
        raise unknown("split", split, sizes)
    return sizes[split]


def version(suite: str, task: str, split: str) -> str:
    """Return what identifies the images of a split, for the key of a result."""
    drawn = mini.VERSION if suite == "mini" else mini.TEXT_VERSION
    return f"{drawn}/{task}/{split}/{size(suite, task, split)}"


def _draw(suite: str, task: str, split: str, n: int) -> tuple[Tensor, Tensor]:
    return (mini.sample if suite == "mini" else mini.sample_text)(task, split, n)


def default_cache() -> Path:
    """Return the folder of drawn images: `$TASKLAB_DATA`, or the user's cache."""
    given = os.environ.get(FOLDER)
    return Path(given).expanduser() if given else platformdirs.user_cache_path("tasklab") / "data"


@functools.cache
def _drawn_by(version: str) -> str:
    """Return a hash of the version and of the code that draws, which may change before it does."""
    digest = hashlib.sha256(version.encode())
    for file in sorted(Path(mini.__file__).parent.glob("*.py")):
        if file.stem not in _NOT_DRAWING:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _cached(path: Path) -> Images | None:
    parts = []
    for name in Images._fields:
        file = path.with_name(f"{path.name}.{name}.npy")
        if not file.exists():
            return None
        try:  # copy on write: torch wants memory that it may write to, the file stays as it is
            parts.append(torch.from_numpy(np.load(file, mmap_mode="c", allow_pickle=False)))
        except (OSError, ValueError) as error:
            _log.warning("cached images %s are drawn again: %s", file, error)
            return None
    return Images(*parts)


def _keep(path: Path, images: Images) -> None:
    """Write each array to a draft and rename it, so that no reader sees half of one."""
    for name, tensor in images._asdict().items():
        draft = path.with_name(f"{path.name}.{name}.{uuid.uuid4().hex[:8]}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as stream:
                np.save(stream, tensor.numpy(), allow_pickle=False)
            draft.replace(path.with_name(f"{path.name}.{name}.npy"))
        except OSError as error:
            _log.warning("drawn images are not kept in %s: %s", path.parent, error)
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            return
