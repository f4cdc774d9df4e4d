"""Tasks of your own: a folder of images, or a data set of the hub, in one line each.

pets = own.from_folder("pets")
lab = Lab(Parameters(model="vitb32"), own=[pets, own.from_hub("user/name")])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tasklab import errors
from tasklab.errors import TasklabError, abridged, shown
from tasklab.tasks.images import finding, trees
from tasklab.tasks.images.archives import ARCHIVES
from tasklab.tasks.images.formats import Split
from tasklab.tasks.suites import Source, Task, check_differ, check_name
from tasklab.tasks.wording import Templates, Words, as_words, by_order, templates_for, words_for

TEMPLATES = ("a photo of a {}.", "a photo of the {}.")


def from_folder(
    path: Path | str,
    *,
    name: str | None = None,
    templates: Templates = TEMPLATES,
    classes: Words | None = None,
) -> Task:
    """Return a task whose images are in a folder.

    The folder has one folder of images per class, whose name is the class's name; or `train/` and
    `test/` (and perhaps `val/`) with such folders; or these splits in each class; or images with
    lists of their classes (`tasks.images.lists`); or parquet files as on the hub; or an archive
    that torchvision's class reads (`tasks.images.archives`). Without a test split, the validation
    split is the test; without either, a fifth of the images, drawn with seed 0. Without a
    validation split, a tenth of the training images validate.

    Args:
        path: The folder.
        name: Of the task; `None` is the folder's name.
        templates: One or more prompts with one `{}` each, for the class name, or functions of it;
            or a mapping from each class to its prompts.
        classes: Names to write into the prompts: a list in the alphabetical order of the folders,
            if there is but one such order, or a mapping from folders to names; `None` is the
            folders' names, with spaces instead of `_`.
    """
    folder = errors.path("path", path).absolute()
    if ".." in folder.parts:
        folder = folder.resolve()  # a task is named after it; a link keeps its own name
    name = folder.name if name is None else name
    check_name(name)
    source = Source(folder=folder)
    return _task(source, folder, finding.splits_in(source, folder), name, templates, classes)


def from_hub(
    repository: str,
    *,
    name: str | None = None,
    templates: Templates = TEMPLATES,
    classes: Words | None = None,
    config: str | None = None,
    revision: str | None = None,
    image: str = "image",
    label: str = "label",
) -> Task:
    """Return a task whose images are a data set of the Hugging Face hub, fetched if need be.

    Args:
        repository: `owner/name`. Its files must be parquet, on its main branch or in the copy that
            the hub makes of data sets in other formats; its scripts are not run.
        name: Of the task; `None` is the repository's name without the owner.
        templates: One or more prompts with one `{}` each, for the class name, or functions of it;
            or a mapping from each class to its prompts.
        classes: Names to write into the prompts, in the order of the labels, or a mapping from
            labels or the data set's own names; `None` is these names.
        config: Which of its configurations, if it has several.
        revision: Commit, branch or tag; `None` is the main branch.
        image: Name of the column of images.
        label: Name of the column of labels.
    """
    part = r"\w[\w.-]{0,95}"
    if not (isinstance(repository, str) and re.fullmatch(f"{part}/{part}", repository)):
        raise TasklabError(f"a data set of the hub is named owner/name, not {shown(repository)}.")
    named = {"config": config, "revision": revision, "image": image, "label": label}
    for what, text in named.items():
        plain = isinstance(text, str) and re.fullmatch(r"[\w./ -]{1,200}", text)
        if not (plain and ".." not in str(text) or text is None and what in ("config", "revision")):
            raise TasklabError(f"{what}= cannot be {shown(text)}: give its name on the hub.")
    source = Source(hub=repository, config=config, revision=revision, image=image, label=label)
    name = repository.partition("/")[2] if name is None else name
    check_name(name)
    there = finding.cached(repository, revision)
    candidates = ((one, splits) for one in there if (splits := finding.splits_in(source, one)))
    folder, splits = next(candidates, (None, {}))
    if folder is None:  # nothing is there, or only a script
        asking = Task(
            name=name, classes=("a", "b"), templates=("{}",), stand_in_for="", source=source
        )
        try:
            folder = finding.fetch(asking)
        except TasklabError as error:
            if not there:
                raise
            problem = f"{there[0]} has {finding.NO_IMAGES}{_why(there[0])}."
            raise TasklabError(f"{problem} {error}") from error
        splits = finding.splits_in(source, folder)
    return _task(source, folder, splits, name, templates, classes)


def _task(
    source: Source,
    folder: Path,
    splits: Mapping[str, Split],
    name: str,
    templates: Templates,
    classes: Words | None,
) -> Task:
    if not splits:
        raise TasklabError(f"{folder} has {finding.NO_IMAGES}{_why(folder)}.")
    if {"train", "val"} <= splits.keys() and "test" not in splits:
        trees.note(f"{folder} has no test split: its validation images are the test.")
    names = {split.names for split in splits.values()}
    if len(names) > 1:
        parts = "; ".join(f"{k}: {', '.join(s.names or ('numbers',))}" for k, s in splits.items())
        raise TasklabError(f"the splits in {folder} have different classes: {parts}.")
    (own_names,) = names
    if own_names is None and classes is None:
        raise TasklabError(f"the files in {folder} do not name their classes: give classes=.")
    if classes is None:
        words = tuple(map(as_words, own_names or ()))
        if all(re.match(r"-?n?\d", word) for word in words):
            trees.note(
                f"{folder}: prompts call the classes {abridged(words, 4)}: classes= names them."
            )
    else:
        words = words_for(own_names, classes, str(folder))
        if pairs := by_order(own_names, classes, words):
            trees.note(f"{folder}: the list classes= is in the order of: {abridged(pairs, 12)}.")
    check_differ(name, words, own_names)
    prompts = templates_for(own_names, words, templates, str(folder))
    return Task(name=name, classes=words, templates=prompts, stand_in_for="your own", source=source)


def _why(folder: Path) -> str:
    if not folder.exists():
        return ": it does not exist"
    if not folder.is_dir():
        return ": it is a file"
    inside = [path for path in sorted(folder.iterdir()) if trees.visible(path.name)]
    folders, files = ([p for p in inside if p.is_dir() is kind] for kind in (True, False))
    folders = [p for p in folders if trees.count(p, 1)] or folders
    kinds = {file.suffix.lower() for file in files}
    said = ""
    if len(folders) == 1:
        inner = [one.name for one in trees.folders_in(folders[0])]
        said = f": there is one class with images, {folders[0].name!r}, and a task needs two"
        if len(inner) > 1:
            said = f": there is one folder, {folders[0].name!r}; if its folders "
            said += f"({abridged(inner, 4)}) are the classes or splits, give its path"
    elif folders:
        said = f": no image is in its folders ({abridged((one.name for one in folders), 4)})"
    elif files:
        listed = abridged((kind or "no suffix" for kind in sorted(kinds)), 6)
        said = f": there are files ({listed}), but no folder for each class"
    tops = {archive.mark.partition("/")[0]: name for name, archive in ARCHIVES.items()}
    for name in (tops[one.name] for one in (folder, *folders) if one.name in tops):
        said += f"; torchvision reads {name} at {ARCHIVES[name].mark}, where nothing is"
    if ".py" in kinds:
        said += "; scripts of data sets are not run"
    if kinds & {".csv", ".tsv"}:
        said += "; no list (.csv, .tsv) has a column of names of images that are there"
    if kinds & {".json", ".jsonl"}:
        said += "; lists of labels are read from .csv and .tsv files alone"
    if any(file.suffix == ".arrow" for one in (folder, *folders) for file in one.iterdir()):
        said = (
            "; it is a data set that `datasets` wrote by save_to_disk: write it as parquet, by "
            'load_from_disk(FOLDER)["train"].to_parquet("NEW/train.parquet"), and so each split'
        )
    hidden = [one.name for one in sorted(folder.glob(".*/")) if trees.count(one, 1)]
    if hidden:
        said += f"; folders whose names begin with a dot are left out ({abridged(hidden, 4)})"
    if ".parquet" in kinds:
        said += "; parquet files need train, test or validation in their names"
    return said


def listed(own: Iterable[Task] | Task) -> tuple[Task, ...]:
    """Return tasks of your own as a tuple, or raise if one is none."""
    listed = (own,) if isinstance(own, Task) else own
    if isinstance(listed, str) or not isinstance(listed, Iterable):
        listed = (listed,)
    listed = tuple(listed)
    for one in listed:
        if not isinstance(one, Task):
            raise TasklabError(f"own must be tasks, as own.from_folder returns, not {shown(one)}.")
    return listed
