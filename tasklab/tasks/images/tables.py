"""Parquet files as the hub has them: their labels, the names of their classes, their images."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasklab.errors import TasklabError, some
from tasklab.tasks.images.opening import sound

if TYPE_CHECKING:
    import pyarrow as pa

WHOLE = "a whole parquet file"
_ROWS = 16  # rows of a parquet file in memory at a time; a photograph has up to megabytes


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """What parquet files of one split say, without their images.

    Attributes:
        labels: (N,) int64.
        names: Of the classes, or `None`.
        sizes: Rows of each row group.
        groups: Number of the file, and row group in it.
    """

    labels: np.ndarray
    names: tuple[str, ...] | None
    sizes: tuple[int, ...]
    groups: tuple[tuple[int, int], ...]


def table(files: Sequence[Path], image: str, label: str) -> Table:
    """Return what parquet files of one split say; `formats.parquet` tells what they may hold.

    Raises:
        TasklabError: If a file is damaged, a column is missing or holds something else, or the
            files name their classes differently.
    """
    from pyarrow import parquet as pq

    labels, groups, sizes = [], [], []
    named: dict[tuple[str, ...] | None, Path] = {}
    for number, file in enumerate(files):
        with sound(file, WHOLE), pq.ParquetFile(file) as opened:
            _check_columns(file, opened.schema_arrow, image, label)
            parts = [opened.metadata.row_group(g).num_rows for g in range(opened.num_row_groups)]
            sizes += parts
            groups += [(number, group) for group in range(len(parts))]
            if opened.metadata.num_rows:
                named.setdefault(_names_inside(opened.schema_arrow.metadata, label), file)
                labels.append(_values(file, opened.read(columns=[label])[label], label))
    if len(named) > 1:
        (first, one), (second, other) = list(named.items())[:2]
        raise TasklabError(
            f"files of one split have different labels: {one} numbers {_named(first)}, {other} "
            f"{_named(second)}. They are not of the same data set: fetch them again."
        )
    joined, names = np.zeros(0, dtype=np.int64), next(iter(named), None)
    kinds = {values.dtype.kind for values in labels}
    if len(kinds) > 1:
        raise TasklabError(f"labels in {files[0].parent} are texts in some files only.")
    if labels:
        joined = np.concatenate(labels)
    if kinds == {"U"}:
        words, joined = np.unique(joined, return_inverse=True)
        names = tuple(words.tolist())
    names = names or _names_beside(files[0], label)
    return Table(joined.astype(np.int64), names, tuple(sizes), tuple(groups))


def _check_columns(file: Path, schema: pa.Schema, image: str, label: str) -> None:
    import pyarrow as pa

    if image not in schema.names or label not in schema.names:
        raise TasklabError(
            f"{file} has the columns {', '.join(schema.names)}: image={image!r} and "
            f"label={label!r} must be two of them. `own.from_hub` takes other names; for a data "
            "set of the papers rename the columns, or fetch a copy with `tasklab decode --fetch`."
        )
    kind = schema.field(image).type
    if pa.types.is_struct(kind):
        kind = next((one.type for one in kind if one.name == "bytes"), kind)
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_null(kind)):
        raise TasklabError(
            f"{file}: the column {image!r} holds {kind}, not images. It should have the bytes of "
            "image files, plain or in structs of `bytes` and `path`."
        )


def _values(file: Path, column: pa.ChunkedArray, label: str) -> np.ndarray:
    """Return labels as int64 or as texts."""
    if column.null_count:
        raise TasklabError(f"{file}: {column.null_count:,} rows have no {label!r}.")
    values = column.combine_chunks().to_numpy(zero_copy_only=False)
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        return values.astype(str)
    if values.dtype.kind not in "iufb" or not np.array_equal(values, values.astype(np.int64)):
        raise TasklabError(
            f"{file}: the column {label!r} holds {column.type}; labels are whole numbers or texts."
        )
    return values.astype(np.int64)


def _named(names: Sequence[str] | None) -> str:
    return "classes without names" if names is None else some(names, 4)


def _names_inside(metadata: Mapping[bytes, bytes] | None, label: str) -> tuple[str, ...] | None:
    """Return class names from what the library `datasets` writes into a parquet file."""
    try:
        info = json.loads((metadata or {})[b"huggingface"])
        return tuple(info["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def _names_beside(file: Path, label: str) -> tuple[str, ...] | None:
    """Return class names from `classes.txt` or the data set's card, at most three folders up."""
    for folder in list(file.parents)[:4]:
        listed = folder / "classes.txt"
        if listed.is_file():
            with sound(listed, "a list of classes in UTF-8", "Write one name a line."):
                if text := listed.read_text("utf-8-sig").rstrip("\n"):
                    return tuple(text.split("\n"))
        card = folder / "README.md"
        if card.is_file() and (found := _names_of_card(card, label)):
            return found
    return None


def _names_of_card(card: Path, label: str) -> tuple[str, ...] | None:
    import yaml

    try:
        info = yaml.safe_load(card.read_text("utf-8").split("---")[1])["dataset_info"]
        for one in info if isinstance(info, list) else [info]:
            for feature in one["features"]:
                if feature["name"] == label and "class_label" in feature["dtype"]:
                    names = feature["dtype"]["class_label"]["names"]
                    if isinstance(names, dict):
                        names = [names[key] for key in sorted(names, key=int)]
                    return tuple(str(name) for name in names)
    except (LookupError, OSError, TypeError, ValueError, yaml.YAMLError):
        pass  # a card is for people: what it does not say, or not so, it does not say
    return None


def cells(file: str, group: int, column: str) -> Iterator[Any]:
    """Yield the cells of a column in a row group: the bytes of an image each, or `None`.

    Raises:
        TasklabError: If the file is damaged.
    """
    from pyarrow import parquet as pq

    with sound(file, WHOLE), pq.ParquetFile(file) as opened:
        for part in opened.iter_batches(_ROWS, [group], [column], use_threads=False):
            for cell in part.column(0):
                value = cell.as_py()
                yield value.get("bytes") if isinstance(value, dict) else value
