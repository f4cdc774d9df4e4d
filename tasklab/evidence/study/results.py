"""Recorded results: files that ship with the package, and evidence for claims from them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tasklab.evidence.chapters import CHAPTERS
from tasklab.evidence.chapters import chapter as chapter_of
from tasklab.evidence.records import table
from tasklab.evidence.records.images import box_means
from tasklab.evidence.records.papers import papers
from tasklab.evidence.records.schema import FORMER_MERGES
from tasklab.evidence.study.sittings import each_of, former_images

RECORDED = Path(__file__).parent / "recorded"


def path_of(chapter: str, part: str) -> Path:
    """Return the file of a part's recorded results; the provenance lies beside it as JSON."""
    chapter_of(chapter).works(part)
    stem = chapter if part == "editing" else f"{chapter}_{part}"
    return RECORDED / f"{stem}.csv.xz"


def awaited(chapter: str) -> bool:
    """Return whether a chapter has no records yet."""
    return not any(path_of(chapter, part).exists() for part in chapter_of(chapter).parts)


def how_many_recorded() -> tuple[int, int]:
    """Return the number of recorded parts of all chapters, and of all parts."""
    files = [path_of(chapter, part) for chapter, entry in CHAPTERS.items() for part in entry.parts]
    return sum(file.exists() for file in files), len(files)


def sittings_of(chapter: str) -> pd.DataFrame:
    """Return where and when the recorded results of a chapter were made, one row per sitting.

    Returns:
        Columns part, seeds, commit, day, precision of fine-tuning, images (today's, or former ones
        that differ in a few grey values), machine, hours of fine-tuning and of measuring, summed
        over processes; empty where they were not kept.
    """
    rows = []
    for part in chapter_of(chapter).parts:
        _, origin = recorded(chapter, part)
        for one in each_of(origin) if origin else ():
            spent = [(one.get(kind) or {}).get("seconds") for kind in ("fine_tuning", "measuring")]
            hours = ["" if s is None else f"{s / 3600:.1f}" for s in spent]
            machine = one.get("machine") or {}
            rows.append({
                "part": f"{part}: {one['only']}" if "only" in one else part,
                "seeds": ", ".join(map(str, one["seeds"])), "commit": one["commit"],
                "day": one["utc"][:10].replace("-", "\N{NON-BREAKING HYPHEN}"),
                "precision": one.get("precision", ""),
                "images": "former" if former_images(one) else "today's",
                "machine": machine.get("gpu") or _processor(machine),
                "fine-tuning (h)": hours[0], "measuring (h)": hours[1],
            })  # fmt: skip
    return pd.DataFrame(rows)


def _processor(machine: Mapping[str, Any]) -> str:
    many = machine.get("threads")
    threads = f", {many} thread{'s' * (many > 1)} a process" if many else ""
    return f"{machine['cpu']}, {machine['cores']} cores{threads}"


def recorded(chapter: str, part: str = "editing") -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the recorded results of the full preset that ship with the package.

    Returns:
        Tidy records, and their provenance; both are empty while the part is not recorded
        (`tasklab record CHAPTER --part PART` does it).
    """
    path = path_of(chapter, part)
    recorded = path.exists() or table.provenance_path(path).exists()
    if not recorded:
        return table.nothing(), {}
    rows, origin = _read(path, *_stamps(path))
    return rows.copy(deep=False), copy.deepcopy(origin)  # pandas copies on write


def _stamps(path: Path) -> tuple[int, ...]:
    files = (path, table.provenance_path(path))
    return tuple(one.stat().st_mtime_ns for one in files if one.exists())


@functools.lru_cache(maxsize=256)  # more than there are parts: pages go through all in turn
def _read(path: Path, *_stamps: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    rows, origin = table.read(path)
    if "merge" in rows:
        rows = rows[~rows["merge"].isin(FORMER_MERGES)].reset_index(drop=True)
    rows.attrs["kind"] = "recorded"
    return rows, origin


def with_joint(rows: pd.DataFrame) -> pd.DataFrame:
    """Return records with the recorded joint training of their models."""
    tables = (recorded("merging", f"joint{which}")[0] for which in ("", "_ways", "_encoders"))
    own = [one[one["model"].isin(set(rows["model"]))] for one in tables]
    return table.combine(rows, *(one for one in own if len(one)))


def evidence(chapter: str) -> pd.DataFrame:
    """Return all recorded results by which a chapter's claims are judged, maps as their box means.

    Rows that two parts have are taken from the first: machines may round differently.
    Claims on missing records are not tested. Parts on all tasks of a suite, of which labs take
    some, are left out: their sums are of sets, and claims are about one sum.
    """
    declared = chapter_of(chapter).parts.items()
    own = [part for part, works in declared if not any(work.tasks for work in works)]
    parts: list[tuple[str, str, tuple[str, ...]]] = [(chapter, part, ()) for part in own]
    for other, there, experiments in chapter_of(chapter).elsewhere:
        parts += [(other, part, tuple(experiments)) for part in there]
    paths = [path_of(other, part) for other, part, _ in parts]
    stamps = tuple((path, *_stamps(path)) for path in paths)
    return _evidence(chapter, tuple(parts), stamps).copy(deep=False)


@functools.lru_cache(maxsize=1)  # each world's verdicts and answers ask for it in turn
def _evidence(
    chapter: str, parts: tuple[tuple[str, str, tuple[str, ...]], ...], _as_written: tuple
) -> pd.DataFrame:
    every = []
    for other, part, experiments in parts:
        rows = recorded(other, part)[0]
        if experiments:
            rows = rows[rows["experiment"].isin(experiments)]
            crossed = (rows["experiment"] == "crossing") & ~rows["metric"].str.startswith("xi_")
            rows = rows[~crossed]
        every.append(rows)
    return gathered(chapter, [part for part in every if not table.is_awaited(part)])


def gathered(chapter: str, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return tables of records as one by which a chapter's claims are judged.

    Maps are their box means; rows that two tables have are taken from the first.
    """
    maps = [t[t["alpha1"].notna()] for t in tables if "alpha1" in t]
    others = [t[t["alpha1"].isna()] if "alpha1" in t else t for t in tables]
    boxes = chapter_of(chapter).boxes.items()
    means = [box_means(t, *box, name=name) for name, box in boxes for t in maps if len(t)]
    return joined(*others, *means)


def joined(*tables: pd.DataFrame) -> pd.DataFrame:
    """Concatenate recorded parts; of rows in two parts the first one's are used.

    They may be of machines that round otherwise, which `records.combine` refuses.
    """
    there = [one for one in tables if len(one)] or tables[:1]
    return table.combine(_of_the_first(there)) if there else table.nothing()


def _of_the_first(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate tables; drop rows that an earlier table has at any coefficient."""
    whole = pd.concat([each.assign(part=i) for i, each in enumerate(tables)], ignore_index=True)
    keys = whole.columns.difference([*table.MEASURED, "alpha", "part"])
    codes = [pd.factorize(whole[name], use_na_sentinel=False)[0] for name in keys]
    first = whole["part"].groupby(codes, sort=False).transform("min")
    return whole[whole["part"] == first].drop(columns="part")


def gains(df: pd.DataFrame) -> pd.DataFrame:
    """Return the relative saving of a linearized step (`experiments.step_cost`) over the papers'.

    Returns:
        A row for time and one for memory: the listing's cost and the one here as multiples of a
        standard step's, and the gain, their ratio.
    """
    rows = table.where(df, experiment="cost", metric=["time_ratio", "peak_memory"])
    costs = rows.pivot_table(index="metric", columns="variant", values="value", sort=False)
    costs = costs[["listing", "ours"]].div(costs["standard"], axis=0)
    costs = costs.assign(gain=costs["listing"] / costs["ours"])
    costs = costs.rename({"time_ratio": "time of a step", "peak_memory": "peak memory"})
    costs = costs.rename(columns={"listing": "the paper's listing", "ours": "here"})
    return costs.rename_axis("over a standard step").reset_index().rename_axis(columns=None)


def r_squared(fits: pd.DataFrame) -> pd.DataFrame:
    """Tabulate R^2 of the explanations of theorem 5.1's gap beside the paper's (appendix C.2).

    Args:
        fits: Result of `curvature.explained_variance`.

    Returns:
        One row per predictor: the paper's R^2, and ours with its 95 % interval and n (pairs).
    """
    printed = papers("ctl", "C.2")["value"].tolist()
    fits = fits.set_index("predictor").loc[["bound", "curvature", "distance"]]
    shown = fits[["value", "low", "high", "n_pairs"]].reset_index()
    shown.insert(1, "paper R²", printed)
    return shown.rename(columns={"value": "R² here", "n_pairs": "n pairs"})
