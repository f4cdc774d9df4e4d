"""The commands `list` and `fetch`: names that parameters can take, and models' weights."""

from __future__ import annotations

from pathlib import Path

import tyro

from tasklab.errors import path, texts, unknown
from tasklab.models.zoo import GROUPS, REGISTRY, choose_model, group
from tasklab.progress import begin
from tasklab.tasks.suites import SUITES, suite


def list_(what: tyro.conf.Positional[str | None] = None) -> None:
    """Print names, each with what it stands for.

    Args:
        what: models, methods, merges, suites, tasks or chapters. By default all of them.
    """
    tables = {
        "models": models,
        "methods": methods,
        "merges": merges,
        "suites": suites,
        "tasks": tasks,
        "chapters": chapters,
    }
    if what is not None and what not in tables:
        raise unknown("list", what, tables)
    for name in [what] if what else tables:
        rows = list(tables[name]())
        width = max(len(row) for row, text in rows if text)
        print(f"{name}:")
        for row, text in rows:
            print(f"  {row:<{width}}  {text}".rstrip())


def models() -> list[tuple[str, str]]:
    """Return the models by group, each with where its weights are from."""
    rows = []
    for title in GROUPS:
        rows.append((f"-- {title}", ""))
        for name, spec in REGISTRY.items():
            if group(spec) == title:
                ships = "not shipped, pre-train it" if spec.extra else spec.pretrained
                source = spec.source.removeprefix("shipped with tasklab: ")
                rows.append((name, f"{spec.arch} {ships} ({source})"))
    return rows


def methods() -> list[tuple[str, str]]:
    """Return the methods, each with what it trains."""
    from tasklab.tuning.methods import EDITS, TABLE

    return [(name, TABLE[name].text) for name in EDITS]


def merges() -> list[tuple[str, str]]:
    """Return the ways of merging task vectors, each with what it makes of them."""
    from tasklab.analyses.merging import METHODS

    return [(name, f"{one.title}: {one.text} (arXiv:{one.paper})") for name, one in METHODS.items()]


def suites() -> list[tuple[str, str]]:
    """Return the suites, each with how many tasks it has."""
    return [(name, f"{len(suite(name).tasks)} tasks and a control task") for name in SUITES]


def tasks() -> list[tuple[str, str]]:
    """Return the tasks of all suites, each with what it stands in for."""
    matches = []
    for name in SUITES:
        for task in (*suite(name).tasks, suite(name).control):
            role = "control, stands in for" if task.control else "stands in for"
            text = f"{name}: {len(task.classes)} classes, {role} {task.stand_in_for}"
            matches.append((task.name, text))
    return matches


def chapters() -> list[tuple[str, str]]:
    """Return the chapters, each with its title and the parts that `record` computes."""
    from tasklab.chapters import CHAPTERS

    return [
        (name, f"{entry.title}; parts {', '.join(entry.parts)}") for name, entry in CHAPTERS.items()
    ]


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
    from tasklab.models import loading  # start-up: torch

    for name in names:
        clip = loading.load(name, weights=file)
        encoder = clip.encoder
        size = sum(value.numel() for value in encoder.params.values()) / 1e6
        print(
            f"{name}: ready; image encoder {size:.1f} M parameters, weights {encoder.weights_hash}"
        )
