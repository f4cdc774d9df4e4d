"""List needs of `tasklab paper` on this machine: files to fetch, images to decode, runs to do.

Nothing is fetched, loaded or trained. Sizes are the hub's, where it answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from tasklab.bench.inventory import THERE, find_weights, input_side
from tasklab.bench.parameters import Parameters, folder
from tasklab.errors import TasklabError
from tasklab.evidence.chapters import CHAPTERS
from tasklab.exchange import catalogue, published
from tasklab.models.zoo import has_attention, spec
from tasklab.storage import fetching
from tasklab.storage.store import Store
from tasklab.tasks import images
from tasklab.tasks.suites import paper_data_sets, paper_task, suite

TRAINED = ("nonlinear", "linearized", "attention")  # what the chapters' headlines compare
PICTURE = 110_000  # bytes of a photograph in a data set's files: an estimate
#: Guesses. Images of GTSRB have 15 to 250 pixels a side, those of RESISC45 256; the eight data sets
#: have 16.7 GB as TianyuZhang/ModelMergingBaseline8Datasets holds them, most in SUN397.
GUESSED = {"GTSRB": 6_400, "RESISC45": 65_000, "SUN397": 300_000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """One thing that a step of `tasklab paper` takes."""

    step: str  #: `weights`, `images`, `vectors` or `chapters`
    what: str
    done: bool
    bytes: int = 0  #: To fetch, or to write decoded images and vectors
    note: str = ""
    place: str = "store"  #: Where the bytes go: the `hub`'s cache, decoded `data` or the `store`


def of(
    parameters: Parameters,
    *,
    chapters: Iterable[str] = tuple(CHAPTERS),
    executed: Collection[str] = (),
    reachable: bool = True,
    source: Path | None = None,
) -> list[Need]:
    """List the needs of `tasklab paper`, step by step.

    The outputs of `executed` chapters are in the store; a `reachable` hub is asked for sizes.

    Args:
        parameters: Of the chapters.
        chapters: Names of the chapters.
        executed: Those whose outputs are in the store.
        reachable: Whether the hub answers.
        source: A folder that holds the published vectors, in place of the hub.
    """
    return [
        *_weights(parameters, reachable),
        *_images(parameters, reachable),
        *_vectors(parameters, reachable, source),
        *_chapters(parameters, chapters, executed),
    ]


def _fetched(size: int) -> dict[str, Any]:
    return {"bytes": size, "place": "hub"}


def _weights(parameters: Parameters, reachable: bool) -> Iterator[Need]:
    entry = spec(parameters.model)
    found = find_weights(entry, reachable)
    if found.state in THERE:
        yield Need(step="weights", what=entry.name, done=True)
        return
    size = 4 * (entry.tower.parameters + entry.tower.text) if entry.tower else 0
    with contextlib.suppress(TasklabError, KeyError):
        size = fetching.listing(entry.repository)[entry.published].size if reachable else size
    note = "" if found.state == "fetchable" else found.note or f"{found.state}: {found.where}"
    yield Need(step="weights", what=entry.name, done=False, note=note, **_fetched(size))


def _images(parameters: Parameters, reachable: bool) -> Iterator[Need]:
    if parameters.suite != "paper":
        return
    own, root = input_side(spec(parameters.model))[0], folder("data_root", parameters.data_root)
    pictures = images.loader.DecodedImages(suite=suite("paper"), root=root)
    for name in paper_data_sets():
        found = pictures.state(name)
        side = min(own, paper_data_sets()[name].get("side", own))  # small images keep their size
        if side in found.sides:
            yield Need(step="images", what=name, done=True)
            continue
        count = sum(sizes(name).values())
        if found.state not in ("found", "decoded"):
            size = images.finding.size(paper_task(paper_data_sets()[name])) if reachable else None
            known = "a guess" if name in GUESSED else "estimated"
            note = found.note if found.state == "damaged" else ""
            note = note or ("" if size else f"{known}; from {found.where}")
            size = size or count * (GUESSED.get(name, PICTURE) if side == own else side**2)
            yield Need(step="images", what=name, done=False, note=note, **_fetched(size))
        yield Need(
            step="images", what=f"{name}, decoded", done=False, place="data",
            bytes=count * side**2 * 3,
        )  # fmt: skip


def sizes(name: str) -> dict[str, int]:
    """Return the images in the splits of a data set, as the papers draw them."""
    entry = paper_data_sets()[name]
    known = {k: n for k, n in entry["sizes"].items() if isinstance(n, int)}
    held = min(images.finding.MOST, int(images.finding.SHARE * known.get("train", known["test"])))
    if entry.get("control"):
        return {"val": held, "test": known["test"] - held}
    return known if "val" in known else {**known, "train": known["train"] - held, "val": held}


def _vectors(parameters: Parameters, reachable: bool, source: Path | None) -> Iterator[Need]:
    store, entry = Store(parameters.store_root), spec(parameters.model)
    if parameters.vectors is not None:
        wanted = catalogue.vectors(catalogue.source_of(parameters.vectors), entry.name)
        told = published.status(wanted, store, source, ask=reachable)
        for method in dict.fromkeys(one.vector.method for one in told):
            mine = [one for one in told if one.vector.method == method]
            gone = ", ".join(one.vector.task for one in mine if one.state == "unpublished")
            yield Need(
                step="vectors", what=f"{method}, {len(mine)} published",
                done=all(one.state == "imported" for one in mine),
                note=gone and f"not in the repository: {gone}",
                **_fetched(sum(one.bytes for one in mine)),
            )  # fmt: skip
        count = sum(one.state != "imported" for one in told)
        size = 4 * entry.tower.parameters * count if entry.tower else 0
        yield Need(step="vectors", what="all, in the store", done=not count, bytes=size)
        return
    known = [one.items() for one in store.configs("finetune") if one.get("model") == entry.name]
    tasks, seeds = suite(str(parameters.suite)).names, cast("tuple[int, ...]", parameters.seeds)
    for method in TRAINED if has_attention(entry.name) else TRAINED[:-1]:
        runs = [parameters.recipe(task, method, seed) for task in tasks for seed in seeds]
        left = [run for run in runs if not any(run.identity().items() <= one for one in known)]
        yield Need(
            step="vectors", what=f"{method}, {len(runs)} runs", done=not left,
            bytes=4 * entry.tower.parameters * len(left) if entry.tower else 0,
            note=f"{len(runs) - len(left)} in the store" if len(left) < len(runs) else "",
        )  # fmt: skip


def _chapters(
    parameters: Parameters, names: Iterable[str], executed: Collection[str]
) -> Iterator[Need]:
    model = spec(parameters.model).name
    for name in names:
        if has_attention(model) or not CHAPTERS[name].attention:
            yield Need(step="chapters", what=name, done=name in executed)


def missing(needs: Iterable[Need]) -> list[Need]:
    """List the needs that are not met."""
    return [one for one in needs if not one.done]


def total(needs: Iterable[Need]) -> int:
    """Return the bytes of unmet needs."""
    return sum(one.bytes for one in missing(needs))
