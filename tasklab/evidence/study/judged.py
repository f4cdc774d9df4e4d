"""Verdicts on a chapter's claims from the recorded results, judged once a machine."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasklab.evidence.chapters import CHAPTERS
from tasklab.evidence.chapters import chapter as chapter_of
from tasklab.evidence.records import judgement, statements
from tasklab.evidence.records.claims import BY_ID
from tasklab.evidence.records.intervals import Interval
from tasklab.evidence.records.judgement import Verdict
from tasklab.evidence.records.schema import COMPARISONS
from tasklab.evidence.study import results
from tasklab.storage.code import code_of
from tasklab.storage.store import Store, free_first

KIND = "verdicts"  # of artifact
# Whose code judges; merge rules and what opens a chapter do not, and a new rule changes no verdict.
_ROOMS = ("analyses", *(f"evidence.{x}" for x in ("records", "declared", "chapters", "study")))
_OTHERS = ("analyses.merging", "evidence.chapters.opening", "evidence.chapters.outlook")
_INTERVALS = ("interval", "here", "pretrainings", "robust")


def judged(
    chapter: str, *, model: str = "mini", store: Store | None = None, corrected: bool = True
) -> list[Verdict]:
    """Return the verdicts on a chapter's claims, in the papers' order, by its recorded results.

    They are those of `records.verdicts(evidence(chapter), chapter, model=model)`, marked with the
    corrections that their statements survive among those of all chapters. As that takes seconds,
    verdicts are kept in the store, until the code that judges, a claim or a record changes.

    Args:
        chapter: Its name.
        model: The model that claims are about.
        store: The store of verdicts.
        corrected: Whether to mark them, which takes the verdicts of all chapters.
    """
    chapter_of(chapter)
    kept = store or Store()
    if not corrected:
        return _judged(chapter, model, kept)
    order = free_first(CHAPTERS, lambda name: kept.making(KIND, _asked(name, model)))
    found = {name: _judged(name, model, kept) for name in order}
    every = [one for name in CHAPTERS for one in found[name]]
    return [one for one in statements.marked(every) if one.claim.paper == chapter]


def _asked(chapter: str, model: str) -> dict[str, str]:
    return {"chapter": chapter, "model": model, "package": package()}


def _judged(chapter: str, model: str, store: Store) -> list[Verdict]:
    def make(_: Path) -> tuple[dict, dict]:
        found = judgement.verdicts(results.evidence(chapter), chapter, model=model)
        # as text: the store has no NaN, and digits of JSON are those of the number
        return {}, {"verdicts": json.dumps([_noted(verdict) for verdict in found])}

    kept = store.get(KIND, _asked(chapter, model), make).record["verdicts"]
    return [_verdict(note) for note in json.loads(kept)]


@functools.cache
def package() -> str:
    """Return a hash of all by which claims are judged: code that judges, claims, and records."""
    code = code_of(
        {
            "tasklab.evidence.records.judgement",
            "tasklab.evidence.study.results",
            *COMPARISONS.homes(),
        },
        lambda name: _among(name, _ROOMS) and not _among(name, _OTHERS),
    )
    root, digest = Path(__file__).resolve().parents[1], hashlib.sha256(code.encode())
    for file in sorted((*root.glob("records/*.csv"), *root.glob("study/recorded/*"))):
        digest.update(file.name.encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _among(name: str, rooms: Iterable[str]) -> bool:
    return f"{name}.".startswith(tuple(f"tasklab.{room}." for room in rooms))


def _noted(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict's fields with its claim by name."""
    fields = {one.name: getattr(verdict, one.name) for one in dataclasses.fields(verdict)}
    return {**fields, "claim": verdict.claim.id}


def _verdict(note: Mapping[str, Any]) -> Verdict:
    fields = {**note, "claim": BY_ID[note["claim"]], "sources": tuple(note["sources"])}
    fields["by_seed"] = {int(seed): value for seed, value in note["by_seed"].items()}
    return Verdict(**{**fields, **{name: Interval(*note[name]) for name in _INTERVALS}})
