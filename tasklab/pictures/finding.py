"""Find the images of a task on this machine, say what is missing, and plan its splits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasklab.errors import TasklabError
from tasklab.pictures import folders
from tasklab.pictures.copies import checked, facts
from tasklab.pictures.formats import Split
from tasklab.tasks import Source, Suite, Task, known

SHARE, MOST = 0.1, 5000  # of the training images, for validation: the papers' protocol
TEST_SHARE = 0.2  # of your own images, where they are in no splits
CONVERTED = "refs/convert/parquet"  # the hub's own copy of data sets in other formats
_SEED = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """The data of a task on this machine, with labels in the task's order.

    Attributes:
        where: The folder.
        splits: `train`, `test` and perhaps `val`, or `all`.
        origin: For the manifest: format, folder, and the hub's revision if it is from there.
    """

    where: Path
    splits: dict[str, Split]
    origin: dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Images of a split of ours: `rows` of a split of the data, in the order that is kept.

    The order is random (seed 0), so that the first n images are a sample.
    """

    split: Split
    rows: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """Labels (n,), in the task's order."""
        return self.split.labels[self.rows]


def find(task: Task, root: Path | None = None) -> Found:
    """Return the data of a task.

    Args:
        task: A task with a source.
        root: Folder of data sets, `data_root`; the hub's cache is searched too.

    Raises:
        TasklabError: If there are none, they are incomplete, or they are not what they should be.
    """
    source, problems = task.source, []
    columns = {"image": source.image, "label": source.label}
    for folder in _candidates(source, root):
        try:
            splits = folders.find(folder, source.known or "", config=_config(source), **columns)
            if splits:
                splits = checked(task, splits, folder)
                return Found(folder, splits, _origin(folder, splits))
        except TasklabError as error:
            problems.append(str(error))
    raise TasklabError(problems[0] if problems else f"{task.name}: {_advice(source, root)}")


def missing(suite: Suite, root: Path | None = None) -> list[str]:
    """Return what is missing or wrong, one line for each task, all of them at once.

    Nothing is fetched or decoded. A task without a source is embedded and never missing.
    """
    lines = []
    for task in (*suite.tasks, suite.control):
        if task.source is not None:
            try:
                find(task, root)
            except TasklabError as error:
                lines.append(str(error))
    return lines


def plan(task: Task, found: Found) -> dict[str, Part]:
    """Return which images make the splits `train`, `val` and `test`.

    Validation is 10 % of train, at most 5,000 images, drawn as PyTorch's `random_split` does with
    seed 0, which is the papers' protocol; EuroSAT has validation images of its own. The control
    task trains nothing: a tenth of its images, at most 5,000, choose coefficients, and the others
    report. Of your own images without splits, a fifth are for the test.
    """
    splits, sizes = found.splits, facts(task).get("sizes", {})
    if task.control:
        rows = _shuffled(len(splits["test"]))
        cut = len(rows) - _held_out(len(rows))
        return {"val": Part(splits["test"], rows[cut:]), "test": Part(splits["test"], rows[:cut])}
    if "all" in splits:
        whole, rows = splits["all"], _shuffled(len(splits["all"]))
        test = sizes.get("test", max(1, int(len(rows) * TEST_SHARE)))
        rest, tested = rows[: len(rows) - test], Part(whole, rows[len(rows) - test :])
        cut = len(rest) - sizes.get("val", _held_out(len(rest)))
        return {"train": Part(whole, rest[:cut]), "val": Part(whole, rest[cut:]), "test": tested}
    train, test = splits["train"], splits["test"]
    rows, tested = _shuffled(len(train)), Part(test, _shuffled(len(test)))
    if "val" in splits:
        own = splits["val"]
        return {"train": Part(train, rows), "val": Part(own, _shuffled(len(own))), "test": tested}
    cut = len(rows) - _held_out(len(rows))
    return {"train": Part(train, rows[:cut]), "val": Part(train, rows[cut:]), "test": tested}


def _held_out(count: int) -> int:
    return max(1, min(MOST, int(count * SHARE)))


def _shuffled(count: int) -> np.ndarray:
    import torch  # here: what is on this machine can be told without it

    generator = torch.Generator().manual_seed(_SEED)
    return torch.randperm(count, generator=generator).numpy()


def _config(source: Source) -> str | None:
    return known()[source.known]["hub"].get("config") if source.known else source.config


def _candidates(source: Source, root: Path | None) -> list[Path]:
    """Return folders that may hold the data, the user's before the hub's cache."""
    if source.folder is not None:
        return [Path(source.folder).expanduser()]
    if source.known is None:
        return cached(source.hub, source.revision)
    entry = known()[source.known]
    hub = entry["hub"]
    names = (*entry["folders"], hub["repo"]) if root is not None else ()
    there = [root / name for name in names if (root / name).is_dir()]
    return [*there, *cached(hub["repo"])]


def cached(repository: str, revision: str | None = None) -> list[Path]:
    """Return snapshots of a data set in the hub's cache: main first, or only the given revision."""
    from huggingface_hub import constants

    base = Path(constants.HF_HUB_CACHE) / f"datasets--{repository.replace('/', '--')}"
    there = {path.name: path for path in sorted((base / "snapshots").glob("*"))}
    first = [revision] if revision else []
    for ref in [revision] if revision else ["main", CONVERTED]:
        file = base / "refs" / ref
        if file.is_file():
            first.append(file.read_text().strip())
    order = first if revision else dict.fromkeys([*first, *there])
    return [there[name] for name in order if name in there]


def fetch(task: Task) -> Path:
    """Download the parquet files of a task from the hub into its cache, and return their folder.

    Only parquet files and the card are fetched; scripts are not, and none is run. A data set in
    another format is taken from the copy that the hub makes of it (`refs/convert/parquet`).

    Raises:
        TasklabError: If it is not of the hub, or cannot be fetched.
    """
    from huggingface_hub import HfApi, snapshot_download

    source, entry = task.source, facts(task)
    hub = entry["hub"] if entry else {"repo": source.hub, "revision": source.revision}
    if hub["repo"] is None:
        raise TasklabError(f"{task.name} is a folder of yours: there is nothing to fetch.")
    try:
        for revision in (hub.get("revision"), CONVERTED):
            place = {"repo_id": hub["repo"], "repo_type": "dataset", "revision": revision}
            wanted = wanted_files(HfApi().list_repo_files(**place), _config(source))
            if wanted:
                return Path(snapshot_download(**place, allow_patterns=wanted))
    except Exception as error:  # the client's errors have no common base
        first = (str(error).strip().splitlines() or [""])[0]
        raise TasklabError(
            f"{task.name} cannot be fetched ({type(error).__name__}: {first}). "
            f"{entry.get('gone', 'Is there a network?')}"
        ) from error
    raise TasklabError(
        f"{hub['repo']} has no parquet files of a split named train, test or validation. Data-set "
        "scripts are not run: extract its images into a folder per class, and use that folder."
    )


def wanted_files(listed: Sequence[str], config: str | None) -> list[str]:
    """Return the files to fetch: parquet files of our splits (and configuration), and the card."""
    files = [name for name in listed if name.endswith(".parquet") and folders.split_of(name)]
    if config and any(config in name.split("/") for name in files):
        files = [name for name in files if config in name.split("/")]
    return [*files, "README.md"] if files else []


def _advice(source: Source, root: Path | None) -> str:
    if source.folder is not None:
        return f"{source.folder} has {NO_IMAGES}."
    if source.known is None:
        return (
            f"it is not in the hub's cache: `hf download {source.hub} --repo-type dataset` gets it."
        )
    entry = known()[source.known]
    place = (root or Path("<data_root>")) / entry["folders"][0]
    note = f" {entry['gone']}" if "gone" in entry else ""
    return (
        f"not on this machine. `python -m tasklab decode paper --task {source.known} --fetch` gets "
        f"{entry['hub']['repo']} from the hub; or put it into {place} (parquet files, "
        f"torchvision's layout, or a folder per class).{note}"
    )


NO_IMAGES = (
    "no images in folders, one per class (or train/ and test/ with such folders), and no parquet "
    "files"
)


def _origin(folder: Path, splits: dict[str, Split]) -> dict[str, Any]:
    kinds = sorted({split.kind for split in splits.values()})
    origin: dict[str, Any] = {"format": ", ".join(kinds), "folder": str(folder)}
    if folder.parent.name == "snapshots":
        origin |= {"hub": folder.parent.parent.name.removeprefix("datasets--").replace("--", "/")}
        origin |= {"revision": folder.name}
    return origin
