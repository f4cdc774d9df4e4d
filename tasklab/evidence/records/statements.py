"""One entry a statement: the summary of its cells, and its correction for multiplicity.

A statement that speaks of several things at once *holds* if each of its cells holds: as none may
fail, this needs no correction for their number (the intersection-union test; R. Berger,
Technometrics 24, 1982, 295-300). It *does not hold* if some cell lies on the other side even at a
level that allows for their number (Holm's correction of the cells' p-values), and is *outside the
band* if all such cells are. There is *no gain* if in some cell both sides are the same model.
Otherwise it is undecided. Its effect and interval are those of its weakest cell: the one with the
least effect in units of its interval.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tasklab.evidence.records.intervals import LEVEL, Interval, holm, in_words
from tasklab.evidence.records.judgement import DECIDED, NOTHING, OUTCOMES, Verdict

COLUMNS = (
    "paper", "headline", "id", "short", "statement", "cell", "setting", "outcome", "effect", "unit",
    "low", "high", "n_seeds", "n_pretrainings", "tasks_as_claimed", "n_tasks", "counted", "n_cells",
    "cells_holding", "strength", "corrected", "evidence", "here", "here_cell",
    "here_effect", "here_low", "here_high", "others", "others_effect", "others_low", "others_high",
    "survives", "robust", "value", "bound", "band", "too_few",
)  # fmt: skip
FAMILIES = ("headlines", "all")  # of statements that share 5 % by Holm's correction

PLAIN = {"holds": "confirmed", "does not hold": "not confirmed", "undecided": "open"}
PLAIN |= {"outside the band": "beyond tolerance"}
_OF_CELL = (  # columns that are attributes of the weakest cell's verdict
    "n_seeds", "n_pretrainings", "tasks_as_claimed", "n_tasks", "counted", "strength",
    "value", "bound", "too_few",
)  # fmt: skip
SITE = "TASKLAB_SITE"  # in the environment where the book executes notebooks and pages for the site


def plain(outcome: str) -> str:
    """Return an outcome in a reader's words."""
    return PLAIN.get(outcome, outcome)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A statement with the verdicts on its cells."""

    cells: tuple[Verdict, ...]  #: The verdicts, all in one setting
    outcome: str  #: One of `judgement.OUTCOMES`
    weakest: Verdict  #: The cell with the least effect in units of its interval
    #: The largest p-value of a statement that holds, the least corrected one of its cells if it
    #: does not.
    p: float
    corrected: str = ""  #: The outcome if all statements are corrected for their number (Holm)
    #: Of `FAMILIES`, those among which a decided outcome survives the correction.
    survives: tuple[str, ...] = ()
    #: The same on the tasks that were tried alone, where the statement is about tasks in general;
    #: corrected together with the statements that are not.
    here: Entry | None = None

    @property
    def cells_holding(self) -> int:
        """How many of its cells hold."""
        return sum(cell.outcome == "holds" for cell in self.cells)


def entries(verdicts: Iterable[Verdict]) -> list[Entry]:
    """Return an entry for each statement and setting, in order."""
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for v in verdicts:
        groups.setdefault((v.claim.entry, v.claim.setting), []).append(v)
    judged = [_entry(cells) for cells in groups.values()]
    here = _corrected([entry.here or entry for entry in judged])
    return [
        dataclasses.replace(entry, here=entry.here and alone)
        for entry, alone in zip(_corrected(judged), here, strict=True)
    ]


def marked(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return verdicts with the corrections that their statements survive."""
    verdicts = list(verdicts)
    found = {cell.claim.id: entry.survives for entry in entries(verdicts) for cell in entry.cells}
    return [dataclasses.replace(one, survives=found.get(one.claim.id, ())) for one in verdicts]


def _is_headline(entry: Entry) -> bool:
    claim = entry.cells[0].claim
    return claim.headline > 0 and claim.setting == "chosen"


def _corrected(judged: Sequence[Entry]) -> list[Entry]:
    levels = {
        "headlines": holm([one.p if _is_headline(one) else math.nan for one in judged]),
        "all": holm([one.p for one in judged]),
    }
    found = []
    for place, entry in enumerate(judged):
        decided, told = entry.outcome in DECIDED, entry.cells[0].survives
        kept = tuple(n for n in FAMILIES if decided and levels[n][place] <= 1 - LEVEL)
        corrected = "undecided" if decided and "all" not in kept else entry.outcome
        survives = kept if told is None else told
        found.append(dataclasses.replace(entry, corrected=corrected, survives=survives))
    return found


def _entry(cells: Sequence[Verdict]) -> Entry:
    tested = [cell for cell in cells if cell.outcome != "not tested"]
    if not tested:
        return Entry(cells=tuple(cells), outcome="not tested", weakest=cells[0], p=math.nan)
    against = [
        p for p, c in zip(holm([c.p for c in tested]), tested, strict=True) if c.strength < 0
    ]
    none_fails = max((c.p if c.strength > 0 else 1.0 for c in tested), default=math.nan)
    if any(math.isnan(c.p) for c in tested):
        none_fails = math.nan
    p = min((x for x in (none_fails, *against) if not math.isnan(x)), default=math.nan)
    kinds = {c.outcome for c in tested}
    if kinds == {"holds"}:
        outcome = "holds"
    elif any(x <= 1 - LEVEL for x in against):
        banded = all(c.claim.band for c in tested if c.strength < 0)
        outcome = "outside the band" if banded else "does not hold"
    else:
        outcome = "no gain" if "no gain" in kinds else "undecided"
    weakest = min(tested, key=lambda cell: cell.strength)
    here = [alone for cell in tested if (alone := cell.on_these_tasks)]
    return Entry(
        cells=tuple(cells), outcome=outcome, weakest=weakest, p=p,
        here=_entry(here) if len(here) == len(tested) else None,
    )  # fmt: skip


def verdict_rows(verdicts: Iterable[Verdict], *, cells: bool = True) -> pd.DataFrame:
    """Return the verdicts as a table: one row per statement, and below it one per cell.

    Returns:
        `COLUMNS`. Effect, its interval and what belongs to it (unit, seeds, tasks, strength, value,
        bound, band, robust, too_few) are those of the weakest cell; n_cells counts tested ones.
        here, here_effect, ... are those of the tasks that were tried alone, of the cell that is the
        weakest there (here_cell, empty for the same one); others, ... of several pre-trainings.
        corrected is the outcome after the correction for all statements, survives names the
        corrections that it survives.
    """
    rows = []
    for entry in entries(verdicts):
        claim = entry.cells[0].claim
        tested = sum(cell.outcome != "not tested" for cell in entry.cells)
        common = {"paper": claim.paper, "headline": claim.headline, "setting": claim.setting}
        common |= {"statement": claim.statement, "evidence": claim.evidence, "short": claim.short}
        own = {"id": claim.entry, "corrected": entry.corrected, "n_cells": tested}
        own |= {"survives": ", ".join(entry.survives), "cells_holding": entry.cells_holding}
        own |= {"robust": ""} if tested > 1 else {}  # it is that of one cell
        alone = entry.here.weakest if entry.here else None
        if alone and alone.claim.id != entry.weakest.claim.id:
            own["here_cell"] = alone.claim.cell
        here = entry.here.outcome if entry.here else ""
        rows.append(common | _numbers(entry.weakest, entry.outcome, alone, here) | own)
        for cell in entry.cells if cells and len(entry.cells) > 1 else ():
            alone = cell.on_these_tasks
            numbers = _numbers(cell, cell.outcome, alone, alone.outcome if alone else "")
            rows.append(common | numbers | {"id": cell.claim.id, "cell": cell.claim.cell})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def effect_of(row: Mapping[str, Any], *, interval: bool = True, scope: bool = True) -> str:
    """Return the effect of a row of `verdict_rows` in words: with its interval, or why it has none.

    >>> row = {"effect": -3.72, "low": -5.5, "high": -2, "unit": "points", "n_seeds": 5}
    >>> effect_of(row)
    '−3.7 points (−5.5 to −2.0 over seeds)'

    Args:
        row: A row of `verdict_rows`.
        interval: Whether its interval is shown.
        scope: Whether it names the units drawn for the interval.
    """
    if not row["n_seeds"]:
        return "–"
    if row.get("outcome") == "no gain":
        return "0, both sides are one model"
    general = "seeds and tasks" if row.get("here") else "seeds"
    over = row.get("over") or ("rounds" if row["unit"] == "times" else general)
    ends = (row[name] for name in Interval._fields)
    numbers = in_words(*ends, unit=row["unit"], over=over if scope else "", shown=interval)
    alone = pd.isna(row["low"]) and row["n_seeds"] == 1
    known = row["high"] > row["low"]
    why = "" if known or not interval else ", one seed" if alone else ", does not vary"
    if row.get("too_few"):
        why = ", one pair" if row["n_tasks"] == 1 else ", two pairs"
    if row.get("band"):
        numbers = f"{row['value']:.3g}, limit {row['bound']:.3g}, margin {numbers}"
    return numbers + why


def at(setting: str) -> str:
    """Return the words for a claim's setting; an empty text at the chosen rates.

    >>> at("equal length"), at("chosen")
    ('at equal norm', '')
    """
    return "" if setting == "chosen" else f"at {setting.replace('length', 'norm')}"


def settled(row: Mapping[str, Any]) -> str:
    """Return the outcome for new tasks if it is decided, else that on the tasks that were tried."""
    return str(row["outcome"] if row["outcome"] in DECIDED else row["here"] or row["outcome"])


def is_open_nonetheless(row: Mapping[str, Any]) -> bool:
    """Return whether a row of `verdict_rows` is undecided although its interval is on one side."""
    return row["outcome"] == "undecided" and 1 < abs(row["strength"]) < math.inf


def seen(row: Mapping[str, Any], side: str) -> dict[str, Any]:
    """Return a row of `verdict_rows` with another of its effects in place of the first.

    That is `here`, of the tasks that were tried alone, or `others`, of several pre-trainings.
    """
    over = {"here": "seeds", "others": "pre-trainings"}[side]
    ends = {name: row[f"{side}_{name}"] for name in Interval._fields}
    return {**row, **ends, "over": over, "too_few": False}


def both_scopes(verdicts: Iterable[Verdict]) -> str:
    """Count the outcomes for tasks in general, and with the tasks held fixed, as sentences.

    An empty text if no verdict is about tasks in general.
    """
    rows = verdict_rows(verdicts, cells=False)
    rows = rows[rows["here"] != ""]
    if rows.empty:
        return ""
    told = [how_many(rows[name]) for name in ("outcome", "here")]
    return (
        f"{len(rows)} verdicts are about tasks in general: {told[0]}. With the tasks held fixed, "
        f"the same comparisons give {told[1]}."
    )


def how_many(outcomes: Iterable[str]) -> str:
    """Count outcomes by kind, as text.

    >>> how_many(["holds", "undecided", "holds"])
    '2 confirmed, 1 open'
    """
    counts = Counter(outcomes)
    return ", ".join(f"{counts[x]} {plain(x)}" for x in OUTCOMES[:-1] if counts[x])


def headlines(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Return the tested headlines with their p-values before and after Holm's correction.

    Returns:
        Columns headline (its number in the protocol), statement, outcome, p, corrected (p for all
        rows; NaN without an interval) and kept (whether a decided outcome survives at 5 %).
    """
    judged = entries(verdicts)
    first = [one for one in judged if _is_headline(one) and one.outcome != "not tested"]
    table = pd.DataFrame({
        "headline": [one.cells[0].claim.headline for one in first],
        "statement": [one.cells[0].claim.short for one in first],
        "outcome": [plain(one.outcome) for one in first],
        "p": [one.p for one in first],
        "corrected": holm([one.p for one in first]),
        "kept": ["headlines" in one.survives for one in first],
    })  # fmt: skip
    return table.sort_values(["headline", "p"], kind="stable", ignore_index=True)


def correction(verdicts: Iterable[Verdict], *, named: bool = True) -> str:
    """Count the verdicts that survive the corrections; of the headlines alone if not `named`."""
    judged = [entry for entry in entries(verdicts) if entry.outcome != "not tested"]
    first = [entry for entry in judged if _is_headline(entry)]
    kept = [entry for entry in first if "headlines" in entry.survives]
    told = ""
    if first:
        shorts = (f"{e.cells[0].claim.short} ({plain(e.outcome)})" for e in kept)
        names = f": {'; '.join(shorts)}" if named and kept else ""
        told = (
            f"Of the {len(first)} headlines that were named beforehand, the recorded runs leave "
            f"{how_many(entry.outcome for entry in first)}. Holm's correction for their number "
            f"keeps {len(kept)} of these outcomes{names}. "
        )
    if not named:
        return told.strip()
    alone = _kept([entry.here or entry for entry in judged])
    return (
        f"{told}The correction for all {on_how_many(judged)} keeps {_kept(judged)} decided ones; "
        f"with the tasks held fixed, it keeps {alone}."
    )


def on_how_many(judged: Sequence[Entry]) -> str:
    """Count verdicts and their statements, in words."""
    statements = len({entry.cells[0].claim.entry for entry in judged})
    told = f"{len(judged)} verdict{'s' * (len(judged) > 1)}"
    return told if statements == len(judged) else f"{told} on {statements} statements"


def _kept(judged: Sequence[Entry]) -> str:
    decided = [entry for entry in judged if entry.outcome in DECIDED]
    return f"{sum(one.corrected == one.outcome for one in decided)} of the {len(decided)}"


def _numbers(cell: Verdict, outcome: str, alone: Verdict | None, here: str) -> dict[str, object]:
    """Return a row of a cell without its names; `alone` and `here` are of these tasks alone."""
    sides = {"here": alone.interval if alone else NOTHING, "others": cell.pretrainings}
    ends = {f"{side}_{k}": x for side, ends in sides.items() for k, x in ends._asdict().items()}
    own = {name: getattr(cell, name) for name in _OF_CELL} | cell.interval._asdict() | ends
    own |= dict.fromkeys(("cell", "here_cell", "corrected", "survives"), "")
    own |= {"n_cells": 0, "cells_holding": 0, "outcome": outcome, "here": here}
    more = {"unit": cell.claim.unit, "robust": cell.robustly, "band": cell.claim.band}
    return own | more | {"others": cell.over_pretrainings}


def anchor(heading: str) -> str:
    """Return the anchor of a heading as the site makes it: `Do they add?` is `do-they-add`."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def evidence_link(evidence: str, here: str = "", *, site: bool | None = None) -> str:
    """Return where a page finds the section that a verdict is from.

    JupyterLab keeps the chapters as notebooks, and a heading's text with hyphens as its anchor.

    Args:
        evidence: The chapter and its heading, `ctl#Do they add?`.
        here: The chapter that has the link; by default a page beside the folder of chapters.
        site: Whether the link stands on the site, and not in a notebook; by default where the book
            executes both.
    """
    page, _, heading = evidence.partition("#")
    if on_site() if site is None else site:
        place, ending = anchor(heading), "html"
    else:
        place, ending = heading.replace(" ", "-"), "ipynb"
    away = f"{'' if here else 'notebooks/'}{page}.{ending}"
    return f"{'' if page == here else away}#{place}"


def on_site() -> bool:
    """Return whether a page of the site is being built; else a notebook is read."""
    return SITE in os.environ
