"""Places of task vectors and merged models: existing ones, and those to be written; without torch.

A command looks here before it imports torch, so that a wrong name is an error within a second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tasklab.errors import TasklabError, abridged, shown
from tasklab.errors import path as checked_path
from tasklab.exchange import sources
from tasklab.models.zoo import spec
from tasklab.storage import atomic
from tasklab.storage.store import Artifact, Store
from tasklab.storage.streams import MERGED
from tasklab.storage.tensors import explained

IMPORTED = "imported"  # kind of artifact in the store
OPTION = "--model-out"
ADVICE = f"leave {OPTION} out, and give the vector to whoever has the model"
CARD = "README.md"  # of a folder
ROOM = ".merge"  # begins the names of working folders beside what is written
_FILES = (".safetensors", ".pt")


class Format(NamedTuple):
    """A format of files: the suffix of their names, and bytes in their first kilobyte."""

    suffix: str
    begin: bytes = b""


VECTOR = Format(".safetensors")


@dataclasses.dataclass(frozen=True)
class Target:
    """A place that a merged model can be written to."""

    place: Path  #: The file or the folder
    folder: bool  #: Whether it is a folder, for transformers; else a file, for open_clip

    @property
    def beside(self) -> dict[str, Path]:
        """Further files beside it: its card, and open_clip's configuration."""
        if self.folder:
            return {"card": self.place / CARD}
        return {"card": self.place.with_suffix(".md"), "settings": self.place.with_suffix(".json")}


def target(place: Path, model: str | None = None) -> Target:
    """Return the format of an output path; raise if the path is taken.

    `model` is what will be written; `None` if that is not known.
    """
    made = Target(place, folder=place.suffix not in _FILES)
    if model:
        check_library(made, model)
    if made.folder and place.suffix and not place.is_dir():
        raise TasklabError(
            f"{shown(place.name)} is no name of a checkpoint: give {OPTION} a name that ends in "
            f"{' or '.join(_FILES)} for open_clip, or a folder for transformers."
        )
    empty = made.folder and place.is_dir() and not any(place.iterdir())
    others = () if made.folder or _is_left(made) else made.beside.values()
    for one in (place, *others):
        if (one.exists() or one.is_symlink()) and not empty:
            raise TasklabError(f"{one} is there already: remove it, or choose another {OPTION}.")
    _check_parent(place, OPTION)
    return made


def check_apart(outputs: Mapping[str, Path], into: Target | None = None) -> None:
    """Raise if two outputs, named by their options, are one file, or one is in another's folder."""
    named = list(outputs.items())
    if into is not None:
        beside = () if into.folder else into.beside.values()
        named += [(OPTION, place) for place in (into.place, *beside)]
    real = [(option, Path(os.path.realpath(place))) for option, place in named]
    for (first, a), (second, b) in itertools.combinations(real, 2):
        if a == b or a in b.parents or b in a.parents:
            same = "are the same" if a == b else "lie in one folder that one of them makes"
            raise TasklabError(f"{first} and {second} {same}: give each a place of its own.")


def _is_left(made: Target) -> bool:
    """Return whether a model's card exists without the model: its writer was killed."""
    if any(made.place.with_suffix(suffix).exists() for suffix in _FILES):
        return False
    card, settings = made.beside["card"], made.beside["settings"]
    with contextlib.suppress(OSError, ValueError, TypeError):
        ours = '"file_sha256"' in card.read_text("utf-8")
        return ours and (not settings.exists() or "vision_cfg" in json.loads(settings.read_text()))
    return False


def check_library(into: Target, model: str) -> None:
    """Raise unless a library loads a model: open_clip or transformers a CLIP, timm its own."""
    name = library(into, model)
    if not name:
        raise TasklabError(
            f"model {model!r} is no CLIP and none of timm's, which are what {OPTION} writes: "
            f"{ADVICE}."
        )
    if name == "timm" and into.folder:
        raise TasklabError(
            f"timm loads {model!r} from a file: give {OPTION} one, e.g. merged_model.safetensors."
        )


def library(into: Target, model: str) -> str:
    """Return the library that a merged model is written for; empty without one."""
    entry = spec(model)
    if entry.kind == "vit" and not entry.shipped:
        return "timm"
    if entry.kind != "clip":
        return ""
    return "transformers" if into.folder else "open_clip"


def check_there(text: str, store: Store, model: str | None) -> None:
    """Check that a text names a task vector or checkpoint, before others are read for minutes.

    Args:
        text: Path, hub name, or name of an import.
        store: Has the imports.
        model: Only imports for this model; `None` for any.

    Raises:
        TasklabError: If there is none of that name.
    """
    if names_import(text):
        imported(text, store, model)
    else:
        sources.locate(text)


def names_import(text: str) -> bool:
    """Return whether a text can only be the name of an imported vector."""
    return not checked_path("VECTOR", text).exists() and "/" not in text


def imported(name: str, store: Store, model: str | None) -> Artifact:
    """Return the imported vector of a name.

    Args:
        name: As `tasklab import --name` gave it.
        store: Has the imports.
        model: Only imports for this model; `None` for any.

    Raises:
        TasklabError: If there is none, or several; the message lists names.
    """
    there = list(store.configs(IMPORTED))
    chosen = [one for one in there if one["name"] == name and model in (None, one["model"])]
    if len(chosen) > 1:
        raise TasklabError(
            f"{name} is imported for {abridged(one['model'] for one in chosen)}: give --model."
        )
    kept = store.find(IMPORTED, chosen[0]) if chosen else None
    if kept is None:
        names = sorted(one["name"] for one in there if one not in chosen)
        hint = f" Imported are {abridged(names)}." if names else ""
        raise TasklabError(
            f"{shown(name)} is no file, no TASK@METHOD and no imported vector"
            f"{'' if model is None else f' of {model}'}.{hint}"
        )
    return kept


def _check_target(option: str, path: Path, suffix: str) -> None:
    """Raise unless a file of a format can be written to an option's path."""
    if path.is_dir():
        raise TasklabError(f"{path} is a folder: give {option} a file in it.")
    atomic.check_ordinary(path)
    atomic.check_suffix(option, path, suffix)
    _check_parent(path, option)


def _check_parent(path: Path, option: str) -> None:
    if not path.parent.is_dir():
        raise TasklabError(f"{path.parent} is no folder: make it, or choose another {option}.")
    with explained(path.parent, "write to", option):
        tempfile.TemporaryFile(dir=path.parent).close()


def _check_own(option: str, path: Path, begin: bytes) -> None:
    """Raise if the first kilobyte of an existing file lacks the beginning of our format."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with explained(path, "read", option), path.open("rb") as file:
        if begin not in file.read(1024):
            raise TasklabError(f"{path} holds something else: choose another file with {option}.")


def check_free(path: Path, vectors: Iterable[str] = (), option: str = "--out") -> None:
    """Raise if the output exists and is an input or no vector.

    Args:
        path: The output.
        vectors: Paths of the inputs.
        option: Which gives the output, for messages.
    """
    _check_target(option, path, VECTOR.suffix)
    if path.exists():
        about = sources.header(path)
        if not {"tasklab", MERGED} & about.keys() and not sources.is_saved(about):
            raise TasklabError(f"{path} holds something else: choose another file with {option}.")
        if any(Path(one).exists() and path.samefile(one) for one in vectors):
            raise TasklabError(f"{path} is one of the vectors: choose another file with {option}.")
        if path.name == sources.VECTOR_FILE and (path.parent / "config.json").exists():
            raise TasklabError(f"{path} is of an export: choose another file with {option}.")


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Files that a command writes, by its options: each is checked before anything is computed."""

    files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    model: Target | None = None  #: Where a merged model is written

    @classmethod
    def of(
        cls,
        asked: Mapping[str, tuple[Path | str | None, Format]],
        *,
        vectors: Iterable[str] = (),
        model_out: Path | str | None = None,
        model: str | None = None,
    ) -> Outputs:
        """Return the outputs that options name; raise unless all of them can be written.

        Args:
            asked: Option -> place and format of the output; places that are `None` are left
                out. The first option has a place.
            vectors: Names of the vectors that are read, which no output may replace.
            model_out: Where a merged model is written.
            model: Short name of its model; `None` if that is not known yet.
        """
        files = {n: checked_path(n, place) for n, (place, _) in asked.items() if place is not None}
        # also where what was killed is whole and refused
        atomic.sweep(next(iter(files.values())).parent, ROOM)
        for option, place in files.items():
            kind = asked[option][1]
            if kind == VECTOR:
                check_free(place, vectors, option)
            else:
                _check_target(option, place, kind.suffix)
                _check_own(option, place, kind.begin)
        into = None if model_out is None else target(checked_path(OPTION, model_out), model)
        check_apart(files, into)
        return cls(files, into)

    @property
    def written(self) -> dict[str, str]:
        """Places by option."""
        model = {} if self.model is None else {OPTION: str(self.model.place)}
        return {option: str(place) for option, place in self.files.items()} | model

    @contextlib.contextmanager
    def drafts(self, texts: Mapping[str, str]) -> Iterator[None]:
        """Write drafts of texts, by option; they become the files when the block ends."""
        with contextlib.ExitStack() as stack:
            for option, text in texts.items():
                place = self.files[option]
                with explained(place.parent, "write to", option):
                    atomic.fill(stack.enter_context(atomic.replacing(place)), text)
            yield

    @contextlib.contextmanager
    def room(self) -> Iterator[Path | None]:
        """Yield a working folder beside the first file, as long as the block runs; or `None`."""
        if not self.files:
            yield None
            return
        model = [] if self.model is None else [self.model.place, *self.model.beside.values()]
        first = next(iter(self.files.values())).parent
        with atomic.room(first, ROOM, [*self.files.values(), *model]) as place:
            yield place


def listed(store: Store, model: str | None = None) -> list[dict[str, Any]]:
    """Return the record of every imported vector, with `model` and `name`."""
    kept = ((config, store.find(IMPORTED, config)) for config in store.configs(IMPORTED))
    records = [{**config, **found.record} for config, found in kept if found is not None]
    if model is not None:
        records = [one for one in records if one["model"] == model]
        if not records:
            spec(model)  # it says if there is none of that name
    return sorted(records, key=lambda one: (one["model"], one["name"]))
