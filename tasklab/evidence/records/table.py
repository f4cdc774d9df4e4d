"""Tidy records of measurements: checked, averaged, with their origin, written and read.

`tasklab.evidence.records.schema` declares experiments, metrics and columns.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tasklab.bench.provenance import provenance as provenance
from tasklab.errors import TasklabError, choose, make_room, unknown
from tasklab.evidence.records.schema import ACCURACIES, COLUMNS, EXPERIMENTS, MEASURED, METHODS
from tasklab.storage import atomic

_REQUIRED = ("experiment", "model", "method", "task", "metric", "value")
_DEFAULTS: dict[str, Any] = {"suite": "mini", "init": "pretrained", "subset": "", "split": "test"}
_WHOLE = ("n_tasks", "seed", "n")
_PRESET = 6 | lzma.PRESET_EXTREME  # a third smaller than gzip
_SEAL = "checksum"  # entry of a provenance: that of the others
_BEFORE = "before"  # entry of a provenance: that of the rows before, while they are replaced
_AWAITED = "awaited"  # key of a table's attributes, which pandas hands on


class Records(pd.DataFrame):
    """Tidy records; per-image correctness, in the column `hits`, is not displayed."""

    @property
    def _constructor(self) -> type[Records]:
        return Records

    def _shown(self) -> pd.DataFrame:
        return pd.DataFrame(self).drop(columns="hits", errors="ignore")

    def __repr__(self) -> str:
        return repr(self._shown())

    def _repr_html_(self) -> str | None:
        return self._shown()._repr_html_()


def tidy(rows: pd.DataFrame | Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return `rows` as a checked table with the columns of `COLUMNS` first, further ones after.

    Args:
        rows: Records; `suite`, `init`, `subset` and `split` default to `mini`, `pretrained`, the
            empty string and `test`, and `n_tasks`, `seed`, `alpha`, `n` may be absent.

    Raises:
        TasklabError: A required column is missing or empty, a number is none, the schema does not
            have an experiment, metric, column or method, a run is recorded twice, a row is a mean
            over tasks, or accuracies look like fractions.
    """
    df = Records(rows.copy() if isinstance(rows, pd.DataFrame) else list(rows))
    missing = [name for name in _REQUIRED if name not in df]
    if missing:
        raise TasklabError(f"records need the columns {', '.join(missing)}.")
    for name, default in _DEFAULTS.items():
        df[name] = df[name].fillna(default) if name in df else default
    try:
        for name in _WHOLE:
            df[name] = pd.array(df[name] if name in df else [None] * len(df), dtype="Int64")
        for name in ("alpha", "value"):
            df[name] = pd.to_numeric(df[name]) if name in df else np.nan
            df[name] = df[name].astype(float)
    except (ValueError, TypeError, OverflowError) as error:
        kind = "whole numbers" if name in _WHOLE else "numbers"
        raise TasklabError(f"the column {name!r} of records holds {kind}: {error}.") from error
    _check(df)
    return df[[*COLUMNS, *(name for name in df if name not in COLUMNS)]].reset_index(drop=True)


def nothing() -> pd.DataFrame:
    """Return an empty table, for results that are not recorded yet.

    It has every column that records may have. Tables that are computed from it are recognised by
    `is_awaited`.
    """
    further = [name for entry in EXPERIMENTS.values() for name in entry.columns]
    df = tidy(pd.DataFrame(columns=list(dict.fromkeys([*COLUMNS, *further]))))
    df.attrs[_AWAITED] = True
    return df


def is_awaited(value: object) -> bool:
    """Return whether a table is empty because its records are missing."""
    return isinstance(value, pd.DataFrame) and value.empty and bool(value.attrs.get(_AWAITED))


def filled(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows as dictionaries, without missing values."""
    return [
        {name: value for name, value in row.items() if pd.notna(value)}
        for row in table.to_dict("records")
    ]


def combine(*tables: pd.DataFrame) -> pd.DataFrame:
    """Return several tables of records as one, checked again; the same record counts once."""
    if not tables:
        raise TasklabError("give at least one table of records to combine.")
    tables = tuple(one for one in tables if len(one)) or tables  # what is left out is empty
    whole = tidy(pd.concat(tables, ignore_index=True).drop_duplicates())
    if all(one.attrs == tables[0].attrs for one in tables):
        whole.attrs = dict(tables[0].attrs)
    return whole


def one_model(df: pd.DataFrame, init: str) -> pd.DataFrame:
    """Return the records of one initialisation, which must be of one model and suite."""
    df = df[df["init"] == init]
    several = df[["model", "suite"]].drop_duplicates()
    if len(several) > 1:
        raise TasklabError(f"records of {len(several)} models or suites: select one first.")
    return df


def select(
    df: pd.DataFrame, experiment: str, metric: str, method: str, n_tasks: int
) -> pd.DataFrame:
    """Return the records of a method on test images.

    Args:
        df: Tidy records.
        experiment: Its name.
        metric: Its name.
        method: One of `EDITS`.
        n_tasks: Number of tasks in a sum; only `addition` has several.
    """
    rows = where(df, experiment=experiment, metric=metric, method=method, split="test")
    return where(rows, n_tasks=n_tasks) if experiment == "addition" else rows


def where(df: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """Return the records whose columns have the given value, or one of several (no tuple)."""
    for name, value in wanted.items():
        several = isinstance(value, Iterable) and not isinstance(value, str | tuple)
        found = df[name].isin(list(value)) if several else df[name] == value
        df = df[found.fillna(False).astype(bool)]
    return df


def most_tasks(df: pd.DataFrame) -> pd.DataFrame:
    """Return the records with the largest number of tasks."""
    return where(df, n_tasks=df["n_tasks"].max())


def _obey(df: pd.DataFrame) -> None:
    further = [name for name in df if name not in COLUMNS]
    for name, rows in df.groupby("experiment", sort=False):
        choose("experiment", name, EXPERIMENTS)
        entry = EXPERIMENTS[name]
        for metric in rows["metric"].unique():
            choose(f"metric of the experiment {name!r},", metric, entry.metrics)
        for column in further:
            if column not in entry.columns and rows[column].notna().any():
                choices = (*COLUMNS, *entry.columns)
                raise unknown(f"column of the experiment {name!r},", column, choices)


def _check(df: pd.DataFrame) -> None:
    _obey(df)
    for method in df["method"].unique():
        choose("method", method, METHODS)
    bad = df.index[df["value"].isna()]
    if len(bad):
        raise TasklabError(f"record {bad[0]} has no value: leave out what was not measured.")
    if (df["task"] == "mean").any():
        raise TasklabError("records are per task: leave out rows with the task 'mean'.")
    twice = df.duplicated([name for name in df if name not in MEASURED])
    if twice.any():
        row = df[twice].iloc[0]
        names = ("experiment", "method", "task", "metric", "seed", "alpha")
        run = ", ".join(f"{k}={row[k]}" for k in names)
        raise TasklabError(f"the same run is recorded twice: {run}.")
    shares = df.loc[df["metric"].isin(ACCURACIES), "value"]
    if len(shares) >= 8 and 0 < shares.max() <= 1:
        raise TasklabError("accuracies look like fractions; records hold percentages (0 to 100).")
    if len(shares) and not shares.between(0, 100).all():
        raise TasklabError("an accuracy lies outside 0 to 100 %.")


def summarise(df: pd.DataFrame, by: Iterable[str], value: str = "value") -> pd.DataFrame:
    """Average within each seed first (over tasks and subsets), then over seeds.

    Args:
        df: Tidy records.
        by: Columns of the groups.
        value: Column that is averaged.

    Returns:
        One row a group in order of appearance: `by`, `mean`, `std` (over seeds, n − 1; NaN for one
        seed) and `n_seeds`. The seeds are those of fine-tuning: the spread does not contain
        pre-training, nor the sampling of test images.
    """
    by = list(by)
    of_seed = df.groupby(list(dict.fromkeys([*by, "seed"])), dropna=False, sort=False)[value]
    per_seed = of_seed.mean().reset_index()
    groups = per_seed.groupby(by, dropna=False, sort=False)[value]
    return groups.agg(mean="mean", std="std", n_seeds="size").reset_index()


def write(
    path: Path | str,
    rows: pd.DataFrame | Iterable[Mapping[str, Any]],
    provenance: Mapping[str, Any],
) -> Path:
    """Write records to `path` (CSV) and their provenance beside them (JSON), each atomically.

    Args:
        path: Name ending in `.csv`, or in `.csv.xz` for a compressed file; the provenance takes the
            same name with `.json`.
        rows: Records.
        provenance: Their origin: parameters, versions, hardware.

    Returns:
        The CSV file's path.
    """
    path = Path(path)
    beside = provenance_path(path)
    text = tidy(rows).to_csv(index=False, lineterminator="\n").encode()
    note = sealed({**provenance, "sha256": hashlib.sha256(text).hexdigest()})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError, ValueError):
            # until the new rows are there, the old ones are described, too
            both = {**note, _BEFORE: json.loads(beside.read_text("utf-8"))}
            atomic.write(beside, json.dumps(both, allow_nan=False))
        atomic.write(path, lzma.compress(text, preset=_PRESET) if path.suffix == ".xz" else text)
        atomic.write(beside, json.dumps(note, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        advice = f"{make_room(error.errno) or 'Make it writable'}, or choose another file."
        raise TasklabError(f"cannot write records to {path}: {error.strerror}. {advice}") from error
    return path


def sealed(note: Mapping[str, Any]) -> dict[str, Any]:
    """Return a provenance with its checksum, which `read` compares."""
    plain = {name: x for name, x in note.items() if name not in (_SEAL, _BEFORE)}
    text = json.dumps(plain, sort_keys=True, allow_nan=False)
    return {**plain, _SEAL: hashlib.sha256(text.encode()).hexdigest()}


def provenance_path(path: Path) -> Path:
    """Return the path of the provenance of a file of records.

    >>> provenance_path(Path("study/maps.csv.xz")).name
    'maps.json'
    """
    if not path.name.endswith((".csv", ".csv.xz")):
        raise TasklabError(f"records are written as .csv or .csv.xz, not {path.name!r}.")
    return path.with_name(path.name.removesuffix(".xz").removesuffix(".csv") + ".json")


def read(path: Path | str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the records in `path` and their provenance."""
    path = Path(path)
    beside = provenance_path(path)
    try:
        text = path.read_bytes()
        text = lzma.decompress(text) if path.suffix == ".xz" else text
        note = json.loads(beside.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TasklabError(f"no records: {error.filename} is missing.") from error
    except lzma.LZMAError as error:
        raise TasklabError(f"{path} is damaged ({error}): write it again.") from error
    except ValueError as error:
        raise TasklabError(f"{beside} is not readable JSON: {error}.") from error
    digest = hashlib.sha256(text).hexdigest()
    while isinstance(note, dict) and note.get("sha256") != digest:
        note = note.get(_BEFORE)
    if isinstance(note, dict) and note.get(_SEAL) not in (None, sealed(note)[_SEAL]):
        raise TasklabError(f"{beside} is damaged: its checksum does not match. Write it again.")
    if not isinstance(note, dict):
        raise TasklabError(f"{path} is not the file that its .json describes: write it again.")
    try:
        table = pd.read_csv(
            io.BytesIO(text), keep_default_na=True, dtype={"subset": str, "hits": str}
        )
    except ValueError as error:  # pandas' own errors are of this kind, too
        raise TasklabError(f"{path} holds no records: {error}.") from error
    checks = ("sha256", _SEAL, _BEFORE)
    return tidy(table), {name: x for name, x in note.items() if name not in checks}
