"""The commands `report` and `record`: all chapters as a site, a chapter's recorded results."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Annotated

import tyro

from tasklab import book
from tasklab.bench.parameters import Parameters
from tasklab.cli import idle
from tasklab.cli.parsing import Given, settings
from tasklab.errors import TasklabError, choose, path, whole
from tasklab.evidence import chapters, study
from tasklab.progress import begin
from tasklab.storage.store import Store


def check_book(command: str) -> None:
    """Raise unless the packages that execute and build the chapters are installed."""
    needed = ("nbformat", "nbclient", "jupyter_book")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise TasklabError(
            f"{command} needs {', '.join(missing)}: install them by pip install 'tasklab[book]'."
        )


def report(given: Annotated[Given, settings(live=True)], *, jobs: int | str | None = None) -> None:
    """Execute every chapter with the parameters that are given, and build the site.

    Args:
        given: As in a chapter's first code cell.
        jobs: Chapters that run at once. By default one on each core, or with a full-size model or
            on a CUDA device one after another.
    """
    number = None if jobs is None else whole("--jobs", jobs, 1, 1000)
    check_book("report")
    begin("executing the chapters, and building the site.")
    settled = Parameters(**given)
    for name in {"data_root", "store_root"} & given.keys():  # chapters run in a folder of theirs
        given[name] = str(getattr(settled, name).absolute())
    book.report.report(given.pop("preset", settled.preset), parameters=given, jobs=number)


def record(
    given: Annotated[Given, settings(preset="full")],
    chapter: tyro.conf.Positional[str] = "",
    *,
    part: str = "",
    every: Annotated[bool, tyro.conf.arg(name="all")] = False,
    dry_run: bool = False,
    out: Path | str | None = None,
    jobs: int | str = 1,
    add: bool = False,
    check: int | str | None = None,
    check_seed: int | str | None = None,
    check_others: bool = False,
) -> None:
    """Compute a part of a chapter's records, or all, and write them as data files.

    Args:
        given: As in a chapter's first code cell.
        chapter: Its name (`tasklab list chapters`).
        part: Which of its files: editing, maps, ... By default editing.
        every: All parts, of all chapters or of the named one, after a count of their runs. Results
            in the store are not computed again: the same command goes on after an interruption.
        dry_run: Only count the fine-tuning runs, and those that are in the store.
        out: Where to write. By default the package's data.
        jobs: Processes that share the cores.
        add: Keep the recorded rows and compute only the seeds, methods and learning rates
            that they lack, on another machine too: a part of many hours in several sittings.
        check: Instead, measure so many recorded rows of all parts (or of the named chapter) again,
            those first that take the least, and say which come out bit for bit. Results are kept
            in the folder `check` of the store, so that the same command goes on.
        check_seed: Which rows are drawn. By default 0.
        check_others: Draw also from rows that were measured on another make of processor, on
            former images or in another precision, which may differ.
    """
    if check is not None:
        if every or part or dry_run or out is not None or add:
            raise TasklabError("--check takes a CHAPTER or none, and no option of recording.")
        count, seed = whole("--check", check, 1, 10_000), whole("--check-seed", check_seed or 0, 0)
        _check(chapter, count, seed, check_others, Parameters(**{"preset": "full", **given}))
        return
    idle.refuse({"check_seed": check_seed, "check_others": check_others}, "it is for --check")
    if not chapter and not every:
        raise TasklabError("record takes a CHAPTER, or --all: `tasklab record --help`")
    if every and (part or out is not None):
        raise TasklabError("--all records every part as package data: leave out --part, --out.")
    if every and add:
        raise TasklabError("--add takes one part: name it by --part.")
    names = (chapter,) if chapter else tuple(chapters.CHAPTERS)
    part = part or "editing"
    for name in names:
        choose(f"part of chapter {name!r},", part, chapters.chapter(name).parts)
    file = None if out is None else path("--out", out)
    number = whole("--jobs", jobs, 1, 1000)
    begin(f"recording {', '.join(names)}.")
    parameters = Parameters(**{"preset": "full", **given})
    parts = [(n, one) for n in names for one in chapters.chapter(n).parts if every or one == part]
    if every or dry_run:
        there = (file or study.results.path_of(chapter, part)) if add else None
        work = study.outlook.outlook(parameters, parts, to=there)
        print(study.outlook.describe(work), flush=True)
    for name, one in () if dry_run else parts:
        made = study.recording.study(name, parameters, part=one, out=file, jobs=number, add=add)
        print(made, flush=True)


def _check(chapter: str, count: int, seed: int, others: bool, parameters: Parameters) -> None:
    """Print which rows of a sample come out, row by row."""
    chapters_of = (chapter,) if chapter else tuple(chapters.CHAPTERS)
    root = Store(parameters.store_root).root / "check"
    parameters = dataclasses.replace(parameters, store_root=root)
    rows, reasons = study.checking.sample(
        count, parameters, seed=seed, chapters=chapters_of, others=others
    )
    able = equal = 0
    print("part\trow\trecorded\tnow\tequal", flush=True)
    for row, now, same in study.checking.measured_again(rows, parameters):
        names = ("experiment", "model", "method", "task", "seed", "metric")
        told = " ".join(str(row.told[name]) for name in names)
        answer = "yes" if same else f"no ({row.reason})" if row.reason else "NO"
        print(f"{row.where}\t{told}\t{row.told['value']!r}\t{now}\t{answer}", flush=True)
        able, equal = able + (not row.reason), equal + (same and not row.reason)
    print(f"{equal} of {able} rows that can come out here are equal bit for bit.")
    for why, number in sorted(reasons.items()):
        print(f"{number:,} recorded rows {f'cannot: {why}' if why else 'can'}.")
