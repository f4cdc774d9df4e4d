"""The data sets of a suite at a model's resolution: found, checked, decoded once, and served.

Images for evaluation are kept as the model takes them, and for training as squares somewhat larger,
of which a crop is drawn each time (`augment`). MNIST, SVHN and EuroSAT are kept at their own size
and enlarged on the device. Arrays are memory-mapped on the CPU; evaluation images move to a GPU
once, while they fit there (`placement.resident`), of training images a batch when it is used.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasklab import errors
from tasklab.errors import TasklabError, unknown
from tasklab.storage import folders
from tasklab.storage.placement import resident
from tasklab.tasks import drawn
from tasklab.tasks.drawn import Device, Images, Order
from tasklab.tasks.images import augment, finding, pixels, twins
from tasklab.tasks.images.decoding import BadImagesError, Transform
from tasklab.tasks.images.formats import Split
from tasklab.tasks.images.pixels import Arrays
from tasklab.tasks.suites import Suite, Task, paper_data_sets, suite

SPLITS = ("train", "val", "test")
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Data:
    """The images of a task on this machine."""

    task: str
    state: str  #: `"found"`, `"decoded"` (without originals), `"missing"`, `"damaged"`, `"unknown"`
    where: str  #: The folder, or the repository that has it
    sides: tuple[int, ...] = ()  #: Sizes of models' input at which all splits are decoded
    note: str = ""  #: What is missing or wrong, as a sentence with a way out


@dataclasses.dataclass(eq=False, kw_only=True)
class DecodedImages:
    """The images of a suite's tasks; tasks without a source are embedded ones."""

    suite: Suite
    #: Height and width of the model's input; `None` before there is a model.
    side: int | None = None
    #: To which an image's shorter side is resized, before the centre is cut out; `None` is `side`.
    shorter: int | None = None
    resize: str | None = None  #: Of a model's card (`decoding.Transform`); `None` is bicubic
    root: Path | None = None  #: Folder of data sets; the hub's cache is searched too
    #: Folder of decoded images; `None` is `$TASKLAB_DATA` or the user's cache.
    cache: Path | None = None
    progress: bool = True
    jobs: int | None = None  #: Threads that decode; `None` is one a core
    # each is found, opened or read once
    data_set: Callable[[Task], finding.DataSet] = dataclasses.field(init=False, repr=False)
    arrays: Callable[[Task, str], Arrays] = dataclasses.field(init=False, repr=False)
    contents: Callable[[Task, Split], list[str]] = dataclasses.field(init=False, repr=False)
    prepared: set[str] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, most in (("jobs", 1000), ("side", 10_000), ("shorter", 10_000)):
            if (number := getattr(self, name)) is not None:
                setattr(self, name, errors.whole(name, number, 1, most))
        if self.root is not None:
            self.root = errors.path("data_root", self.root)
        self.cache = folders.data(self.cache)
        self.data_set = functools.cache(self._data_set)
        self.arrays = functools.cache(self._arrays)
        self.contents = functools.cache(self._contents)
        self.prepared = set()

    def at(self, side: int, shorter: int | None = None, resize: str | None = None) -> DecodedImages:
        """Return the same images for a model's input.

        Args:
            side: Its height and width.
            shorter: To which an image's shorter side is resized; `None` is `side`.
            resize: How, by the model's card (`decoding.Transform`); `None` is bicubic.
        """
        other = dataclasses.replace(self, side=side, shorter=shorter, resize=resize)
        for name in ("data_set", "contents"):  # looking for them, and into them, may take seconds
            setattr(other, name, getattr(self, name))
        return other

    @property
    def sources(self) -> tuple[Task, ...]:
        """The tasks whose images are not embedded."""
        return tuple(t for t in (*self.suite.tasks, self.suite.control) if t.source is not None)

    def state(self, name: str) -> Data:
        """Return the state of a task's images without decoding or downloading them.

        Decoded images need no originals; but originals that are here and wrong are `"damaged"`.
        """
        task, folder = self.suite[name], self._folder(self.suite[name])
        sides = self._sides(task)
        try:
            return Data(name, "found", str(self.data_set(task).folder), sides)
        except TasklabError as error:
            gone = _gone(task, self.root)
            if gone and all(self._kept(task, split) for split in _splits(task)):
                return Data(name, "decoded", str(folder), sides)
            known = task.place.data_set
            where = paper_data_sets()[known]["hub"]["repo"] if known else _name(task)
            return Data(name, "missing" if gone else "damaged", where, sides, str(error))

    def missing(self, *tasks: str) -> list[str]:
        """List missing and wrong data, one line a task (`state`)."""
        found = (self.state(task.name) for task in self._chosen(tasks))
        return [one.note for one in found if one.note]

    def damaged(self, *tasks: str) -> list[str]:
        """List decoded images that have changed since, one line a folder.

        It reads all of them, of every model.
        """
        lines = []
        for task in self._chosen(tasks):
            for folder in sorted(self._folder(task).glob("*/")):
                if folder.name.endswith(pixels.PARTIAL):
                    continue
                arrays = pixels.arrays_in(folder)
                if arrays is None or arrays.damaged():
                    lines.append(f"{folder} is damaged: remove it, to have it decoded again.")
        return lines

    def load(
        self, task: str, split: str, *, n: int | None = None, device: Device = "cpu"
    ) -> Images:
        """Return a split, decoding it on the first call.

        The images move to a GPU while they fit (`placement.resident`), and else stay in the memory
        map, on the CPU; the labels are moved to the device. Training images come uncropped.

        Args:
            task: Name of a task.
            split: `"train"`, `"val"` or `"test"`.
            n: Only the first n images; `None` for all.
            device: Where the model or the images are to be.
        """
        entry = self._task(task, split)
        if entry.source is None:
            return drawn.DrawnImages(suite("mini")).load(task, split, n=n, device=device)
        n = drawn.count_of(n, len(self.arrays(entry, split).y), f"{task}/{split}")
        arrays = self._sound(entry, split, n)
        key = ("images", task, split, arrays.manifest["digest"], str(n))
        x = resident(key, device, lambda: torch.from_numpy(arrays.x[:n]))
        return Images(x, torch.from_numpy(arrays.y[:n]).to(device))

    def size(self, task: str, split: str) -> int:
        """Return the number of images of a split, without decoding."""
        entry = self._task(task, split)
        if entry.source is None:
            return drawn.DrawnImages(suite("mini")).size(task, split)
        data = self._data(entry, split)
        if isinstance(data, Arrays):
            return len(data.y)
        return len(finding.plan(entry, data)[split].rows)

    def version(self, task: str, split: str) -> str:
        """Return the checksum of a split's pixels and labels, decoding it on the first call."""
        entry = self._task(task, split)
        if entry.source is None:
            whole: dict[str, Any] = {
                "side": self.side,
                "shorter": self.shorter,
                "resize": self.resize,
            }
            return drawn.DrawnImages(suite("mini"), **whole).version(task, split)
        version = f"{task}/{split}/{self.arrays(entry, split).manifest['digest']}"
        native = self.transform(entry, split).kind == "native"
        return version + drawn.enlarged(self.side, self.shorter, self.resize) if native else version

    def identity(self, task: str) -> dict[str, Any]:
        """Return the version of the augmentation."""
        return {} if self.suite[task].source is None else {"augment": augment.VERSION}

    def batches(
        self, task: str, order: Order, steps: range, *, seed: int, device: Device
    ) -> Iterator[Images]:
        """Yield the training images of each step, cropped as the papers crop them.

        The next batch is read from the memory map while the device works on this one.

        Args:
            task: Name of a task.
            order: Step and number of images -> the indices of the images.
            steps: Numbers of the steps.
            seed: Of random crops.
            device: Where the model or the images are to be.
        """
        entry = self._task(task, "train")
        if entry.source is None:
            own = drawn.DrawnImages(suite("mini"))
            yield from own.batches(task, order, steps, seed=seed, device=device)
            return
        arrays, side = self._sound(entry, "train"), self._side()
        x, y, sizes = map(torch.from_numpy, (arrays.x, arrays.y, arrays.sizes))
        pin = torch.device(device).type == "cuda"

        def gather(step: int) -> tuple[Tensor, Tensor, Tensor]:
            index = order(step, len(y))
            parts = x[index], y[index], augment.boxes(sizes[index], augment.generator(seed, step))
            return tuple(part.pin_memory() for part in parts) if pin else parts

        with concurrent.futures.ThreadPoolExecutor(1) as reader:
            coming = [reader.submit(gather, step) for step in steps[:1]]
            for number in range(len(steps)):
                batch = [part.to(device, non_blocking=pin) for part in coming.pop().result()]
                coming += [reader.submit(gather, step) for step in steps[number + 1 : number + 2]]
                yield Images(augment.crop(batch[0], batch[2], side), batch[1])

    def decode(self, *tasks: str) -> Iterator[tuple[str, str, Arrays]]:
        """Decode remaining images, and yield the name, split and arrays of all.

        Raises:
            BadImagesError: If images cannot be decoded; it names those of all tasks, at the end.
            TasklabError: If data are missing or wrong, or the disk is too small for all of them.
        """
        chosen, bad = self._chosen(tasks), list[str]()
        self._check_space(chosen)
        for task in chosen:
            for split in _splits(task):
                try:
                    arrays = self.arrays(task, split)
                except BadImagesError as error:
                    bad += error.lines
                    continue
                yield task.name, split, arrays
        if bad:
            raise BadImagesError(list(dict.fromkeys(bad)))

    def prepare(self, *tasks: str) -> None:
        """Decode remaining images, so that bad ones show before training.

        The second time it costs nothing.
        """
        left = [task.name for task in self._chosen(tasks) if task.name not in self.prepared]
        if left:
            for _ in self.decode(*left):
                pass
            self.prepared.update(left)

    def _chosen(self, names: tuple[str, ...]) -> list[Task]:
        return [task for task in self.sources if not names or task.name in names]

    def _task(self, name: str, split: str) -> Task:
        task = self.suite[name]
        if task.source is not None and split not in _splits(task):
            raise unknown(f"split of {name}", split, _splits(task))
        return task

    def _data_set(self, task: Task) -> finding.DataSet:
        data = finding.find(task, self.root)
        if not task.place.data_set:
            twins.tell_twins(task.name, finding.plan(task, data))
        return data

    def transform(self, task: Task, split: str) -> Transform:
        """Return the transform of a split's stored images."""
        wanted = augment.kept_side(self._side()) if split == "train" else self._side()
        known = task.place.data_set
        own = paper_data_sets()[known].get("side") if known else None
        if own is not None and own <= wanted:
            return Transform("native", own)
        if split == "train":
            return Transform("whole", wanted)
        shorter = None if self.shorter == wanted else self.shorter
        return Transform("centre", wanted, shorter, self.resize)

    def _side(self) -> int:
        if self.side is None:
            raise TasklabError("images are decoded for a model: give the side of its input.")
        return self.side

    def _data(self, task: Task, split: str) -> finding.DataSet | Arrays:
        try:
            return self.data_set(task)
        except TasklabError:
            if _gone(task, self.root) and (kept := self._kept(task, split)):
                return kept
            raise

    def _arrays(self, task: Task, split: str) -> Arrays:
        transform, data = self.transform(task, split), self._data(task, split)
        if isinstance(data, Arrays):
            return data
        part, folder = self._place(task, split, data)
        note: dict[str, Any] = {"task": task.name, "split": split, "classes": [*task.classes]}
        note |= {"source": _name(task), "origin": data.origin}
        return pixels.decode(
            folder, part.split, part.rows, transform, note=note,
            jobs=self.jobs, progress=self.progress, title=f"{task.name}, {split}: decode",
        )  # fmt: skip

    def _place(self, task: Task, split: str, data: finding.DataSet) -> tuple[finding.Part, Path]:
        part = finding.plan(task, data)[split]
        stamp = [part.split.kind, part.split.column, self.contents(task, part.split)]
        names = [*(part.split.names or ()), None, *task.classes]
        key = [pixels.VERSION, stamp, names, part.rows.tolist(), part.labels.tolist()]
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
        return part, self._folder(task) / f"{_stem(split, self.transform(task, split))}-{digest}"

    def _contents(self, task: Task, split: Split) -> list[str]:
        try:
            return pixels.contents(split.files, self._folder(task) / "contents.json")
        except OSError as error:
            raise TasklabError(
                f"{task.name}: {error.filename} cannot be read ({error.strerror})."
            ) from error

    def _sound(self, task: Task, split: str, count: int | None = None) -> Arrays:
        arrays = self.arrays(task, split)
        if arrays.damaged(count):
            _log.warning("%s is damaged: its images are decoded again", arrays.folder)
            pixels.discard(arrays)
            self.arrays = functools.cache(self._arrays)
            arrays = self.arrays(task, split)
        return arrays

    def _check_space(self, tasks: list[Task]) -> None:
        needed = 0
        for task in tasks:
            for split in _splits(task):
                data = self._data(task, split)
                if not isinstance(data, Arrays):
                    part, folder = self._place(task, split, data)
                    transform = self.transform(task, split)
                    needed += pixels.needed(folder, len(part.rows), transform)
        pixels.check_space(self._folder(), needed)

    def _folder(self, task: Task | None = None) -> Path:
        return folders.data(self.cache) / "pictures" / (task.name if task else "")

    def _kept(self, task: Task, split: str) -> Arrays | None:
        stem = f"{split}-*" if self.side is None else _stem(split, self.transform(task, split))
        kept = self._decoded(task, stem)
        return max(kept, key=lambda arrays: arrays.manifest["written"], default=None)

    def _decoded(self, task: Task, stem: str) -> list[Arrays]:
        mine = [_name(task), [*task.classes]]
        decoded = map(pixels.arrays_in, self._folder(task).glob(f"{stem}-*"))
        return [x for x in decoded if x and [*map(x.manifest.get, ("source", "classes"))] == mine]

    def _sides(self, task: Task) -> tuple[int, ...]:
        """Return the sizes at which all splits of a task are decoded, those to evaluate on."""
        sides = [
            {int(one.manifest["transform"]["side"]) for one in self._decoded(task, f"{split}-*")}
            for split in _splits(task)
        ]  # training images are larger: any will do
        return tuple(sorted(sides[-2] & sides[-1])) if all(sides) else ()


def _gone(task: Task, root: Path | None) -> bool:
    """Return whether a task's data are missing, rather than wrong."""
    try:
        places = finding.candidates(task.place, root)
        return not any(finding.splits_in(task.place, folder) for folder in places)
    except TasklabError:
        return False


def _splits(task: Task) -> tuple[str, ...]:
    return SPLITS[1:] if task.control else SPLITS


def _stem(split: str, transform: Transform) -> str:
    shorter = "" if transform.shorter is None else f"of{transform.shorter}"
    how = "".join(f"-{word}" for word in (transform.resize or "").split())
    return f"{split}-{transform.kind}{transform.side}{shorter}{how}"


def _name(task: Task) -> str:
    source = task.place
    return source.data_set or source.hub or str(source.folder)
