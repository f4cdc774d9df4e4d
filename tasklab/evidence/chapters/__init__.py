"""The chapters, each declared in a module of its own: comparisons and recorded parts.

A new chapter is a module here with a `CHAPTER`, a notebook of the same name in `notebooks` and in
`_toc.yml`, and rows in `records/claims.csv`. The notebooks, the command line, `doctor`, the studies and
the verdicts follow from it. Reading the chapters needs no torch.
"""  # noqa: E501

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from tasklab.errors import TasklabError, choose
from tasklab.evidence.chapters.chapter import Chapter as Chapter
from tasklab.evidence.chapters.chapter import Work as Work
from tasklab.models.zoo import REGISTRY, has_attention

if TYPE_CHECKING:
    from tasklab.bench import Lab, Parameters


def _declared(name: str) -> Chapter:
    """Return the chapter that a module declares."""
    found = getattr(importlib.import_module(f"{__name__}.{name}"), "CHAPTER", None)
    if not isinstance(found, Chapter) or found.name != name:
        raise TasklabError(f"{__name__}.{name} must declare CHAPTER = Chapter(name={name!r}, ...).")
    return found


_ROOM = ("chapter", "opening", "outlook")  # modules that declare no chapter
_modules = [found.name for found in pkgutil.iter_modules(__path__) if found.name not in _ROOM]
CHAPTERS = {
    entry.name: entry for entry in sorted(map(_declared, _modules), key=lambda entry: entry.number)
}


MORE = "_more"  # the end of the name of a chapter's appendix


def chapter(name: str) -> Chapter:
    """Return the chapter of that name, or of its appendix, `tangent_more`."""
    plain = name.removesuffix(MORE) if isinstance(name, str) else name
    choose("chapter", plain, CHAPTERS)
    return CHAPTERS[plain]


def page_of(name: str) -> str:
    """Return which page of a chapter a name is of: `"chapter"`, or `"more"` for its appendix."""
    return "more" if name.endswith(MORE) else "chapter"


def check(name: str, model: str) -> None:
    """Raise a `TasklabError` if a chapter cannot be read with a model."""
    if chapter(name).attention and not has_attention(model):
        able = [one for one in REGISTRY if has_attention(one) and REGISTRY[one].kind == "clip"]
        raise TasklabError(
            f"the chapter {name!r} fine-tunes attention, which model {model!r} does not have: take "
            f"one of {', '.join(able)}."
        )


def open(
    name: str, parameters: Parameters | str | None = None, *, progress: bool = True, **given: Any
) -> Lab:
    """Return the lab of a chapter, after checking its files and counting its runs.

    Args:
        name: Of the chapter, or of its appendix: `"tangent"`, `"tangent_more"`.
        parameters: Of the notebook, or the name of a model.
        progress: Whether to show progress bars and the count of runs.
        **given: Single parameters in place of `parameters`; `tasks`, `own` and `base` as of `Lab`.

    Raises:
        TasklabError: If weights, also of models that the chapter compares with its own, or images
            are missing, memory or disk do not suffice, or the chapter cannot be read with the
            model; it names all that is missing, within seconds.
    """
    from tasklab.bench.parameters import Parameters
    from tasklab.evidence.chapters.opening import lab_of  # torch

    more = {key: given.pop(key) for key in ("tasks", "own", "base") if key in given}
    return lab_of(name, Parameters.read(parameters, given), progress=progress, **more)
