"""Published task vectors: a list of them, their places, and their import into the store.

    wanted = published.vectors("orthoreg", "vitb32")
    for one in published.status(wanted, Store()):
        print(one.vector.task, one.vector.method, one.state, one.bytes)
    list(published.fetch(wanted, Store()))

A vector is imported under the name `<source>_<task>_<mode>`, and the parameter
`vectors="published:<source>"` runs a chapter from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from tasklab.errors import TasklabError
from tasklab.exchange import importing, places
from tasklab.exchange.catalogue import (
    PREFIX,
    Published,
    declared,
    entry,
    offers,
    source_of,
    vectors,
)
from tasklab.models.zoo import spec
from tasklab.progress import bar
from tasklab.storage import fetching
from tasklab.storage.checksums import file_sha256
from tasklab.storage.store import Store

__all__ = ["PREFIX", "Published", "Status", "entry", "fetch", "imported", "offers", "source_of"]
__all__ += ["status", "declared", "vectors"]
LACKING = (401, 403, 404)  # answers of a hub that has a file not, or not for this user
_TENSOR_FILE = 1.001  # bytes of a file over those of its numbers: names and shapes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """Whether a published vector is on this machine."""

    vector: Published
    #: In the store; its files are here; they are to be fetched; its repository lacks them.
    state: Literal["imported", "here", "missing", "unpublished"]
    bytes: int  #: To fetch: 0 unless it is missing
    exact: bool = True  #: Whether the hub told the bytes; else they follow from the model's size


def status(
    wanted: Iterable[Published], store: Store, folder: Path | None = None, *, ask: bool = True
) -> list[Status]:
    """Return which vectors are in the store, which files are here, and the bytes to fetch.

    A `folder` is a mirror on this machine in place of the hub. Unless the hub is asked for sizes,
    they follow from the model's.

    Args:
        wanted: Published vectors.
        store: The store of results.
        folder: A mirror on this machine in place of the hub.
        ask: Whether to ask the hub for sizes.
    """
    found, counted = [], set[tuple[str, str]]()
    asked: dict[str, Mapping[str, fetching.Remote]] = {}
    for one in wanted:
        here = all(_local(one.repository, file, folder) for file in one.files)
        state: Any = "imported" if imported(store, one) else "here" if here else ""
        if state or folder is not None:
            found.append(Status(vector=one, state=state or "unpublished", bytes=0))
            continue
        if ask and one.repository not in asked:
            try:
                asked[one.repository] = fetching.listing(one.repository)
            except TasklabError:
                ask = False  # no network: the other repositories would not answer either
        found.append(_missing(one, asked.get(one.repository), counted))
    return found


def _missing(
    one: Published, listed: Mapping[str, fetching.Remote] | None, counted: set[tuple[str, str]]
) -> Status:
    """Return the status of a vector that is to be fetched; files that several share count once."""
    new = [file for file in one.files if (one.repository, file) not in counted]
    counted.update((one.repository, file) for file in new)
    if listed is None:
        tower = spec(one.model).tower
        numbers = (tower.parameters if tower else 0) * (2 if one.method == "linearized" else 1)
        size = round(4 * numbers * _TENSOR_FILE) if one.files[0] in new else 0
        return Status(vector=one, state="missing", bytes=size, exact=False)
    places = {file: place for file in one.files if (place := _place(file, listed)) is not None}
    if len(places) < len(one.files):
        return Status(vector=one, state="unpublished", bytes=0)
    sizes = (listed[places[file]].size for file in new)
    return Status(vector=one, state="missing", bytes=sum(sizes))


def _place(file: str, listed: Mapping[str, fetching.Remote]) -> str | None:
    """Return where a repository has a file: as declared, or deeper in a folder of that model."""
    if file in listed:
        return file
    model, end = file.partition("/")[0], "/".join(["", *file.split("/")[-2:]])
    found = [one for one in listed if one.endswith(end) and model in one]
    return found[0] if len(found) == 1 else None


def fetch(
    wanted: Iterable[Published], store: Store, folder: Path | None = None, *, progress: bool = True
) -> Iterator[dict[str, Any]]:
    """Fetch and import vectors; yield the record of each (`importing.add`).

    One that is absent or mislabelled has a `problem` in place of the rest, and the others go on.
    Imported vectors are not fetched again; an interrupted file goes on where it
    stopped; a file enters the hub's cache only after its checksum was compared. A `folder` is a
    mirror on this machine in place of the hub.

    Args:
        wanted: Published vectors.
        store: The store of results.
        folder: A mirror on this machine in place of the hub.
        progress: Whether to show a progress bar.
    """
    wanted = list(wanted)
    with bar(len(wanted), "importing", unit="vector", on=progress) as shown:
        for one in wanted:
            try:
                if not imported(store, one):
                    _import(one, store, folder, progress)
                yield importing.record(store, one.model, one.name)
            except TasklabError as error:
                if isinstance(error, fetching.UnreachableError) and error.code not in LACKING:
                    raise  # nor would the next one be had
                yield {"model": one.model, "name": one.name, "problem": str(error)}
            shown.update()


def _import(one: Published, store: Store, folder: Path | None, progress: bool) -> None:
    files = [_fetched(one, file, folder, progress) for file in one.files]
    sha256, source = file_sha256(files[0]), f"{one.repository}/{one.files[0]}"
    for other in places.listed(store) if len(files) == 1 else ():  # else it holds all tasks'
        if other["sha256"] == sha256 and other["task"] != one.task:
            raise TasklabError(
                f"{source} is the same file as {other['name']}, of {other['task']}: one of the two "
                "is mislabelled."
            )
    about = {"called": one.method, "name": one.name, "source": source}
    importing.add(store, files[0], one.model, one.task, **about)


def imported(store: Store, one: Published) -> bool:
    """Return whether a published vector is in the store."""
    return store.has(importing.KIND, {"model": one.model, "name": one.name})


def _local(repository: str, file: str, folder: Path | None) -> Path | None:
    """Return a file in the hub's cache or a mirror: of one repository, or of several in folders."""
    if folder is None:
        return fetching.cached(repository, file)
    tried = (folder / repository / file, folder / repository.partition("/")[2] / file)
    return next((one for one in (*tried, folder / file) if one.is_file()), None)


def _fetched(one: Published, file: str, folder: Path | None, progress: bool) -> Path:
    if folder is None:
        sha256 = one.sha256 if file == one.files[0] else None
        more: dict[str, Any] = {"sha256": sha256, "progress": progress}
        try:
            return fetching.fetch(one.repository, file, **more)
        except fetching.UnreachableError as error:
            listed = fetching.listing(one.repository) if error.code in LACKING else {}
            if (place := _place(file, listed)) in (None, file):
                raise
            return fetching.fetch(one.repository, place, **more)
    found = _local(one.repository, file, folder)
    if found is None:
        raise TasklabError(
            f"{folder} has neither {one.repository}/{file} nor {file}: give the folder that holds "
            "the repository's files, or the repositories' folders."
        )
    return found
