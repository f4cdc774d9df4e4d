"""The steps of `tasklab paper`; each resumes after an interruption."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat
from huggingface_hub import constants

from tasklab import machine
from tasklab.bench.parameters import Parameters
from tasklab.book import execution, report, summary
from tasklab.book import sources as book
from tasklab.cli.checkpoints import import_
from tasklab.cli.cluster import grid
from tasklab.cli.decode import decode
from tasklab.cli.doctor import needs, readiness
from tasklab.cli.doctor.needs import Need
from tasklab.errors import TasklabError, choose
from tasklab.evidence import chapters
from tasklab.exchange import catalogue
from tasklab.models import loading
from tasklab.models.zoo import spec
from tasklab.storage import atomic, folders
from tasklab.storage.store import Store


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Return the named chapters, by default all."""
    for name in names:
        choose("chapter", name, chapters.CHAPTERS)
    return tuple(dict.fromkeys(names)) or tuple(chapters.CHAPTERS)


@dataclasses.dataclass
class Work:
    """Arguments of `tasklab paper`."""

    parameters: Parameters
    given: dict[str, Any]  #: The same, as chapters take it
    names: tuple[str, ...]  #: Of the chapters
    source: Path | None
    jobs: int

    @cached_property
    def store(self) -> Store:
        """The store of all results."""
        return Store(self.parameters.store_root)

    @property
    def folder(self) -> Path:
        """The folder of executed chapters."""
        return self.store.root / "paper" / self.parameters.model.replace("/", "_")

    @cached_property
    def notebooks(self) -> dict[Path, dict[str, Any]]:
        """The chapters' notebooks, each with its key in the store."""
        every = book.chapters(book.find_root())
        own = [one for one in every if one.stem.removesuffix("_more") in self.names]
        return {one: execution.asked(one, self.given) for one in own}

    def needs(self) -> list[Need]:
        """List the needs of all steps, in their order."""
        reachable = readiness.hub_answer(spec(self.parameters.model).name) == ""
        waiting = {
            source.stem.removesuffix("_more")
            for source, config in self.notebooks.items()
            if not self.store.find(execution.KIND, config)
        }
        return needs.of(
            self.parameters, chapters=self.names, executed={*self.names} - waiting,
            reachable=reachable, source=self.source,
        )  # fmt: skip

    def too_full(self, wanted: Sequence[Need]) -> str:
        """Return the disk that is too full; empty if all suffice."""
        roots = {"hub": Path(constants.HF_HUB_CACHE), "data": folders.data(),
                 "store": self.store.root}  # fmt: skip
        disks = {place: machine.disk(root) for place, root in roots.items()}
        for disk in disks.values():
            same = [place for place, one in disks.items() if one.total == disk.total]
            size = needs.total(one for one in wanted if one.place in same)
            if size > disk.free:
                return (
                    f"{machine.gib(size)} are to be fetched and written, and the disk of "
                    f"{disk.path} has {machine.gib(disk.free)} free: take another disk "
                    "(--store-root, TASKLAB_DATA, HF_HOME)."
                )
        return ""

    def steps(self) -> dict[str, Callable[[], None]]:
        """Return the functions that do the steps, by name."""
        every = (self.weights, self.images, self.vectors, self.chapters, self.report)
        whole = len(self.names) == len(chapters.CHAPTERS)
        return {one.__name__: one for one in (every if whole else every[:-1])}

    def weights(self) -> None:
        """Fetch the model's weights."""
        loading.locate(spec(self.parameters.model).name, self.parameters.init)

    def images(self) -> None:
        """Fetch the papers' data sets, and decode them for the model."""
        root = self.parameters.data_root
        decode("paper", model=self.parameters.model, data_root=root, fetch=True)

    def vectors(self) -> None:
        """Import published vectors, or fine-tune."""
        root, own = self.parameters.store_root, self.parameters
        if own.vectors is not None:
            import_(
                from_=catalogue.source_of(own.vectors), model=own.model, source=self.source,
                data_root=own.data_root, store_root=root, device=own.device,
            )  # fmt: skip
            return
        given = {name: value for name, value in self.given.items() if name not in ("model", "live")}
        runs = grid.Grid(models=self.parameters.model, methods=needs.TRAINED, **given)
        table = grid.run(runs)
        if len(failed := table[table["state"] == grid.FAILED]):
            row = failed.iloc[0]
            raise TasklabError(f"{len(failed)} runs failed; {row['task']}: {row['error']}")

    def chapters(self) -> None:
        """Execute the chapters that are not in the store, and write them all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for source, config in self.notebooks.items():
            target, log = self.folder / f"{source.stem}.ipynb", self.folder / "chapters.log"
            made = execution.executed(
                self.store, config, source, target, parameters=self.given, log=log
            )
            atomic.write(target, nbformat.writes(nbformat.from_dict(made.record["notebook"])))
            print(f"  {target}", flush=True)
        self.summary()

    def summary(self) -> None:
        """Write the chapters' tests against the papers, as a page and as JSON."""
        made = (
            json.loads((self.folder / f"{one.stem}.ipynb").read_bytes()) for one in self.notebooks
        )
        found = [one for one in map(summary.of_notebook, made) if one is not None]
        page, data = self.folder / "summary.html", self.folder / "summary.json"
        atomic.write(page, summary.page(found))
        atomic.write(data, json.dumps([one.as_json() for one in found], indent=1) + "\n")
        print(f"  {page}", flush=True)

    def report(self) -> None:
        """Build the site; chapters come from the store."""
        given = {name: value for name, value in self.given.items() if name != "preset"}
        report.report(self.parameters.preset, parameters=given, jobs=self.jobs)
