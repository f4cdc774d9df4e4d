"""The command `tasklab paper`: the papers' numbers of a model, from download to report."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from tasklab.bench.parameters import Parameters
from tasklab.cli import doctor
from tasklab.cli.chapters import check_book
from tasklab.cli.parsing import Given, settings
from tasklab.errors import TasklabError, path, whole
from tasklab.exchange import catalogue
from tasklab.machine import gib
from tasklab.models.zoo import small, spec
from tasklab.progress import begin

SOURCE = "orthoreg"  # of the vectors, where it has the model


def paper(
    model: tyro.conf.Positional[str],
    given: Annotated[Given, settings("model", preset="full")],
    *,
    train: bool = False,
    source: Path | str | None = None,
    chapter: tuple[str, ...] = (),
    jobs: int | str | None = None,
    dry_run: bool = False,
) -> int:
    """Get weights, images and vectors, execute the chapters, build the report.

    Every step prints first what it lacks, in bytes. Finished work is skipped: the same
    command goes on after an interruption.

    Args:
        model: Short name: vitb32, vitb16, vitl14.
        given: As in a chapter's first code cell.
        train: Fine-tune. By default published vectors are used where they exist.
        source: A folder that holds the published files, in place of the hub.
        chapter: Only this chapter, and no report. By default all.
        jobs: Chapters that run at once.
        dry_run: Only list the steps.
    """
    number = 1 if jobs is None else whole("--jobs", jobs, 1, 1000)
    mirror = None if source is None else path("--source", source, "folder")
    spec(model)
    check_book("paper")
    begin(f"listing what the papers' numbers of {model} need.")  # before parameters import torch
    given, parameters = settled(model, given, train=train)
    from tasklab.cli import paper_steps as steps  # start-up: torch

    work = steps.Work(parameters, given, steps.chosen(chapter), mirror, number)
    needs = work.needs()
    print("\n".join(lines(needs)))
    problem = work.too_full(needs)
    if dry_run:
        print(problem, end="\n" if problem else "")
        return 0
    if problem:
        raise TasklabError(problem)
    left = {one.step for one in needs if not one.done} | {"chapters", "report"}
    for step, do in work.steps().items():
        if step in left:
            print(f"{step}:", flush=True)
            do()
    return 0


def settled(
    model: str, given: dict[str, Any], *, train: bool = False
) -> tuple[dict[str, Any], Parameters]:
    """Return the chapters' parameters, as given and as checked; published vectors, if any.

    Args:
        model: Short name.
        given: Parameters of the command line.
        train: Whether to fine-tune in place of published vectors.

    Raises:
        TasklabError: If a parameter is impossible.
    """
    given = {"preset": "full", **given, "model": model}
    if not small(model):
        given = {"suite": "paper", **given}
    if not train and "vectors" not in given and catalogue.offers(SOURCE, model):
        given["vectors"] = f"{catalogue.PREFIX}{SOURCE}"
    parameters = Parameters(**given)
    for name in {"data_root", "store_root"} & given.keys():  # chapters run in a folder of theirs
        given[name] = str(Path(getattr(parameters, name)).absolute())
    return given, parameters


def lines(needs: Sequence[doctor.needs.Need]) -> Iterator[str]:
    """Yield a line per step with its work, and the total."""
    for step, group in itertools.groupby(needs, lambda one: one.step):
        yield step
        for one in group:
            size = gib(one.bytes) if one.bytes else ""
            left = ", ".join(filter(None, (size, one.note))) or "to do"
            yield f"  {one.what:<44} {'done' if one.done else left}"
    yield f"missing: {gib(doctor.needs.total(needs))}"
