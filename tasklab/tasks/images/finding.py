"""Find the images of a task on this machine, list missing ones, and plan its splits."""

from __future__ import annotations

import dataclasses
import urllib.request
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import constants

from tasklab.errors import TasklabError
from tasklab.storage import fetching, hub
from tasklab.tasks.images import layouts, trees
from tasklab.tasks.images.checks import checked, facts
from tasklab.tasks.images.formats import Split
from tasklab.tasks.suites import Source, Task, paper_data_sets

SHARE, MOST = 0.1, 5000  # of the training images, for validation: the papers' protocol
TEST_SHARE = 0.2  # of your own images, where they are in no splits
CONVERTED = "refs/convert/parquet"  # the hub's own copy of data sets in other formats
_SEED = 0


@dataclasses.dataclass(frozen=True, eq=False)
class DataSet:
    """The data of a task on this machine, with labels in the task's order."""

    folder: Path
    splits: dict[str, Split]  #: `train`, `test` and perhaps `val`, or `all`
    #: For the manifest: format, folder, and the hub's revision if it is from there.
    origin: dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Images of a split of ours: `rows` of a split of the data, in the stored order.

    The order is random (seed 0), so that the first n images are a sample.
    """

    split: Split
    rows: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """Labels (n,), in the task's order."""
        return self.split.labels[self.rows]


def find(task: Task, root: Path | None = None) -> DataSet:
    """Return the data of a task."""
    source, problems = task.place, []
    places = candidates(source, root)
    for folder in places:
        try:
            if splits := splits_in(source, folder):
                splits = checked(task, splits, folder)
                origin = {"format": ", ".join(sorted({split.kind for split in splits.values()}))}
                return DataSet(folder, splits, {**origin, "folder": str(folder), **_hub_of(folder)})
        except TasklabError as error:
            problems.append(str(error))
    raise TasklabError(problems[0] if problems else f"{task.name}: {_advice(source, root, places)}")


def splits_in(source: Source, folder: Path) -> dict[str, Split]:
    """Return the splits in a folder, by the data set's own names, or `{}`.

    Of the control task only the folder of its own split is read: ImageNet has more than a million
    training images, and none is used.
    """
    name = source.data_set or ""
    more: Any = {"config": _config(source), "image": source.image, "label": source.label}
    for word in paper_data_sets()[name].get("splits", {}).get("test", ()) if name else ():
        if (own := folder / word).is_dir():
            if images := layouts.splits_in(own, name, **more).get("all"):
                return {trees.SPLITS[word]: images}
            if next(own.rglob("*.parquet"), None) is None:
                return {}
    return layouts.splits_in(folder, name, **more)


def plan(task: Task, data: DataSet) -> dict[str, Part]:
    """Return which images make the splits `train`, `val` and `test`.

    Validation is 10 % of train, at most 5,000 images, drawn as PyTorch's `random_split` does with
    seed 0, which is the papers' protocol; EuroSAT has validation images of its own. The control
    task trains nothing: a tenth of its images, at most 5,000, choose coefficients, and the others
    report. Of your own images without splits, a fifth are for the test; a class that this leaves
    without a training image gets one in exchange.
    """
    splits, sizes = data.splits, facts(task).get("sizes", {})
    if task.control:
        rows = _shuffled(len(splits["test"]))
        cut = len(rows) - _held_out(len(rows))
        return {"val": Part(splits["test"], rows[cut:]), "test": Part(splits["test"], rows[:cut])}
    if "all" in splits:
        whole, rows = splits["all"], _shuffled(len(splits["all"]))
        test = sizes.get("test", max(1, int(len(rows) * TEST_SHARE)))
        rest, tested = rows[: len(rows) - test], rows[len(rows) - test :]
        cut = max(0, len(rest) - sizes.get("val", _held_out(len(rest))))
        parts = _teach_all(task, whole, rest[:cut], rest[cut:], tested)
        return dict(zip(("train", "val", "test"), parts, strict=True))
    train, test = splits["train"], splits["test"]
    rows, tested = _shuffled(len(train)), Part(test, _shuffled(len(test)))
    if "val" in splits:
        own = splits["val"]
        return {"train": Part(train, rows), "val": Part(own, _shuffled(len(own))), "test": tested}
    cut = len(rows) - _held_out(len(rows))
    parts = _teach_all(task, train, rows[:cut], rows[cut:])
    return {"train": parts[0], "val": parts[1], "test": tested}


def _teach_all(task: Task, split: Split, train: np.ndarray, *others: np.ndarray) -> list[Part]:
    """Order a split so that its first part has an image of each class.

    A draw that already does so stays; else an image of the missing class and one of the most
    frequent class are swapped.
    """
    labels, rows = split.labels, [train.copy(), *(other.copy() for other in others)]
    classes = np.unique(labels)
    if facts(task):  # of known sizes, many images a class
        return [Part(split, one) for one in rows]
    if len(train) < len(classes):
        raise TasklabError(
            f"{task.name} has {len(labels)} images of {len(classes)} classes, which leaves "
            f"{len(train)} to train on, besides those for validation and test. Each class needs "
            "one there at least: add images."
        )
    for label in np.setdiff1d(classes, labels[train]):
        other = next(one for one in rows[1:] if label in labels[one])
        there = np.flatnonzero(labels[other] == label)[0]
        here = np.flatnonzero(labels[rows[0]] == np.bincount(labels[rows[0]]).argmax())[-1]
        rows[0][here], other[there] = other[there], rows[0][here]
    return [Part(split, one) for one in rows]


def _held_out(count: int) -> int:
    return max(1, min(MOST, int(count * SHARE)))


def _shuffled(count: int) -> np.ndarray:
    import torch  # here: what is on this machine can be told without it

    generator = torch.Generator().manual_seed(_SEED)
    return torch.randperm(count, generator=generator).numpy()


def _config(source: Source) -> str | None:
    known = paper_data_sets()[source.data_set]["hub"] if source.data_set else {}
    return known.get("config") if known else source.config


def _on_the_hub(task: Task) -> dict[str, Any]:
    usual = {"repo": task.place.hub, "revision": task.place.revision}
    return facts(task)["hub"] if facts(task) else usual


def candidates(source: Source, root: Path | None = None) -> list[Path]:
    """Return folders that may hold the data, the user's before the hub's cache.

    Names are compared without case, and searched again within the folders found, since archives
    often contain a folder of the same name.
    """
    if source.folder is not None:
        return [Path(source.folder).expanduser()]
    if source.data_set is None:
        return cached(str(source.hub), source.revision)
    entry = paper_data_sets()[source.data_set]
    repository = entry["hub"]["repo"]
    if root is None or not Path(root).is_dir():
        return cached(repository)
    named = _named(entry["folders"], Path(root))
    cloned = [path for path in [Path(root, repository)] if path.is_dir()]
    inner = [path for folder in named for path in _named(entry["folders"], folder)]
    return [*named, *cloned, *inner, *cached(repository)]


def _named(names: Sequence[str], root: Path) -> list[Path]:
    order = [name.lower() for name in names]
    try:
        folders = [one for one in root.iterdir() if one.name.lower() in order and one.is_dir()]
    except OSError as error:
        raise TasklabError(f"{root} cannot be read ({error.strerror}).") from error
    return sorted(folders, key=lambda one: (order.index(one.name.lower()), one.name))


def cached(repository: str, revision: str | None = None) -> list[Path]:
    """Return snapshots of a data set in the hub's cache: main first, or only the given revision."""
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

    Only parquet files and the card are fetched, and no script is run. A data set in another format
    is taken from the copy that the hub makes of it (`refs/convert/parquet`).
    """
    repository = _on_the_hub(task)["repo"]
    if repository is None:
        raise TasklabError(f"{task.name} is a folder of yours: there is nothing to fetch.")
    if why := unreachable():
        raise TasklabError(
            f"{task.name} cannot be fetched: {why}. With a network, `hf download {repository} "
            "--repo-type dataset` gets it; without one, copy a folder of its images here."
        )
    try:
        revision, sizes = _wanted(task)
        for file in sizes:
            at = fetching.fetch(repository, file, revision=revision, kind="dataset")
        return at.parents[file.count("/")]
    except fetching.UnreachableError as error:
        raise TasklabError(
            f"{task.name} cannot be fetched ({error.problem}). "
            f"{facts(task).get('login', f'Look at {repository} on the hub.')}"
        ) from error


def size(task: Task) -> int | None:
    """Return the bytes that `fetch` would download; `None` if the hub does not state them."""
    try:
        return sum(_wanted(task)[1].values())
    except TasklabError:
        return None


def _wanted(task: Task) -> tuple[str | None, dict[str, int]]:
    """Return the revision on the hub that has a task's parquet files, and their bytes."""
    data = _on_the_hub(task)
    for revision in (data.get("revision"), CONVERTED):
        listed = fetching.listing(data["repo"], revision, "dataset")
        if wanted := wanted_files([*listed], _config(task.place), _needed(facts(task))):
            return revision, {file: listed[file].size for file in wanted if file in listed}
    raise TasklabError(
        f"{data['repo']} has no parquet files of a split named train, test or validation. Data-set "
        "scripts are not run: extract its images into a folder per class, and use that folder."
    )


def unreachable() -> str | None:
    """Return why the hub cannot be asked, or `None` if it answers, if only with a refusal."""
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    why = hub.unreachable(request, fetching.PATIENCE)
    if why and ("HTTP Error 4" in why or "CERTIFICATE" in why):  # the client may have what it takes
        return None
    return f"the hub ({constants.ENDPOINT}) cannot be reached ({why})" if why else None


def _needed(entry: dict[str, Any]) -> set[str]:
    if not entry:
        return set()
    own = entry.get("splits", {})
    names = [one for name in entry["sizes"] for one in own.get(name, [name])]
    return {trees.SPLITS[name] for name in names} | ({"val"} if entry.get("merge") else set())


def wanted_files(
    listed: Sequence[str], config: str | None, splits: Collection[str] = ()
) -> list[str]:
    """Return the files to fetch: parquet files of a configuration, and the card.

    The files of all our splits, or of `splits` alone if none of these is missing.

    Args:
        listed: Files of the repository.
        config: Name of the configuration; `None` for all.
        splits: Names of the splits that are needed.
    """
    files = [name for name in listed if name.endswith(".parquet") and trees.split_of(name)]
    if config and any(config in name.split("/") for name in files):
        files = [name for name in files if config in name.split("/")]
    if splits and {trees.split_of(name) for name in files}.issuperset(splits):
        files = [name for name in files if trees.split_of(name) in splits]
    return [*files, "README.md"] if files else []


def _advice(source: Source, root: Path | None, places: Sequence[Path]) -> str:
    if source.folder is not None:
        return f"{source.folder} has {NO_IMAGES}."
    if source.data_set is None:
        return (
            f"it is not in the hub's cache: `hf download {source.hub} --repo-type dataset` gets it."
        )
    entry = paper_data_sets()[source.data_set]
    place = (root or Path("<data_root>")) / entry["folders"][0]
    note = "".join(f" {entry[key]}" for key in ("gone", "login") if key in entry)
    get = (
        f"`python -m tasklab decode paper --task {source.data_set} --fetch` gets "
        f"{entry['hub']['repo']} from the hub"
    )
    if places:
        return (
            f"found {places[0]}, but no known layout in it; looked for parquet files with train, "
            f"validation or test in their names, {entry['layout']}, and folders of classes, in "
            f"train/ and test/ or in no splits. {get}.{note}"
        )
    return (
        f"not on this machine. {get}; or put it into {place} (parquet files, torchvision's layout, "
        f"or a folder per class).{note}"
    )


NO_IMAGES = (
    "no images in folders, one per class (or train/ and test/ with such folders), and no parquet "
    "files"
)


def _hub_of(folder: Path) -> dict[str, str]:
    if folder.parent.name != "snapshots":
        return {}
    repository = folder.parent.parent.name.removeprefix("datasets--").replace("--", "/")
    return {"hub": repository, "revision": folder.name}
