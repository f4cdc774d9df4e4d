"""Shared by `compare`, `evaluate` and `merge`: words are read, checked, and become vectors.

    asked = request.read_words("merge", words, given, files={"--out": (out, places.VECTOR)})
    asked.check("merging 2 task vectors")       # names, headers, places, memory; without torch
    with asked.vectors() as vectors:            # the task vectors, from wherever they are
        lab = vectors.lab()                     # the model with the images of their tasks
        vectors.write(...)

All that can be wrong is an error before anything is computed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tasklab
from tasklab import bench, exchange, machine, models
from tasklab.bench.parameters import Parameters
from tasklab.cli import idle, runs
from tasklab.cli.parsing import Given
from tasklab.cli.runs import checked
from tasklab.cli.vectors import Vectors, check_near, check_tasks
from tasklab.errors import TasklabError, path, shown
from tasklab.exchange import places
from tasklab.exchange import sources as located
from tasklab.exchange.places import Outputs
from tasklab.models.zoo import spec
from tasklab.progress import LATER, bar, begin, tell
from tasklab.storage.store import Store
from tasklab.tasks.suites import Task

_LEAST = {"compare": 2, "merge": 2}  # vectors


def read_words(
    command: str,
    words: Sequence[str],
    given: Given,
    *,
    base: str | None = None,
    data: Sequence[str] = (),
    template: Sequence[str] = (),
    files: Mapping[str, tuple[Path | str | None, places.Format]] | None = None,
    model_out: Path | str | None = None,
    looks: bool = True,
) -> Request:
    """Read a command's words; raise for mistakes in words and outputs.

    Args:
        command: Its name.
        words: Vectors as users name them, with or without a task before (`Cars=cars.pt`).
        given: The notebook parameters that are given.
        base: The checkpoint that published ones start from.
        data: Words such as `Cars=images/cars`: a task's own folder of images.
        template: Prompts of the tasks of `data`.
        files: By option the place and the format of a file to write (`Outputs.of`).
        model_out: Where to write the merged model.
        looks: Whether the model will look at images.
    """
    check_several(command, words)
    # also a parameter that this command has no use for
    checked({name: x for name, x in given.items() if name != "suite" or "model" in given})
    named = tuple(map(_named, words))
    note = idle.check(given, [name for _, name in named], own=bool(data), base=base, looks=looks)
    about: dict[str, Any] = {"model": given.get("model"), "model_out": model_out}
    outputs = Outputs()
    if files:
        outputs = Outputs.of(files, vectors=[name for _, name in named], **about)
    own = _own_tasks(data, template)
    return Request(named=named, given=given, base=base, own=own, outputs=outputs, note=note)


def check_several(command: str, words: Sequence[str]) -> None:
    """Check that a command has two vectors or more."""
    if len(words) < _LEAST.get(command, 0):
        raise TasklabError(
            f"{command} takes two VECTORs or more: tasklab {command} A.safetensors B.safetensors "
            "--model M."
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """Vectors by name, a model, tasks of one's own, and where results are written."""

    named: Sequence[tuple[str, str]]  #: Of each vector the task, empty if none is given, and name
    given: Given  #: Notebook parameters, those that are given
    base: str | None  #: The checkpoint that published ones start from
    own: Mapping[str, Task]  #: Tasks of one's own, which stand in for the suite's
    outputs: Outputs
    note: str = ""  #: On notebook parameters without an effect

    @property
    def model(self) -> str | None:
        """Short name of the model, if it is given."""
        return self.given.get("model")

    @property
    def init(self) -> str:
        """From which encoder vectors start."""
        return self.given.get("init") or "pretrained"

    def check(self, doing: str, *, images: bool = True) -> None:
        """Check vectors, base, weights and memory before any tensor is read.

        Args:
            doing: For the first line, which is printed when vectors are there and memory suffices;
                torch is not imported before.
            images: Whether the model will look at images.
        """
        sizes = [size for _, name in self.named if (size := self._size(name)) is not None]
        base = self.base
        if base is not None and (path("--base", base).exists() or "/" not in base):
            located.locate(path("--base", base, None if path("--base", base).is_dir() else "file"))
        tower = spec(self.model).tower if self.model else None
        largest, room = max(sizes, default=0), machine.memory().available
        least = largest + 2 * (4 * tower.parameters if tower else largest)
        if room is not None and least > room:
            takes, free = machine.too_large(least, room)
            raise TasklabError(
                f"this takes {takes} of memory, for a checkpoint, its base and the vector, and "
                f"{free} are free: end other programs, or take a smaller model."
            )
        begin(f"{doing}.")
        if self.model and self.outputs.model is not None:
            exchange.publishing.check_model(self.outputs.model, self.model, self.init, base)
        elif self.model and images and base is None:
            found = bench.inventory.find_weights(spec(self.model), init=self.init)
            if found.problem:
                start = " Or give the checkpoint that the vectors start from as --base."
                raise TasklabError(found.problem + start * bool(self.named))
        if self.note:
            tell(self.note)

    def _size(self, name: str) -> int | None:
        """Return the bytes of a vector's files, `None` for a run; raise if it is missing."""
        if runs.is_named(name):
            runs.of_name(name, self.given)
            return None
        places.check_there(name, Store(self.given.get("store_root")), self.model)
        if not Path(name).exists():
            return None
        if self.base is not None and Path(self.base).exists() and Path(name).samefile(self.base):
            raise TasklabError(f"{name} is the --base: leave it out of the vectors.")
        file, _ = located.locate(name)
        located.check_weights(file)
        return sum(x.stat().st_size for x in located.parts(file))

    def check_tasks(self, instead: str = "") -> None:
        """Check that tasks named with vectors have images.

        Args:
            instead: What else can be done, for the message.
        """
        check_tasks({task: task for task, _ in self.named if task}, self.own, self.given, instead)

    @contextlib.contextmanager
    def vectors(self, *, images: bool = True) -> Iterator[Vectors]:
        """Yield the task vectors; large ones lie in a working folder until the block ends.

        Args:
            images: Whether the model will look at images; a base without the parts for heads is
                then an error before minutes of reading.
        """
        with self.outputs.room() as room:
            yield Vectors(
                sources=self._read(room, images), given=self.given, base=self.base, own=self.own,
                outputs=self.outputs,
            )  # fmt: skip

    def _read(self, room: Path | None, images: bool) -> list[exchange.merged.Source]:
        names = [name for _, name in self.named]
        held = None  # or every vector reads the base again
        if self.base is not None:  # a path, or owner/name on the hub
            if self.model:
                held = exchange.importing.base_of(self.base, self.model)
                if images:
                    texts = Parameters(**self.given).vocabulary == "open"
                    exchange.bases.completed(self.base, self.model, texts=texts)
        elif self.model:
            _check_start(names, self.model, self.init)
        if self.model and names:
            exchange.reading.shapes(self.model)  # imports open_clip or timm, before the bar
        found: list[exchange.merged.Source] = []
        with bar(len(names), "reading", unit="vector", soon=LATER) as progress:
            for task, name in self.named:
                one = self._source(name, room)
                twin = next((x.name for x in found if x.sha256 == one.sha256), "")
                notes = (*one.notes, f"it is the same vector as {twin}") if twin else one.notes
                found.append(dataclasses.replace(one, task=task or one.task, notes=notes))
                progress.update()
        del held
        check_near(found)
        return found

    def _source(self, name: str, room: Path | None) -> exchange.merged.Source:
        if runs.is_named(name):
            return runs.source(name, self.given)
        about = {"base": self.base, "init": self.given.get("init")}
        store = Store(self.given.get("store_root"))
        return exchange.merged.named_source(name, store, self.model, room=room, **about)


def _named(word: str) -> tuple[str, str]:
    """Return the task that a word gives to a vector, empty if it gives none, and the vector.

    >>> _named("Cars=cars.pt"), _named("cars.pt")
    (('Cars', 'cars.pt'), ('', 'cars.pt'))
    """
    task, equals, rest = word.partition("=")
    return (task, rest) if equals and rest and not Path(word).exists() else ("", word)


def _own_tasks(data: Sequence[str], templates: Sequence[str] = ()) -> dict[str, Task]:
    """Return tasks of one's own by name, from words such as Cars=images/cars."""
    folders: dict[str, Path] = {}
    for word in data:
        task, equals, folder = word.partition("=")
        if not (equals and task and folder):
            raise TasklabError(f"--data is TASK=FOLDER, e.g. Cars=images/cars, not {shown(word)}.")
        if task in folders:
            raise TasklabError(f"--data {task}=... is given twice.")
        folders[task] = path("--data", folder, "folder")
    if not folders:
        if templates:
            raise TasklabError("--template is for --data: the suite's tasks have prompts.")
        return {}
    words = {"templates": tuple(templates)} if templates else {}
    return {task: tasklab.own.from_folder(one, name=task, **words) for task, one in folders.items()}


def _check_start(names: Sequence[str], model: str, init: str) -> None:
    """Raise if a checkpoint starts from missing weights: reading it takes minutes."""
    for name in names:
        if Path(name).is_file():
            about = located.header(Path(name))
            if not ("tasklab" in about or located.is_saved(about) or _has_start(Path(name))):
                try:
                    models.loading.locate(model, init)
                except TasklabError as error:
                    raise TasklabError(
                        f"{error} Or give the checkpoint that {name} starts from as --base."
                    ) from error
                return


def _has_start(file: Path) -> bool:
    """Return whether a file of torch.save names the theta_0 of a linearized encoder."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as parts:
        listed = [one for one in parts.namelist() if one.endswith("data.pkl")]
        return any(b"params0" in parts.read(one) for one in listed)
