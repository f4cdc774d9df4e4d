"""The commands `report` and `study`: all chapters as a site, a chapter's recorded results."""

from __future__ import annotations

from pathlib import Path

import tyro

from tasklab.cli.parsing import settings
from tasklab.errors import path, whole
from tasklab.experiments.parameters import Parameters

Quick, Full = settings(), settings(preset="full")


def report(given: Quick) -> None:
    """Execute every chapter with the parameters that are given, and build the site.

    Args:
        given: As in a chapter's first code cell.
    """
    settled = Parameters(**given)
    from tasklab import book

    for name in {"data_root", "store_root"} & given.keys():  # chapters run in a folder of theirs
        given[name] = str(getattr(settled, name).absolute())
    book.report(given.pop("preset", settled.preset), parameters=given)


def study(
    chapter: tyro.conf.Positional[str],
    given: Full,
    *,
    part: str = "editing",
    out: Path | str | None = None,
    jobs: int | str = 1,
) -> None:
    """Compute a part of a chapter's records and write them as a data file.

    Args:
        chapter: Its name: tangent, linear_layers, ctl or closed_vocab.
        given: As in a chapter's first code cell.
        part: Which of its files: editing, maps, ...
        out: Where to write. By default the package's data.
        jobs: Processes that share the cores.
    """
    from tasklab import chapters
    from tasklab.errors import choose

    choose(f"part of chapter {chapter!r},", part, chapters.chapter(chapter).parts)
    file = None if out is None else path("--out", out)
    number = whole("--jobs", jobs, 1, 1000)
    parameters = Parameters(**{"preset": "full", **given})
    from tasklab.study import recording

    recording.study(chapter, parameters, part=part, out=file, jobs=number)
