"""The commands `list` and `fetch`: names that parameters can take, and models' weights."""

from __future__ import annotations

from pathlib import Path

import tyro

import tasklab
from tasklab.analyses.merging.registry import METHODS
from tasklab.chapters import CHAPTERS
from tasklab.errors import choose, path, texts
from tasklab.models.zoo import GROUPS, REGISTRY, choose_model, group
from tasklab.progress import begin, columns
from tasklab.tasks.suites import SUITES, suite
from tasklab.tuning.methods import EDITS, TABLE


def list_(what: tyro.conf.Positional[str | None] = None) -> None:
    """Print names, each with what it stands for.

    Args:
        what: models, methods, merges, suites, tasks or chapters. By default all of them.
    """
    names = {"models": models, "methods": methods, "merges": merges}
    names |= {"suites": suites, "tasks": tasks, "chapters": chapters}
    if what is not None:
        choose("table", what, names)
    for name in [what] if what else names:
        print(f"{name}:", *columns(names[name](), 2), sep="\n")


def models() -> list[tuple[str, ...]]:
    """Return the models by group, each with where its weights are from."""
    rows: list[tuple[str, ...]] = []
    for title in GROUPS:
        rows.append((f"-- {title}",))
        for name, spec in REGISTRY.items():
            if group(spec) == title:
                ships = "not shipped, pre-train it" if spec.extra else spec.pretrained
                source = spec.source.removeprefix("shipped with tasklab: ")
                rows.append((name, f"{spec.arch} {ships} ({source})"))
    return rows


def methods() -> list[tuple[str, ...]]:
    """Return the methods, each with what it trains."""
    return [(name, TABLE[name].text) for name in EDITS]


def merges() -> list[tuple[str, ...]]:
    """Return the ways of merging task vectors, each with what it makes of them."""
    return [(name, f"{one.title}: {one.text} (arXiv:{one.paper})") for name, one in METHODS.items()]


def suites() -> list[tuple[str, ...]]:
    """Return the suites, each with how many tasks it has."""
    return [(name, f"{len(suite(name).tasks)} tasks and a control task") for name in SUITES]


def tasks() -> list[tuple[str, ...]]:
    """Return the tasks of all suites, each with what it stands in for."""
    return [
        (
            task.name,
            f"{name}: {len(task.classes)} classes, {'control, ' if task.control else ''}stands in "
            f"for {task.stand_in_for}",
        )
        for name in SUITES
        for task in (*suite(name).tasks, suite(name).control)
    ]


def chapters() -> list[tuple[str, ...]]:
    """Return the chapters, each with its title and the parts that `record` computes."""
    return [(name, f"{one.title}; parts {', '.join(one.parts)}") for name, one in CHAPTERS.items()]


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
        size = sum(value.numel() for value in encoder.params.values()) / 1e6
        print(
            f"{name}: ready; image encoder {size:.1f} M parameters, weights {encoder.weights_hash}"
        )
