"""`tasklab merge` without --model: networks that no table lists, and adapters."""

from __future__ import annotations

import json as writer
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasklab.analyses import merging
from tasklab.analyses.merging import registry
from tasklab.cli import inspecting, runs
from tasklab.errors import TasklabError, shown, whole
from tasklab.exchange import places, sources
from tasklab.progress import shared
from tasklab.storage import atomic, shards

if TYPE_CHECKING:
    from tasklab.analyses.merging.anything import Network


def is_one(word: str) -> bool:
    """Return whether a word is an adapter, or files of weights that name no model of ours."""
    place = Path(word).expanduser()
    if not word.strip() or runs.is_named(word) or not place.exists():
        return False
    if merging.anything.is_plain(place):
        return True
    return not any(map(sources.is_safetensors, _files(place)))


def merge(
    base: str | None,
    words: Sequence[str],
    method: str,
    options: dict[str, Any],
    target: Path,
    rank: int | str | None,
    space: str | None,
    kinds: Mapping[str, str | None],
    *,
    unrelated: bool,
    json: bool,
) -> None:
    """Merge networks without an entry in the table of models, and print the output.

    Args:
        base: Where the network is that the others start from; `None` for `average`.
        words: Files or folders of networks, or folders of adapters.
        method: Name of the rule.
        options: Of the rule.
        target: File to write, or with a rank a folder.
        rank: Of the adapter to write; `None` for a whole network.
        space: In which the rule works.
        kinds: Patterns of names, `matrices` and `tables`.
        unrelated: Whether the networks may start from other weights than the base.
        json: Print JSON.
    """
    cut = None if rank is None else whole("--rank", rank, 1)
    inputs = [*words] if base is None else [base, *words]
    if cut is None:
        places.check_free(target, inputs)
    else:
        atomic.check_new_folder("--out", target)
    each = {word: _read(word) for word in inputs}
    networks = [each[word][0] for word in words]
    about: dict[str, Any] = {"out": target, "rank": cut, "space": space, "unrelated": unrelated}
    about |= kinds
    try:
        start = None if base is None else each[base][0]
        merging.anything.merge(start, networks, method, **about, **options)
    except TasklabError as error:  # what Python calls an option
        told = str(error).replace("in Python unrelated=True", "--unrelated")
        told = re.sub(r"\b(with|another) out\b", r"\1 --out", told)
        raise TasklabError(told.replace("give alpha:", "give --alpha:")) from error
    if json:
        about = {"out": str(target), "method": method, "options": options, "rank": cut}
        about |= {"space": space, "base": base, "networks": list(words)}
        print(writer.dumps(about, indent=1))
        return
    what = "a network" if cut is None else f"an adapter of rank {cut}"
    begin = "" if base is None else f" that start from {base}"
    print(f"{registry.method(method).title} of {len(words)} networks{begin}")
    for note in shared({word: notes for word, (_, notes) in each.items()}):
        print(f"  {note}")
    print(f"written to {target}: {what}")


def _files(place: Path) -> list[Path]:
    found = shards.in_folder(place) if place.is_dir() else [place]
    return found or sources.parts(sources.locate(place)[0])


def _read(word: str) -> tuple[Network, Sequence[str]]:
    """Return a network and notes on its file; tensors of safetensors keep their names."""
    found = inspecting.opened(word)
    if isinstance(found, Path):
        return found, ()
    place = Path(word).expanduser()
    if all(map(sources.is_safetensors, _files(place))):
        return place, ()
    if found.is_vector:
        raise TasklabError(
            f"{shown(word)} holds a change, no weights: give the checkpoint, or --model."
        )
    return found.tensors, found.notes
