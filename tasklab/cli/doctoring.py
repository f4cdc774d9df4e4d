"""The command `doctor`: inventory of this machine, and chapters that run with each model."""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from collections.abc import Iterator
from json import dumps as as_json
from pathlib import Path
from typing import Any

from tasklab.bench.parameters import folder
from tasklab.cli import doctor as room
from tasklab.cli import paper as papers
from tasklab.errors import TasklabError
from tasklab.evidence.chapters import CHAPTERS
from tasklab.machine import gib
from tasklab.models.zoo import GROUPS, REGISTRY, group
from tasklab.progress import begin, columns

_WRAP: dict[str, Any] = {
    **{"width": 98, "initial_indent": "  ", "subsequent_indent": "  "},
    **{"break_long_words": False, "break_on_hyphens": False},
}
_LEGEND = (
    "lacks N: N models of its family that the chapter compares with are not there. fetches N: N "
    "models come with the first run. quick only: the preset full compares more models than there "
    "are. text: it reads texts, and is one of those that others are compared with. memory: at "
    "most what fine-tuning takes in float32, from one image at a time to the whole batch."
)

_FETCH = (
    "`tasklab fetch MODEL` fetches them. Without a network, put the file into a folder as "
    "MODEL.safetensors (.pt, .bin) and set TASKLAB_WEIGHTS to that folder."
)
_DECODE = (
    "`tasklab decode paper --fetch` gets what is missing from the hub; or put the data sets into a "
    "folder and name it by --data-root."
)


def doctor(
    *,
    paper: str | None = None,
    data_root: Path | str | None = None,
    store_root: Path | str | None = None,
    json: bool = False,
) -> int:
    """Check versions, memory, devices, disks, network, weights and data, without downloads.

    Args:
        paper: A model, whose missing files for `tasklab paper` are listed, in bytes.
        data_root: Where data sets are, besides the hub cache.
        store_root: Folder of results.
        json: The same as JSON.
    """
    begin("looking at this machine, its network and its disks.")
    try:
        from tasklab.cli.doctor import readiness  # here, for the other commands do not wait for it
    except ImportError as error:  # it needs some of what it looks for
        raise TasklabError(f"{error}: install tasklab anew, with what it depends on.") from error
    report = readiness.examine(folder("--data-root", data_root), folder("--store-root", store_root))
    if json:
        print(as_json(dataclasses.asdict(report), indent=1))
    else:
        print("\n".join(text(report)))
        if paper is not None:
            print("\n".join(_paper(paper, data_root, store_root, reachable=not report.network)))
    if report.blocking:
        sys.stdout.flush()
        print(
            f"tasklab: model {readiness.DEFAULT!r} cannot run everything: "
            f"{' '.join(report.blocking)}",
            file=sys.stderr,
        )
    return 1 if report.blocking else 0


def text(report: room.readiness.Report) -> Iterator[str]:
    """Yield the lines of a report."""
    for number, (title, rows, notes) in enumerate(_sections(report)):
        yield from ("", title) if number else (title,)
        yield from columns(rows, 2) if rows else ()
        for note in notes:
            yield from textwrap.wrap(note, **_WRAP) or [""]


def _sections(
    report: room.readiness.Report,
) -> Iterator[tuple[str, list[tuple[str, ...]], list[str]]]:
    yield "This machine", [*_machine(report)], []
    yield "Which chapters run with which models", [*_chapters(report)], ["", _LEGEND]
    if others := [one for one in report.weights.values() if one.state != "shipped"]:
        rows: list[tuple[str, ...]] = []
        for one in others:
            rows.append((one.model, one.state, f"{one.where} ({one.note})".removesuffix(" ()")))
        lacking = any(one.state == "missing" for one in others)
        yield "Weights that are not shipped", rows, [_FETCH] * lacking
    title = "Data sets of the suite paper (those of the suites mini and mini_text are shipped)"
    data = report.data.values()
    lacking = any(one.state in ("missing", "damaged") for one in data)
    notes = [one.note for one in data if one.state == "damaged"]
    notes += [f"{one.task}: {one.note}" for one in data if one.state == "unknown"]
    yield title, [_data(one) for one in data], [*notes, *[_DECODE] * lacking]
    if report.notes or report.blocking:
        yield "Notes", [], [f"- {note}" for note in (*report.blocking, *report.notes)]


def _paper(
    model: str, data_root: Path | str | None, store_root: Path | str | None, *, reachable: bool
) -> Iterator[str]:
    given = {"data_root": data_root, "store_root": store_root}
    _, parameters = papers.settled(model, {k: v for k, v in given.items() if v is not None})
    needs = room.needs
    yield ""
    yield f"What `tasklab paper {model}` lacks on this machine"
    yield from (f"  {line}" for line in papers.lines(
        needs.missing(needs.of(parameters, reachable=reachable))
    ))  # fmt: skip


def _machine(report: room.readiness.Report) -> Iterator[tuple[str, str]]:
    shown = [f"{name} {version or 'missing'}" for name, version in report.versions.items()]
    yield "versions", ", ".join(shown[:4])
    yield "", ", ".join(shown[4:])
    memory = report.memory
    yield "processor", f"{report.cores:g} cores"
    if memory.total is None:
        yield "memory", "not known"
    else:
        left = "" if memory.available is None else f", {gib(memory.available)} available"
        limit = " (limited for this process)" if memory.limited else ""
        yield "memory", f"{gib(memory.total)}{left}{limit}"
    for number, one in enumerate(report.devices):
        able = f"compute capability {one.capability}, {'' if one.bfloat16 else 'no '}bfloat16"
        size = f"{gib(one.free)} free of {gib(one.total)}"
        yield f"cuda:{number}", f"{one.name}, {size}, {able}"
        if one.useless:
            yield "", one.useless
        elif report.speed is not None:
            rate, precision = report.speed.rates[number], report.speed.precisions[number]
            rates = f"large products at {rate:.0f} TFLOP/s"
            yield "", f"fine-tuning in {precision}, {rates}; evaluation in float32"
    if report.speed is not None:
        why = report.speed.compiler
        yield "compiler", f"none: {why}" if why else "torch.compile, for blocks of transformers"
    if not report.devices:
        yield "device", "cpu; no CUDA device"
    yield "network", f"no hub: {report.network}" if report.network else "the hub answers"
    for what, disk in report.disks.items():
        facts = [f"{gib(disk.free)} free of {gib(disk.total)}"]
        if disk.used is not None:
            facts.append(f"holds {'' if disk.whole else 'more than '}{gib(disk.used)}")
        if not disk.writable:
            facts.append("cannot be written")
        yield what, f"{', '.join(facts)}: {disk.path}"


def _chapters(report: room.readiness.Report) -> Iterator[tuple[str, ...]]:
    yield "model", "weights", "memory", *CHAPTERS
    place = {name: GROUPS.index(group(one)) for name, one in REGISTRY.items()}
    title = -1
    for name, cells in sorted(report.chapters.items(), key=lambda item: place[item[0]]):
        if place[name] > title:
            title = place[name]
            yield (f"-- {GROUPS[title]}",)
        one = report.weights[name]
        least, whole = map(gib, one.memory)
        memory = whole if least == whole else f"{least.removesuffix(' GiB')}-{whole}"
        yield name, one.state, memory, *(cell.why for cell in cells.values())


def _data(one: room.readiness.Data) -> tuple[str, str, str]:
    sides = f"decoded for {', '.join(map(str, one.sides))} px; " if one.sides else ""
    return one.task, one.state, f"{sides}{one.where}"
