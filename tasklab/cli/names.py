"""The commands `list` and `fetch`: names that parameters can take, and models' weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tyro

import tasklab
from tasklab.analyses.merging.registry import METHODS, NEWER, SOLVED
from tasklab.errors import choose, path, texts
from tasklab.evidence.chapters import CHAPTERS
from tasklab.models.zoo import GROUPS, REGISTRY, choose_model, group, text_suite
from tasklab.progress import begin, columns
from tasklab.tasks.suites import SUITES, suite
from tasklab.tuning.methods import EDITS, TABLE

TABLES = ("models", "methods", "merges", "suites", "tasks", "chapters")


def list_(what: tyro.conf.Positional[str | None] = None) -> None:
    """Print names with their meaning.

    Args:
        what: models, methods, merges, suites, tasks or chapters. By default all of them.
    """
    if what is not None:
        choose("table", what, TABLES)
    for table in [what] if what else TABLES:
        print(f"{table}:", *columns(rows(table), 2), sep="\n")


def rows(table: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of one of `TABLES`: a name and its meaning."""
    match table:
        case "models":
            for title in GROUPS:
                yield (f"-- {title}",)
                for name, spec in REGISTRY.items():
                    if group(spec) == title:
                        ships = "not shipped, pre-train it" if spec.extra else spec.pretrained
                        source = spec.source.removeprefix("shipped with tasklab: ")
                        yield name, f"{spec.arch} {ships} ({source})"
        case "methods":
            yield from ((name, TABLE[name].text) for name in EDITS)
        case "merges":
            for name, one in {**METHODS, **NEWER, **SOLVED}.items():
                yield name, f"{one.title}: {one.text} ({one.source})"
        case "suites":
            for name in SUITES:
                yield name, f"{len(suite(name).tasks)} tasks and a control task"
        case "tasks":
            for name, task in ((n, t) for n in SUITES for t in (*suite(n).tasks, suite(n).control)):
                kind = "control, stands" if task.control else "stands"
                about = f"{name}: {len(task.classes)} classes, {kind} in for {task.stand_in_for}"
                yield task.name, about
        case "chapters":
            for name, chapter in CHAPTERS.items():
                yield name, f"{chapter.title}; parts {', '.join(chapter.parts)}"


def fetch(
    model: tyro.conf.Positional[tuple[str, ...]], *, weights: Path | str | None = None
) -> None:
    """Load models, which fetches their weights.

    Args:
        model: Short names, see `tasklab list models`.
        weights: A checkpoint file to use.
    """
    names = texts("MODEL", model)
    file = None if weights is None else path("--weights", weights, "file")
    for name in names:
        choose_model(name)
    begin(f"loading {', '.join(names)}.")
    for name in names:
        clip = tasklab.models.load(name, weights=file)
        encoder = clip.encoder
        kind = "text" if text_suite(name) else "image"
        size = sum(value.numel() for value in encoder.params.values()) / 1e6
        print(
            f"{name}: ready; {kind} encoder {size:.1f} M parameters, weights {encoder.weights_hash}"
        )
