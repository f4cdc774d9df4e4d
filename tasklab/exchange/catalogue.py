"""The table of published task vectors, `published.json`; reading it needs no torch."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasklab.errors import choose, texts
from tasklab.storage import shipped
from tasklab.tasks.suites import suite

PREFIX = "published:"  # before a source, in the parameter `vectors`
_TABLE = Path(__file__).with_name("published.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """One published task vector."""

    source: str  #: Name of the entry in `published.json`
    repository: str  #: On the hub
    files: tuple[str, ...]  #: Paths in the repository, the checkpoint first
    model: str  #: Short name
    task: str  #: Of suite `paper`
    mode: str  #: What its publisher calls the method
    method: str  #: One of `methods.METHODS`
    licence: str  #: Of the files; empty where it is not known
    recipe: str  #: How it was fine-tuned; empty where it is not known
    sha256: str | None = None  #: Of the checkpoint, where it is known beforehand

    @property
    def name(self) -> str:
        """Name of its entry in the store."""
        return f"{self.source}_{self.task}_{self.mode}"


@functools.cache
def declared() -> Mapping[str, Mapping[str, Any]]:
    """Return the declared sources by name."""
    read = json.loads(shipped.content(_TABLE))
    return {name: {**read.get(entry.get("like"), {}), **entry} for name, entry in read.items()}


def entry(source: str) -> Mapping[str, Any]:
    """Return a declared source, or raise a `TasklabError` with the nearest name."""
    choose("source of published vectors", source, declared())
    return declared()[source]


def source_of(text: object) -> str:
    """Return the source that the parameter `vectors` names.

    >>> source_of("published:orthoreg")
    'orthoreg'
    """
    every = [f"{PREFIX}{name}" for name in declared()]
    choose("vectors", text, every)
    return str(text).removeprefix(PREFIX)


def vectors(
    source: str,
    model: str,
    tasks: Sequence[str] | str | None = None,
    methods: Sequence[str] | str | None = None,
) -> list[Published]:
    """List the published vectors of a model.

    Args:
        source: Name of a source in the table.
        model: One of its models.
        tasks: Of the suite `paper`; by default all.
        methods: As the source offers them; by default all.

    Raises:
        TasklabError: If there is no such source, model, task or method.
    """
    about = entry(source)
    told = {name: about[name] for name in ("licence", "recipe")}
    choose(f"model with vectors of {source},", model, about["models"])
    offered = offers(source, model)
    named = suite("paper").names if tasks is None else texts("tasks", tasks, suite("paper").names)
    wanted = tuple(offered) if methods is None else texts("methods", methods, offered)
    found = []
    for mode, one in about["modes"].items():
        for task in named if one["method"] in wanted else ():
            theirs = about["tasks"]
            words = {
                "model": about["models"][model],
                "task": theirs[task] if isinstance(theirs, dict) else theirs.format(task=task),
            }
            files = tuple(file.format(**words) for file in one["files"])
            repository = about["repository"].format(**words)
            told["sha256"] = about.get("sha256", {}).get(f"{repository}/{files[0]}")
            told |= {"source": source, "repository": repository, "files": files, "model": model}
            found.append(Published(**told, task=task, mode=mode, method=one["method"]))
    return found


def offers(source: str, model: str) -> tuple[str, ...]:
    """Return the methods of a source's vectors of a model; empty for other models."""
    about = entry(source)
    return tuple(one["method"] for one in about["modes"].values()) * (model in about["models"])
