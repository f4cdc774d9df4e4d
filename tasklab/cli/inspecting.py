"""The command `tasklab inspect`: changes between a base and fine-tuned networks."""

from __future__ import annotations

import dataclasses
import json as writer
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from tasklab import analyses, exchange
from tasklab.analyses import merging
from tasklab.errors import TasklabError, abridged, path, shown
from tasklab.isolation import isolated
from tasklab.progress import columns, shared

if TYPE_CHECKING:
    from tasklab.analyses.inspection import Change, Inspection
    from tasklab.analyses.merging.anything import Network

_NONE = "–"
_KINDS = {
    "matrix": "matrices", "table": "tables", "kernel": "kernels", "norm": "norms",
    "bias": "biases", "other": "others", "state": "state",
}  # fmt: skip
_FAR = 0.8  # |tau| / |theta_0| from which on a network is hardly a change of its base
_ALIKE = 0.9  # cosine from which on changes are probably from another base


@isolated
def inspect(
    network: tyro.conf.Positional[tuple[str, ...]],
    *,
    base: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE")] = (),
    json: bool = False,
) -> None:
    """Show changes by fine-tuning, computed from the weights alone.

    Args:
        network: Files or folders of weights of any architecture (safetensors, or of torch.save,
            whose code is never executed), of task vectors, or of adapters of peft (LoRA). Without
            --base, two networks: the second is compared with the first.
        base: Network before fine-tuning. Of several, each network is compared with the nearest.
        json: Print JSON: changes (of each network its base, norm, relative norm, distances to all
            bases, kinds of tensors and how many moved, types, rounding, stable ranks, names that
            differ), cosines and tied parameters of the bases.
    """
    words = [*network, *base]
    if not network:
        raise TasklabError("name a network: tasklab inspect A B --base X.")
    for one in (network, base):
        if twice := [word for word in dict.fromkeys(one) if one.count(word) > 1]:
            raise TasklabError(f"{shown(twice[0])} is given twice.")
    files = {word: opened(word) for word in dict.fromkeys(words)}
    if wrong := [word for word in base if _is_change(files[word])]:
        raise TasklabError(f"{shown(wrong[0])} holds a change, no weights: give another --base.")
    found = analyses.inspection.inspect(
        {word: weights(files[word]) for word in network},
        {word: weights(files[word]) for word in base},
        vectors=[word for word in network if getattr(files[word], "is_vector", False)],
    )
    notes = {word: [*getattr(one, "notes", ())] for word, one in files.items()}
    for change in found.changes:
        notes[change.network] += _notes(change, found)
    if json:
        about = dataclasses.asdict(found) | {"notes": notes}
        print(writer.dumps(about, indent=1, allow_nan=False))
        return
    print(*_table(found.changes), sep="\n")
    if len(base) > 1:
        rows = [
            [one.network, *(_real(one.distances.get(b)) for b in base)] for one in found.changes
        ]
        print("", *columns([["|tau|/|theta_0| from", *base], *rows], right=True), sep="\n")
    if len(found.changes) > 1:
        names = [one.network for one in found.changes]
        rows = [[n, *map(_cosine, row)] for n, row in zip(names, found.cosines, strict=True)]
        print("", *columns([["cosine", *names], *rows], right=True), sep="\n")
    told = shared(notes) + _alike(found)
    print(*([""] if told else []), *told, sep="\n")


def opened(word: str) -> Path | exchange.opening.Opened:
    """Return an adapter's folder, or the tensors of any other file."""
    place = path("a network", word)
    if place.name in merging.adapters.FILES and place.is_file():
        place = place.parent
    if place.is_dir() and merging.adapters.is_adapter(place):
        return place
    from tasklab.storage.files import Files  # start-up

    return exchange.opening.opened(word, Files)


def weights(found: Path | exchange.opening.Opened) -> Network:
    """Return the tensors of an opened checkpoint, or an adapter's folder."""
    return found if isinstance(found, Path) else found.tensors


def _is_change(found: Path | exchange.opening.Opened) -> bool:
    return isinstance(found, Path) or found.is_vector


def _table(changes: Sequence[Change]) -> list[str]:
    kinds = [kind for kind in _KINDS if any(kind in one.kinds for one in changes)]
    head = ["network", "base", "|tau|", "|tau|/|theta_0|", "numbers moved"]
    rows = [[*head, *(_KINDS[kind] for kind in kinds), "stable rank", "in 16 bits"]]
    for one in changes:
        moved = [one.kinds.get(kind) for kind in kinds]
        row = [one.network, one.base or _NONE, _real(one.norm), _real(one.relative)]
        row += [f"{100 * one.moved / one.numbers:.1f} %" if one.numbers else _NONE]
        row += [f"{kind['moved']}/{kind['tensors']}" if kind else _NONE for kind in moved]
        rows.append([*row, _ranks(one), _grid(one)])
    return columns(rows, right=True)


def _ranks(change: Change) -> str:
    """Return the median and range of the stable ranks of matrices that moved."""
    ranks = [*change.ranks.values()]
    if not ranks:
        return _NONE
    return f"{statistics.median(ranks):.1f} ({min(ranks):.1f} to {max(ranks):.1f})"


def _grid(change: Change) -> str:
    """Return the type of 16 bits that holds most of the numbers, with their share, from 1 %."""
    if not change.grids:
        return _NONE
    name = max(change.grids, key=lambda one: change.grids[one])
    share = 100 * change.grids[name]
    return f"{name} {share:.0f} %" if share >= 1 else _NONE


def _real(x: float | None) -> str:
    return _NONE if x is None else f"{x:.4g}"


def _cosine(x: float | None) -> str:
    return _NONE if x is None else f"{x:.3f}"


def _notes(change: Change, found: Inspection) -> list[str]:
    """Describe unusual properties of one network."""
    lists: dict[str, Sequence[str]] = {
        "names that only the base has": change.missing,
        "names that only the network has": change.added,
        "tensors of another shape than the base's, left out": change.reshaped,
        "tensors with NaN or infinity, left out": change.not_finite,
        "buffers and whole numbers that differ": change.state,
        "parameters that are the base's, rounded; they count as unchanged": (change.only_rounded),
    }
    notes = [
        f"{what}: {len(names)} ({abridged(names, 3)})" for what, names in lists.items() if names
    ]
    if change.rounding:
        share = f"{100 * change.rounding:.3g} % of |tau|"
        notes.append(f"weights are rounded: the expected error is {share}")
    if (change.relative or 0) > _FAR:
        notes.append("this is hardly a change of the base: was it fine-tuned from another network?")
    base = {frozenset(pair) for pair in found.tied.get(change.base or "", ())}
    own = {frozenset(pair) for pair in change.tied}
    for pair in sorted(map(sorted, own)):
        notes.append(f"{shown(pair[0])} and {shown(pair[1])} are tied")
    for pair in sorted(map(sorted, base - own)):
        if not set(pair) & set(change.missing):
            notes.append(f"{shown(pair[0])} and {shown(pair[1])} are tied in the base alone")
    return notes


def _alike(found: Inspection) -> list[str]:
    """Return a warning where all changes have one direction."""
    pairs: list[Any] = [x for i, row in enumerate(found.cosines) for x in row[:i]]
    if not pairs or None in pairs or min(pairs) <= _ALIKE:
        return []
    return [
        f"all changes have one direction (cosines above {_ALIKE}): the same training twice, or "
        "networks that started from another base"
    ]
