"""Verdicts on a chapter's claims from the recorded results, judged once a machine."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tasklab.chapters import CHAPTERS
from tasklab.chapters import chapter as chapter_of
from tasklab.records import judgement, statements
from tasklab.records.claims import BY_ID
from tasklab.records.intervals import Interval
from tasklab.records.judgement import Verdict
from tasklab.records.schema import COMPARISONS
from tasklab.storage.code import code_of
from tasklab.storage.store import Store, free_first
from tasklab.study import results

KIND = "verdicts"  # of artifact
_ROOMS = ("records", "chapters", "study", "analyses")  # whose code judges
_INTERVALS = ("interval", "here", "pretrainings", "robust")
_LEVELS = ("p", "p_here", "value", "bound")


def judged(chapter: str, *, model: str = "mini", store: Store | None = None) -> list[Verdict]:
    """Return the verdicts on a chapter's claims, in the papers' order, by its recorded results.

    They are those of `records.verdicts(evidence(chapter), chapter, model=model)`, marked with the
    corrections that their statements survive among those of all chapters. Where both sides of a
    claim were measured on one make of processor in other parts, it is judged on these records. As
    that takes seconds, verdicts are kept in the store, until the code that judges, a claim or a
    record changes.
    """
    chapter_of(chapter)
    kept = store or Store()
    order = free_first(CHAPTERS, lambda name: kept.making(KIND, _asked(name, model)))
    found = {name: _judged(name, model, kept) for name in order}
    every = [one for name in CHAPTERS for one in found[name]]
    return [one for one in statements.marked(every) if one.claim.paper == chapter]


def _asked(chapter: str, model: str) -> dict[str, str]:
    return {"chapter": chapter, "model": model, "package": _package()}


def _judged(chapter: str, model: str, store: Store) -> list[Verdict]:
    def make(_: Path) -> tuple[dict, dict]:
        tables = results.tables_of(chapter)
        found = judgement.verdicts(results.joined(*tables), chapter, model=model)
        found = _of_one_make(found, tables, model)
        return {}, {"verdicts": [_noted(verdict) for verdict in found]}

    return [
        _verdict(note) for note in store.get(KIND, _asked(chapter, model), make).record["verdicts"]
    ]


def _of_one_make(
    found: Sequence[Verdict], tables: Sequence[pd.DataFrame], model: str
) -> list[Verdict]:
    """Return verdicts, of sides of one make of processor where other parts have such records."""
    best = {one.claim: one for one in found}
    asked = {name for one in found if one.mixed for name in judgement.experiments(one.claim)}
    few = [one[one["experiment"].isin(asked)] for one in tables]
    for makes in results.makes_of(results.joined(*few)) if asked else ():
        mixed = [claim for claim, one in best.items() if one.mixed]
        rows = results.joined(*few, makes=makes)
        for one in judgement.of_claims(mixed, rows, model=model):
            first = best[one.claim]
            whole = one.n_seeds == first.n_seeds and one.by_task.keys() == first.by_task.keys()
            if whole and one.mixed < first.mixed:
                best[one.claim] = one
    return list(best.values())


@functools.cache
def _package() -> str:
    """Return a hash of all by which claims are judged: code that judges, claims, and records."""
    code = code_of(
        {"tasklab.records.judgement", "tasklab.study.results", *COMPARISONS.homes()},
        lambda name: name.startswith(tuple(f"tasklab.{room}." for room in _ROOMS)),
    )
    package, digest = Path(__file__).resolve().parents[1], hashlib.sha256(code.encode())
    for file in sorted((*package.glob("records/*.csv"), *package.glob("study/recorded/*"))):
        digest.update(file.name.encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _noted(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON can hold it: its claim by name, no NaN, keys as pairs."""
    note = {
        name: getattr(verdict, name) for name in ("outcome", "sources", "n_pretrainings", "mixed")
    }
    for name in ("by_seed", "by_task"):
        note[name] = [[key, _number(value)] for key, value in getattr(verdict, name).items()]
    for name in _INTERVALS:
        note[name] = [_number(value) for value in getattr(verdict, name)]
    note |= {name: _number(getattr(verdict, name)) for name in _LEVELS}
    return {**note, "claim": verdict.claim.id}


def _number(value: float) -> str:
    return float(value).hex()  # bit for bit, and for NaN and infinity too


def _verdict(note: Mapping[str, Any]) -> Verdict:
    fields = {**note, "claim": BY_ID[note["claim"]], "sources": tuple(note["sources"])}
    for name in ("by_seed", "by_task"):
        fields[name] = {key: float.fromhex(value) for key, value in note[name]}
    for name in _INTERVALS:
        fields[name] = Interval(*map(float.fromhex, note[name]))
    return Verdict(**{**fields, **{name: float.fromhex(note[name]) for name in _LEVELS}})
