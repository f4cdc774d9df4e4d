"""Images decoded once: a memory-mapped uint8 array with its labels and a manifest.

    FOLDER/x.npy          uint8 (N, 3, H, W)
           y.npy          int64 (N,)
           sizes.npy      int32 (N, 2), width and height before resizing
           rows.npy       int64 (N,), which row of the data each image is
           manifest.json  sizes, class names, origin, checksums: of itself, of the labels, and of
                          the pixels of every `BLOCK` images

Threads write each image to its place; finished images are noted, so that a killed decoding goes on
where it was. A complete folder is renamed to its final name. Pixels are compared with their
checksums once a process, a block at a time, before they are used.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import logging
import operator
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from tasklab.errors import TasklabError
from tasklab.storage import atomic
from tasklab.storage.checksums import file_sha256, state
from tasklab.tasks.images.decoding import DONE, JOB, UNREADABLE, VERSION, Job, Transform
from tasklab.tasks.images.formats import Split

BLOCK = 256  # images that have a checksum together
PARTIAL = ".partial"  # ends the name of a folder of which not all is there
_MANIFEST = "manifest.json"
_FILES = (
    *(f"{name}.npy" for name in ("x", "y", "sizes", "rows")),
    JOB,
    DONE,
    _MANIFEST,
    f"{_MANIFEST}.damaged",
)
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
    """A decoded split; `x` is memory-mapped, copy on write."""

    x: np.ndarray  #: uint8 (N, 3, H, W)
    y: np.ndarray  #: int64 (N,), the labels
    sizes: np.ndarray  #: int32 (N, 2), width and height before resizing
    manifest: dict[str, Any]  #: What is known of them
    folder: Path

    def damaged(self, count: int | None = None) -> list[int]:
        """Return the numbers of the blocks whose pixels are not those that were decoded."""
        sound = _SOUND.setdefault((self.folder, *state(self.folder / "x.npy")), set())
        left = set(range(-(-(len(self.x) if count is None else count) // BLOCK))) - sound
        with concurrent.futures.ThreadPoolExecutor() as pool:  # hashing lets other threads run
            hashes = pool.map(lambda n: _block_sha256(self.x, n), sorted(left))
            same = map(operator.eq, hashes, (self.manifest["blocks"][n] for n in sorted(left)))
            sound |= {n for n, whole in zip(sorted(left), same, strict=True) if whole}
        return sorted(left - sound)


_SOUND: dict[tuple, set[int]] = {}  # blocks that were compared in this process, of a file's state


def arrays_in(folder: Path) -> Arrays | None:
    """Return the arrays decoded into a folder; `None` if missing, incomplete or damaged.

    Labels and sizes are compared with their checksum; pixels are by `Arrays.damaged`.
    """
    if folder.name.endswith(PARTIAL):
        return None
    try:
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
        x = np.load(folder / "x.npy", mmap_mode="c", allow_pickle=False)
        y, sizes = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("y", "sizes"))
        whole = (
            manifest["folder"] == folder.name  # not another one's contents
            and manifest.pop("sha256") == _sha256(json.dumps(manifest).encode())
            and [*x.shape] == manifest["shape"]
            and x.dtype == np.uint8
            and (folder / "x.npy").stat().st_size == x.offset + x.nbytes
            and manifest["labels"] == _labels_sha256(y, sizes)
        )
    except Exception:  # what is damaged raises nearly everything
        return None
    return Arrays(x, y, sizes, manifest, folder) if whole else None


def discard(arrays: Arrays) -> None:
    """Mark decoded images as damaged, so that they are decoded again."""
    with contextlib.suppress(OSError):
        (arrays.folder / _MANIFEST).rename(arrays.folder / f"{_MANIFEST}.damaged")


def _sha256(*parts: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _block_sha256(x: np.ndarray, number: int) -> str:
    return _sha256(np.ascontiguousarray(x[number * BLOCK : (number + 1) * BLOCK]).data)


def _labels_sha256(y: np.ndarray, sizes: np.ndarray) -> str:
    shapes = f"{y.dtype} {y.shape} {sizes.dtype} {sizes.shape}"
    return _sha256(shapes.encode(), *(np.ascontiguousarray(part).data for part in (y, sizes)))


def contents(files: Sequence[str], memory: Path) -> list[str]:
    """Return the SHA-256 of files, reading those that changed since they were last read.

    Args:
        memory: File of earlier findings; a file of the same size, place and times is the same.

    Raises:
        OSError: If a file cannot be read.
    """
    try:
        kept = {k: v for k, v in json.loads(memory.read_text("utf-8")).items() if len(v) == 6}
    except UNREADABLE:
        kept = {}
    states = {file: [*state(Path(file))] for file in files}
    changed = [file for file in states if kept.get(file, [])[:-1] != states[file]]
    if changed:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            hashes = pool.map(file_sha256, map(Path, changed))
            kept |= {file: [*states[file], sha] for file, sha in zip(changed, hashes, strict=True)}
        with contextlib.suppress(OSError):  # then they are read again the next time
            memory.parent.mkdir(parents=True, exist_ok=True)
            atomic.sweep(memory.parent)
            atomic.write(memory, json.dumps(kept))
    return [kept[file][-1] for file in files]


def decode(
    folder: Path,
    split: Split,
    rows: np.ndarray,
    transform: Transform,
    *,
    note: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    progress: bool = True,
    title: str = "decode",
) -> Arrays:
    """Decode rows of a split into a folder, with a `note` in its manifest, unless decoded before.

    Of several processes that ask for the same folder, the first decodes and the others wait.

    Args:
        folder: Where the arrays go.
        split: Images of the data set.
        rows: (N,) which of its images, in the order in which to keep them.
        transform: Of each image.
        note: Further entries of the manifest.
        jobs: Threads; `None` is one a core, and one alone for few images.
        progress: Whether to show a bar.
        title: Name of the bar.

    Raises:
        BadImagesError: If images cannot be decoded; it names all of them, up to twenty.
        TasklabError: If the disk is too small or cannot be written. What was decoded
            is kept for the next call.
    """
    if arrays := arrays_in(folder):
        return arrays
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        what = "%s: waiting for another process that decodes the same images"
        waiting = functools.partial(_log.warning, what, title)
        with atomic.alone(folder.with_name(f"{folder.name}.lock"), waiting):
            if arrays := arrays_in(folder):
                return arrays
            _clear(folder)  # it is damaged, or it would be returned
            if folder.exists():
                raise TasklabError(f"{folder} holds other files than decoded images: move them.")
            job = Job(_work(folder), split, rows, transform)
            if not job.begun():
                _clear(job.work)
                check_space(folder.parent, needed(folder, len(rows), transform))
                job.begin()
            hashes, seconds = job.run(jobs, progress, title)
            _finish(job, folder, hashes, seconds, note or {})
    except OSError as error:
        raise TasklabError(
            f"cannot write decoded images to {folder.parent}: {error.strerror or error}. Choose "
            "another folder with TASKLAB_DATA, or free some space."
        ) from error
    if (arrays := arrays_in(folder)) is None:
        raise TasklabError(f"{folder} was damaged while it was written.")
    return arrays


def needed(folder: Path, images: int, transform: Transform) -> int:
    """Return the further bytes that decoded images take on the disk; 0 if they are decoded.

    Args:
        folder: Of the decoded images.
        images: Number of images.
        transform: Gives their height and width.
    """
    if arrays_in(folder):
        return 0
    taken = 0
    with contextlib.suppress(OSError):  # begun before; a file has holes where nothing is yet
        taken = getattr((_work(folder) / "x.npy").stat(), "st_blocks", 0) * 512
    return max(0, images * 3 * transform.side**2 - taken)


def check_space(folder: Path, needed: int) -> None:
    """Raise a `TasklabError` if that many bytes do not fit on the disk of a folder."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if needed > (free := shutil.disk_usage(there).free):
        raise TasklabError(
            f"{needed / 1e9:.1f} GB are needed in {folder} and {free / 1e9:.1f} GB are free. "
            "Choose another folder with TASKLAB_DATA."
        )


def _clear(folder: Path) -> None:
    """Remove the files of a decoding, and its folder if it is empty then."""
    for name in _FILES:
        atomic.remove(folder / name)
    with contextlib.suppress(OSError):  # not there, or somebody else's files are in it
        folder.rmdir()


def _work(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{PARTIAL}")


def _finish(
    job: Job, folder: Path, hashes: Sequence[str], seconds: float, note: Mapping[str, Any]
) -> None:
    """Write the manifest, and rename the folder to its final name."""
    transform, x = job.transform.description(), np.load(job.work / "x.npy", mmap_mode="r")
    what = [VERSION, transform, job.rows.tolist(), job.labels.tolist(), hashes]
    manifest = {
        "folder": folder.name, "version": VERSION, "images": len(job), "shape": [*x.shape],
        "transform": transform, "digest": _sha256(json.dumps(what).encode()),
        "seconds": round(seconds, 2), "pillow": PIL.__version__,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
        "blocks": [_block_sha256(x, n) for n in range(-(-len(job) // BLOCK))],
        "labels": _labels_sha256(job.labels, np.load(job.work / "sizes.npy")),
        **note,
    }  # fmt: skip
    manifest = json.loads(json.dumps(manifest))
    manifest["sha256"] = _sha256(json.dumps(manifest).encode())
    atomic.write(job.work / _MANIFEST, json.dumps(manifest, indent=1))
    for name in (DONE, JOB):
        (job.work / name).unlink()
    atomic.publish(job.work, folder)
