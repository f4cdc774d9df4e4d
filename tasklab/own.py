"""Tasks of your own: a folder of images, or a data set of the hub, in one line each.

pets = own.from_folder("pets")
lab = Lab(Parameters(model="vitb32"), own=[pets, own.from_hub("user/name")])
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tasklab.errors import TasklabError
from tasklab.pictures import finding
from tasklab.pictures.folders import find
from tasklab.tasks import Source, Task

TEMPLATES = ("a photo of a {}.", "a photo of the {}.")


def from_folder(
    path: Path | str,
    *,
    name: str | None = None,
    templates: Sequence[str] = TEMPLATES,
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
        templates: Prompts with one `{}` each, for the class name.
        classes: Names to write into the prompts, in the order of the folders' names; `None` is
            these names, with spaces instead of `_`.

    Raises:
        TasklabError: If there are no images, or the names do not fit.
    """
    folder = Path(path).expanduser().absolute()
    return _task(Source(folder=folder), folder, name or folder.name, templates, classes)


def from_hub(
    repository: str,
    *,
    name: str | None = None,
    templates: Sequence[str] = TEMPLATES,
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
        templates: Prompts with one `{}` each, for the class name.
        classes: Names to write into the prompts, in the order of the labels; `None` is the data
            set's own names.
        config: Which of its configurations, if it has several.
        revision: Commit, branch or tag; `None` is the main branch.
        image: Name of the column of images.
        label: Name of the column of labels.

    Raises:
        TasklabError: If it cannot be fetched, or has no images with labels.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise TasklabError(f"a data set of the hub is named owner/name, not {repository!r}.")
    source = Source(hub=repository, config=config, revision=revision, image=image, label=label)
    there = finding.cached(repository, revision)
    name = name or repository.partition("/")[2]
    if not there:
        asking = Task(
            name=name, classes=("a", "b"), templates=("{}",), stand_in_for="", source=source
        )
        there = [finding.fetch(asking)]
    return _task(source, there[0], name, templates, classes)


def _task(
    source: Source,
    folder: Path,
    name: str,
    templates: Sequence[str],
    classes: Sequence[str] | None,
) -> Task:
    """Read the names of the classes from the data and return the task."""
    splits = find(folder, config=source.config, image=source.image, label=source.label)
    if not splits:
        raise TasklabError(f"{folder} has {finding.NO_IMAGES}.")
    names = {split.names for split in splits.values()}
    if len(names) > 1:
        parts = "; ".join(f"{k}: {', '.join(s.names or ())}" for k, s in splits.items())
        raise TasklabError(f"the splits in {folder} have different classes: {parts}.")
    (found,) = names
    if found is None:
        if classes is None:
            raise TasklabError(f"the files in {folder} do not name their classes: give classes=.")
        found = tuple(map(str, range(len(classes))))
    if classes is not None and len(classes) != len(found):
        raise TasklabError(
            f"{folder} has {len(found)} classes ({', '.join(found)}), not {len(classes)}."
        )
    return Task(
        name=name,
        classes=tuple(classes or (one.replace("_", " ") for one in found)),
        templates=tuple(templates),
        stand_in_for="your own",
        source=source,
    )
