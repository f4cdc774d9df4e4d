"""Answers of a chapter's sections: sentences written by hand, one for each outcome.

`sections.toml` has the sentences. Verdicts choose among them (`Evidence`), on the records that the
page is about: those recorded of its model, or those that its run computes.
"""  # noqa: E501

from __future__ import annotations

import functools
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tasklab.errors import choose
from tasklab.evidence.chapters import CHAPTERS
from tasklab.evidence.chapters import chapter as chapter_of
from tasklab.evidence.records import judgement
from tasklab.evidence.records.claims import CLAIMS
from tasklab.evidence.records.judgement import DECIDED, Verdict
from tasklab.evidence.records.papers import printed
from tasklab.evidence.records.schema import NETWORKS
from tasklab.evidence.records.statements import on_site, seen, settled, verdict_rows
from tasklab.evidence.study import results
from tasklab.evidence.study.chips import by_world, chip, effect, verdict_word
from tasklab.evidence.study.judged import judged, package
from tasklab.evidence.study.numbers import section_numbers, word_of
from tasklab.storage import shipped
from tasklab.storage.store import Store
from tasklab.tasks.suites import SUITES
from tasklab.tuning.recipe import REHEARSAL_STEPS

_SECTIONS = tomllib.loads(shipped.content(Path(__file__).with_suffix(".toml")).decode())
FIRST = "mini"  # the model of the first world
WORLD_LABEL = {"mini": "synthetic images", "icons": "real drawings", "wordnet": "texts"}
_SENTENCES = {"holds": "holds", "undecided": "open"}  # all else decided fails
_OF_NETWORKS = {  # statements about small networks, which no world has of its own
    one.entry for one in CLAIMS if any(f"@{name}" in one.test for name in NETWORKS)
}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence for a page's sentences: the verdicts and numbers of one model."""

    chapter: str
    model: str
    name: str  #: Of the model, as the page shows it: `vitl14 (random weights)`
    verdicts: Sequence[Verdict]
    #: Of each section, by its anchor: the numbers of its sentences; NaN where not measured.
    numbers: Mapping[str, Mapping[str, Any]]
    steps: int | None = None  #: Of fine-tuning, where they were given
    recorded: bool = False  #: Whether these are shipped records

    @functools.cached_property
    def rows(self) -> pd.DataFrame:
        """The statements at the chosen rates, by name: rows of `verdict_rows`."""
        rows = verdict_rows(self.verdicts, cells=False)
        return rows[rows["setting"] == "chosen"].set_index("id", drop=False)

    @property
    def tested(self) -> int:
        """Number of statements that these records test."""
        return int((self.rows["outcome"] != "not tested").sum())

    def answer(self, section: str) -> str:
        """Return a section's answer; empty if these records do not have it.

        Args:
            section: The anchor of its heading: `do-the-vectors-add`.
        """
        choose("section", section, _SECTIONS[self.chapter])
        entry, numbers = _SECTIONS[self.chapter][section], self.numbers.get(section, {})
        row = self._row(entry["statement"])
        if not _whole(numbers):
            return ""
        if row is None:
            few = self._rehearsal() or "*These records are too few for a verdict.*"
            return f"{entry['open'].format(**numbers)} {few}"
        text = entry[_SENTENCES.get(settled(row), "fails")].format(**numbers)
        return " ".join(filter(None, (text, self._caution(row))))

    def _row(self, statement: str) -> Mapping[str, Any] | None:
        """Return the row of a statement that these records test."""
        if statement not in self.rows.index:
            return None
        row = self.rows.loc[statement]
        return None if row["outcome"] == "not tested" else row

    def differs(self, statement: str) -> bool:
        """Return whether a statement holds, fails or stays open differently in recorded worlds."""
        chapter = next((one.paper for one in CLAIMS if one.entry == statement), self.chapter)
        if statement in _OF_NETWORKS:
            return False
        rows = [of_records(chapter, one).rows for one in recorded_worlds(chapter)]
        found = [one.loc[statement] for one in (self.rows, *rows) if statement in one.index]
        words = {verdict_word(row).partition(" ")[0] for row in found}
        return len(words - {"not"}) > 1

    def marks(self, statement: str, *, worlds: bool) -> str:
        """Return the frames of a statement's outcome, and of worlds that differ."""
        frames = [chip(self.rows.loc[statement], statement)]
        frames += [by_world(statement)] if worlds and self.differs(statement) else []
        return _between().join(frames)

    def elsewhere(self, statement: str, *, effects: bool = True) -> list[str]:
        """Return a statement's outcome in each other recorded world, in words, and its effect."""
        chapter = next((one.paper for one in CLAIMS if one.entry == statement), self.chapter)
        if statement in _OF_NETWORKS:  # the same records in each world
            return []
        others = (
            _in_world(statement, chapter, model, label, effects)
            for model, label in recorded_worlds(chapter).items()
            if not (self.recorded and model == self.name)
        )
        return [one for one in others if one]

    def _rehearsal(self) -> str:
        if self.steps is None or self.steps >= REHEARSAL_STEPS:
            return ""
        return f"*A rehearsal of {self.steps} steps: these numbers mean nothing.*"

    def _caution(self, row: Mapping[str, Any]) -> str:
        if note := self._rehearsal():
            return note
        if row["n_seeds"] == 1 and settled(row) not in DECIDED:
            return "*One seed of fine-tuning cannot decide this.*"
        return ""

    def found(self, *, worlds: bool = True) -> str:
        """Return the answers at the chapter's beginning, as a Markdown list; empty without any.

        With the outcomes in the other recorded worlds, if these are asked for.
        """
        answers = {name: self.answer(name) for name in _SECTIONS["found"][self.chapter]}
        listed = []
        for name, text in answers.items():
            if text:
                row = self._row(statement_of(self.chapter, name))
                statement = statement_of(self.chapter, name)
                mark = "" if row is None else self.marks(statement, worlds=worlds)
                mark = mark.replace(">fails", ">claim fails", 1)  # the sentence before says "not"
                there = "; ".join(self.elsewhere(statement) if worlds else ())
                listed.append(f"- {_between().join(filter(None, (text, mark, there)))}")
                listed[-1] += "." * bool(there)
        if not listed:
            return ""
        source = f"in {'recorded runs' if self.recorded else 'this run'} of `{self.name}`"
        if self.recorded and chapter_of(self.chapter).apart:
            source = "in recorded runs of eight encoders"
        return "\n".join([f"**Found** {source}:\n", *listed, "", self.counted()])

    def weaknesses(self) -> str:
        """Return the statements that fail or stay open on these records, as a list in Markdown."""
        rows = self.rows[self.rows["outcome"] != "not tested"].to_dict("records")
        if rows and all(one["n_seeds"] == 1 and settled(one) not in DECIDED for one in rows):
            many = {1: "the statement", 2: "both statements"}.get(
                len(rows), f"all {len(rows)} statements"
            )
            return f"- On `{self.name}` one seed of fine-tuning leaves {many} open."
        told: dict[str, list[str]] = {"fails": [], "open": []}
        for row in rows:
            kind = verdict_word(row).partition(" ")[0]
            if kind in told:
                told[kind].append(f"{row['short']} ({effect(row)})")
        lead = {"fails": "these statements fail", "open": "these stay open"}
        lines = [f"- On `{self.name}` {lead[k]}: {'; '.join(v)}." for k, v in told.items() if v]
        return "\n".join(lines)

    def counted(self) -> str:
        """Count the statements and their outcomes in a sentence."""
        rows = self.rows[self.rows["outcome"] != "not tested"]
        general = rows["here"] != ""  # other statements are about what was tried, and nothing else
        new = int((rows["outcome"] == "holds")[general].sum())
        here = int(sum(settled(row) == "holds" for row in rows.to_dict("records")))
        tested = f"{len(rows)} statement{'s' * (len(rows) != 1)} tested"
        if not here:
            return f"{tested}: none is decided for the claim."
        told = f"{tested}: {here} hold{'s' * (here == 1)} on these tasks"
        if not general.any():
            return f"{told}; none is judged for new tasks."
        return f"{told}, {new} also for new tasks."


def of_records(chapter: str, model: str = FIRST, *, store: Store | None = None) -> Evidence:
    """Return the evidence of a chapter's recorded results, from the store if computed before.

    Args:
        chapter: Its name.
        model: Its name in the records.
        store: The store of numbers.
    """
    choose("chapter", chapter, CHAPTERS)
    return _of_records(chapter, model, (store or Store()).root)


@functools.lru_cache(maxsize=64)  # a page asks once for each of its statements and worlds
def _of_records(chapter: str, model: str, root: Path) -> Evidence:
    kept = Store(root)
    asked = {"chapter": chapter, "model": model, "package": package(), "answers": _here()}

    def make(_: Path) -> tuple[dict, dict]:
        found = section_numbers(_SECTIONS[chapter], results.evidence(chapter), model)
        return {}, {"numbers": json.dumps(found)}

    numbers = json.loads(kept.get("answers", asked, make).record["numbers"])
    verdicts = judged(chapter, model=model, store=kept, corrected=False)  # no answer needs it
    return Evidence(
        chapter=chapter, model=model, name=model, verdicts=verdicts, numbers=numbers, recorded=True
    )


@functools.cache
def _here() -> str:
    """Return a hash of the sentences and of the module that computes their numbers."""
    files = (Path(__file__).with_name(name) for name in ("numbers.py", "sections.toml"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def of_run(
    chapter: str, tables: Sequence[pd.DataFrame], model: str, *, init: str = "pretrained",
    steps: int | None = None,
) -> Evidence:  # fmt: skip
    """Return the evidence of a page's computations so far.

    Args:
        chapter: Name of the chapter.
        tables: Records of the chapter's experiments, of the page's model and its relatives.
        model: Short name of the model.
        init: What the page's model starts from. Where that is random weights, statements about the
            pre-trained model are judged on them.
        steps: Of fine-tuning, where they were given.
    """
    rows = results.gathered(chapter, [one for one in tables if len(one)])
    name = model
    if init == "random" and len(rows):
        rows = rows[rows["init"] == "random"].assign(init="pretrained")
        name = f"{model} (random weights)"
    verdicts: list[Verdict] = []
    if len(rows):
        sums = rows["n_tasks"] if "n_tasks" in rows else pd.Series(dtype=float)
        most = int(sums.max()) if sums.notna().any() else 8
        verdicts = judgement.verdicts(rows, chapter, n_tasks=most, model=model)
    numbers = section_numbers(_SECTIONS[chapter], rows, model) if len(rows) else {}
    return Evidence(
        chapter=chapter, model=model, name=name, verdicts=verdicts, numbers=numbers, steps=steps
    )


def recorded_worlds(chapter: str) -> dict[str, str]:
    """Return the models of the recorded worlds of a chapter, each with a label of its world.

    A world is the first one, or a recorded part of the chapter that is named like a suite
    (`wordnet`, or its sums alone, `wordnet_sums`).
    """
    found = {FIRST: WORLD_LABEL["mini"]}
    for part, works in chapter_of(chapter).parts.items():
        name = part.removesuffix("_sums")
        if name in SUITES and results.path_of(chapter, part).exists():
            found[works[0].changes["model"]] = WORLD_LABEL.get(name, name)
    return found


def every_world() -> dict[str, list[Verdict]]:
    """Return the verdicts of all chapters by recorded world, the first one first.

    Those on small networks, which no world has of its own, are in the first alone.
    """
    models: dict[str, str] = {}
    for chapter in CHAPTERS:
        models |= recorded_worlds(chapter)
    found = {
        label: [one for chapter in CHAPTERS for one in judged(chapter, model=model)]
        for model, label in models.items()
    }
    first = models[FIRST]
    return {
        label: [one for one in every if label == first or one.claim.entry not in _OF_NETWORKS]
        for label, every in found.items()
    }


def line(statement: str, evidence: Evidence, *, worlds: bool = True) -> str:
    """Return the line of a statement below a section, as HTML.

    The statement, its outcome and effect in the evidence, then what a paper prints (beside a run)
    and the outcome in the other recorded worlds, if they are asked for. Of recorded worlds the
    effects are in the row that the chip links to.

    Args:
        statement: Its name in `statements.csv`.
        evidence: Rows and verdicts of one model.
        worlds: Whether to name the other recorded worlds' outcomes.
    """
    row = evidence.rows.loc[statement]
    told = [f"{evidence.marks(statement, worlds=worlds)} {row['short']}"]
    if row["outcome"] != "not tested":  # a recorded interval is in the row that the chip links to
        told[0] += f": {effect(row, interval=not evidence.recorded or row['n_seeds'] == 1)}"
    if not evidence.recorded:
        told.append(paper(statement, evidence.model))
    if worlds:
        told += evidence.elsewhere(statement, effects=not evidence.recorded)
    return " · ".join(filter(None, told))


def _between() -> str:
    """Return the separator of marks: the site draws frames around them, a notebook a dot."""
    return " " if on_site() else " · "


def _in_world(statement: str, chapter: str, model: str, label: str, effects: bool) -> str:
    rows = of_records(chapter, model).rows
    if statement not in rows.index or rows.loc[statement, "outcome"] == "not tested":
        return ""
    row = rows.loc[statement]
    if not effects:
        return f"{label}: {verdict_word(row)}"
    cells = int(row["n_cells"])
    count = f" in the weakest of {word_of(cells)} comparisons" if cells > 1 else ""
    told = effect(row, interval=False)
    return f"{label} (<code>{model}</code>): {told}{count}, {verdict_word(row)}"


def paper(statement: str, model: str) -> str:
    """Return the effect that a paper prints for a statement, or an empty text.

    It is that of the model, if it is printed, else of the paper's ViT-B/32 or its first model.
    """
    claim = next(one for one in CLAIMS if one.entry == statement and one.setting == "chosen")
    effects = printed(claim)
    names = [name for name in (model, "vitb32", *effects) if name in effects]
    if not names:
        return ""
    return f"paper {effects[names[0]]:+.1f} (<code>{names[0]}</code>)".replace("-", "−")


def comparison(evidence: Evidence) -> list[dict[str, Any]]:
    """Return a row per statement that a run tests: this model, the paper, the recorded worlds.

    Returns:
        Dictionaries of statement, short, unit, this (outcome, effect, low, high, over and seeds),
        paper (effect by model) and worlds (by model, as this). Effects are positive in the claimed
        direction, and `None` where undefined; `over` names the units drawn for an interval.
    """
    found = []
    for row in evidence.rows[evidence.rows["outcome"] != "not tested"].to_dict("records"):
        claim = next(one for one in CLAIMS if one.entry == row["id"] and one.setting == "chosen")
        there = {}
        for model in recorded_worlds(evidence.chapter) if row["id"] not in _OF_NETWORKS else ():
            rows = of_records(evidence.chapter, model).rows
            if row["id"] in rows.index and rows.loc[row["id"], "outcome"] != "not tested":
                there[model] = _short(rows.loc[row["id"]])
        found.append({
            "statement": row["id"], "short": row["short"], "unit": row["unit"],
            "this": {**_short(row), "seeds": int(row["n_seeds"])},
            "paper": printed(claim), "worlds": there,
        })  # fmt: skip
    return found


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return outcome and effect, with the interval that the outcome rests on."""
    new = row["here"] != "" and row["outcome"] in DECIDED
    told = row if new or not row["here"] else seen(row, "here")
    over = "seeds and tasks" if new else "rounds" if row["unit"] == "times" else "seeds"
    numbers = {  # undefined is null: JSON has no NaN
        name: None if pd.isna(told[name]) else float(told[name])
        for name in ("effect", "low", "high")
    }
    return {"outcome": verdict_word(row), **numbers, "over": over}


def statement_of(chapter: str, section: str) -> str:
    """Return the name of the statement whose verdict chooses a section's answer."""
    return str(_SECTIONS[chapter][section]["statement"])


def _whole(numbers: Mapping[str, Any]) -> bool:
    measured = [one for one in numbers.values() if isinstance(one, int | float)]
    return bool(measured) and not any(map(math.isnan, measured))
