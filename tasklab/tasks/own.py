"""Tasks of your own: a folder of images, or a data set of the hub, in one line each.

pets = own.from_folder("pets")
lab = Lab(Parameters(model="vitb32"), own=[pets, own.from_hub("user/name")])
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tasklab import errors
from tasklab.errors import TasklabError, shown
from tasklab.tasks.images import finding
from tasklab.tasks.images.formats import Split
from tasklab.tasks.suites import Source, Task, check_name

TEMPLATES = ("a photo of a {}.", "a photo of the {}.")


def from_folder(
    path: Path | str,
    *,
    name: str | None = None,
    templates: Sequence[str] | str = TEMPLATES,
    classes: Sequence[str] | None = None,
) -> Task:
    """Return a task whose images are in a folder.

    The folder has one folder of images per class, whose name is the class's name, or `train/` and
    `test/` (and perhaps `val/`) with such folders, or parquet files as on the hub. Without a test
    split, a fifth of the images, drawn with seed 0, are for the test; without a validation split,
    a tenth of the training images are.

    Args:
        path: The folder.
        name: Of the task; `None` is the folder's name.
        templates: One or more prompts with one `{}` each, for the class name.
        classes: Names to write into the prompts, in the order of the folders' names; `None` is
            these names, with spaces instead of `_`.

    Raises:
        TasklabError: If there are no images, or the names do not fit.
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
    templates: Sequence[str] | str = TEMPLATES,
    classes: Sequence[str] | None = None,
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
        templates: One or more prompts with one `{}` each, for the class name.
        classes: Names to write into the prompts, in the order of the labels; `None` is the data
            set's own names.
        config: Which of its configurations, if it has several.
        revision: Commit, branch or tag; `None` is the main branch.
        image: Name of the column of images.
        label: Name of the column of labels.

    Raises:
        TasklabError: If it cannot be fetched, or has no images with labels.
    """
    part = r"\w[\w.-]{0,95}"
    if not (isinstance(repository, str) and re.fullmatch(f"{part}/{part}", repository)):
        raise TasklabError(f"a data set of the hub is named owner/name, not {shown(repository)}.")
    named = {"config": config, "revision": revision, "image": image, "label": label}
    for what, text in named.items():
        plain = isinstance(text, str) and re.fullmatch(r"[\w./ -]{1,200}", text)
        if not (plain and ".." not in text or text is None and what in ("config", "revision")):
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
    templates: Sequence[str] | str,
    classes: Sequence[str] | None,
) -> Task:
    """Read the names of the classes from the data and return the task."""
    if isinstance(classes, str):
        raise TasklabError(f"classes= is a list of names, one for each class, not {classes!r}.")
    if not splits:
        raise TasklabError(f"{folder} has {finding.NO_IMAGES}{_why(folder)}.")
    names = {split.names for split in splits.values()}
    if len(names) > 1:
        parts = "; ".join(f"{k}: {', '.join(s.names or ())}" for k, s in splits.items())
        raise TasklabError(f"the splits in {folder} have different classes: {parts}.")
    (own_names,) = names
    classes = None if classes is None else errors.texts("classes", classes)
    if own_names is None:
        if classes is None:
            raise TasklabError(f"the files in {folder} do not name their classes: give classes=.")
        own_names = tuple(map(str, range(len(classes))))
    if classes is not None and len(classes) != len(own_names):
        raise TasklabError(
            f"{folder} has {len(own_names)} classes ({', '.join(own_names)}), not {len(classes)}."
        )
    words = tuple(classes or (one.replace("_", " ") for one in own_names))
    same = [one for one, word in zip(own_names, words, strict=True) if words.count(word) > 1]
    if same:
        raise TasklabError(
            f"of {name}, the classes {', '.join(map(repr, same))} do not differ in prompts: give "
            "classes=, another name for each."
        )
    return Task(
        name=name,
        classes=words,
        templates=errors.texts("templates", templates),
        stand_in_for="your own",
        source=source,
    )


def _why(folder: Path) -> str:
    """Return why there are no images in a folder, where that can be told."""
    if not folder.exists():
        return ": it does not exist"
    if not folder.is_dir():
        return ": it is a file"
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "__")))
    if any(path.suffix == ".py" for path in inside):
        return "; scripts of data sets are not run"
    classes = [path.name for path in inside if path.is_dir()]
    if len(classes) == 1:
        return f": there is one class, {classes[0]!r}, and a task needs two"
    if inside and not classes:
        return ": there are files, but no folder for each class"
    return ""
