"""Chapters that run with each model on this machine, and missing files of the others.

Nothing is downloaded, and no weights are loaded: files are looked for, and their sizes compared
with those in their headers. Checks that take too long become a line of the report.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from tasklab import machine
from tasklab.bench import inventory
from tasklab.bench.inventory import READY, THERE, Weights
from tasklab.cli.doctor import speed
from tasklab.cli.doctor.speed import Speed
from tasklab.errors import TasklabError
from tasklab.evidence.chapters import CHAPTERS
from tasklab.machine import GIB, Device, Disk, Memory, gib
from tasklab.models.zoo import REGISTRY, family, has_attention, text_suite
from tasklab.storage import fetching, folders
from tasklab.tasks.images.loader import Data, DecodedImages
from tasklab.tasks.suites import paper_data_sets, suite

DEFAULT = "mini"
LITTLE = GIB  # bytes: a disk with less free is called full; a quick report keeps a good half of it
BUDGET = 3.5  # seconds for all that may hang: network, devices, folders
COUNTING = 1.5  # seconds to count what the store holds


@dataclasses.dataclass(frozen=True)
class Cell:
    """Whether a chapter runs with a model; `why` in a few words, `lacks` are models."""

    runs: bool
    why: str
    lacks: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """Findings; `blocking` lists those that stop the default model's chapters."""

    versions: dict[str, str | None]
    cores: float
    memory: Memory
    devices: tuple[Device, ...]
    speed: Speed | None
    disks: dict[str, Disk]
    network: str
    weights: dict[str, Weights]
    data: dict[str, Data]
    chapters: dict[str, dict[str, Cell]]
    notes: tuple[str, ...]
    blocking: tuple[str, ...]


def examine(data_root: Path | None = None, store_root: Path | None = None) -> Report:
    """Examine this machine, and which chapters can run on it, within a few seconds."""
    store, cache = folders.store(store_root), folders.data()
    places = {"store": store, "decoded": cache, "hub cache": Path(constants.HF_HUB_CACHE)}
    if data_root is not None:
        places["data root"] = Path(data_root)
    jobs: dict[str, Callable[[], Any]] = {"network": hub_answer}
    if machine.accelerated():
        # not the function itself: its module imports torch, which may be what is broken
        jobs |= {"devices": lambda: machine.devices(), "speed": speed.measure}
    for what, folder in places.items():
        seconds = COUNTING if what == "store" else 0
        jobs[f"disk {what}"] = functools.partial(machine.disk, folder, seconds)
    pictures = DecodedImages(suite=suite("paper"), root=data_root, cache=cache)
    for name in paper_data_sets():
        jobs[f"data {name}"] = functools.partial(pictures.state, name)
    answers, failed = run_at_once(jobs, BUDGET)

    network = answers.get("network", failed.get("network", ""))
    versions, memory = machine.versions(), machine.memory()
    devices = tuple(answers.get("devices", ()))
    files = {name: _find_weights(name, network == "") for name in REGISTRY}
    room = devices[0].free if devices else memory.available
    data = {}
    for name in paper_data_sets():
        job = f"data {name}"
        data[name] = answers.get(job) or Data(name, "unknown", "", note=failed.get(job, ""))
    disks = {what: answers[f"disk {what}"] for what in places if f"disk {what}" in answers}
    others = [job for job in jobs if job != "network" and not job.startswith("data ")]
    notes = [f"{job}: {why}." for job, why in failed.items() if job in others]
    if "devices" in jobs and not devices and "devices" not in failed:
        notes.append(
            f"there is a device or its driver, but torch {versions['torch']} does not see it: "
            "is torch installed for it, and CUDA_VISIBLE_DEVICES right?"
        )
    chapters = runnable(files, room)
    needed = importlib.metadata.requires("torchvision") if versions.get("torchvision") else None
    pair = machine.unpaired(versions, needed)
    causes = tuple(blocking(versions, pair, disks, files, chapters))
    return Report(
        versions, machine.cores(), memory, devices, answers.get("speed"), disks, network, files,
        data, chapters, tuple(notes), causes,
    )  # fmt: skip


def _find_weights(name: str, reachable: bool) -> Weights:
    try:
        return inventory.find_weights(REGISTRY[name], reachable)
    except OSError as error:
        return Weights(name, "missing", "", (0, 0), f"cannot be looked for: {error}")


def run_at_once(
    jobs: Mapping[str, Callable[[], Any]], seconds: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the results of jobs that run at once, and why the others have none in `seconds`."""
    answers, failed, until = {}, {}, time.monotonic() + seconds

    def run(name: str, job: Callable[[], Any]) -> None:
        try:
            answers[name] = job()
        except Exception as error:  # whatever is broken is a line of the report
            short = next(iter(str(error).strip().splitlines()), "").rstrip(".")
            own = isinstance(error, TasklabError)
            failed[name] = short if own else f"{type(error).__name__}: {short}".rstrip(": ")

    threads = [threading.Thread(target=run, args=one, daemon=True) for one in jobs.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    done, wrong = dict(answers), dict(failed)
    late = {n: f"no answer within {seconds:g} seconds" for n in jobs if n not in done | wrong}
    return done, wrong | late


def hub_answer(model: str = "vitb32") -> str:
    """Return why the hub cannot be asked for a model; empty if it can (`fetching.PATIENCE`)."""
    example = REGISTRY["vitb32" if REGISTRY[model].shipped else model]
    return fetching.unreachable(example.repository, example.published) or ""


def runnable(files: Mapping[str, Weights], room: int | None) -> dict[str, dict[str, Cell]]:
    """Return, for each model and chapter, whether it can run in `room` bytes of free memory."""
    return {name: {one: _cell(one, name, files, room) for one in CHAPTERS} for name in files}


def _cell(chapter: str, name: str, files: Mapping[str, Weights], room: int | None) -> Cell:
    if text_suite(name) == "mini_text":  # they are compared with, in the chapters that have them
        return Cell(False, "text")
    entry = CHAPTERS[chapter]
    if entry.attention and not has_attention(name):
        return Cell(False, "no attention")
    if files[name].state not in READY:
        return Cell(False, "damaged" if files[name].state == "damaged" else "missing", (name,))
    roles = family(name)
    others = dict.fromkeys(roles[role] for role in entry.needs("quick") if role in roles)
    if lacks := _lacking(others, files):
        return Cell(False, f"lacks {len(lacks)}", lacks)
    members = dict.fromkeys((name, *others))
    most = max(files[one].memory[0] for one in members)
    if room is not None and most > room:
        return Cell(False, f"needs {gib(most)}")
    if more := dict.fromkeys(roles[role] for role in entry.needs("full") if role in roles):
        if lacks := _lacking(more, files):
            return Cell(True, "quick only", lacks)
        members |= more
        most = max(files[one].memory[0] for one in members)
        if room is not None and most > room:
            return Cell(True, "quick only")
    fetched = tuple(one for one in members if files[one].state == "fetchable")
    return Cell(True, f"fetches {len(fetched)}" if fetched else "yes", fetched)


def _lacking(names: Iterable[str], files: Mapping[str, Weights]) -> tuple[str, ...]:
    return tuple(name for name in names if files[name].state not in READY)


def blocking(
    versions: Mapping[str, str | None],
    pair: str | None,
    disks: Mapping[str, Disk],
    files: Mapping[str, Weights],
    chapters: Mapping[str, Mapping[str, Cell]],
) -> list[str]:
    """List the causes that stop the default model's chapters.

    `pair` is what is wrong with torch and torchvision together, if anything.

    Args:
        versions: Of each package; `None` if it is not installed.
        pair: Mismatch of torch and torchvision, if any.
        disks: By their content: `"store"`, `"decoded"`.
        files: Weights by model.
        chapters: For each model and chapter, whether it can run.
    """
    lines = [f"{name} is not installed." for name, version in versions.items() if version is None]
    lines += [pair] if pair else []
    for what in ("store", "decoded"):
        if (disk := disks.get(what)) is None:
            continue
        variable = {"store": "TASKLAB_STORE", "decoded": "TASKLAB_DATA"}[what]
        if not disk.writable:
            lines.append(f"{disk.path} cannot be written: choose another folder by {variable}.")
        elif disk.free < LITTLE:
            lines.append(
                f"the disk of {disk.path} is full ({gib(disk.free)} free): free some space, or "
                f"choose another folder by {variable}."
            )
    used = {DEFAULT, *family(DEFAULT).values()}
    for name in files:
        if name in used and files[name].state not in THERE:
            lines.append(f"{files[name].where} is {files[name].state}: reinstall tasklab.")
    for chapter, cell in chapters[DEFAULT].items():
        if not cell.runs and not cell.lacks:
            lines.append(f"{chapter} with model {DEFAULT!r} {cell.why} of free memory.")
    return lines
