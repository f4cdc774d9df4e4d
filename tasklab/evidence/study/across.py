"""Headlines in every recorded world, side by side, as the first thing that pages show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from tasklab.evidence.records.judgement import Verdict
from tasklab.evidence.records.statements import verdict_rows
from tasklab.evidence.study import chips

_GROUPS = {  # what outcomes in the worlds have to fit, the first one counts
    "Holds in every world": lambda found: found == {"holds"},
    "Holds in one world and fails in another": lambda found: {"holds", "fails"} <= found,
    "Holds in one world and is open in another": lambda found: "holds" in found,
    "Holds in no world": lambda found: True,
}


def headlines(worlds: Mapping[str, Iterable[Verdict]]) -> dict[str, pd.DataFrame]:
    """Return the headlines that two worlds or more test: rows of `verdict_rows`, by statement.

    Args:
        worlds: Name -> verdicts (`sections.every_world`); the first one gives the order.
    """
    known = {}
    for world, verdicts in worlds.items():
        own = [one for one in verdicts if one.claim.headline and one.claim.setting == "chosen"]
        rows = verdict_rows(own, cells=False)
        rows = rows[rows["outcome"] != "not tested"] if len(rows) else rows
        known[world] = rows.set_index("id", drop=False) if len(rows) else rows
    tested = [name for rows in known.values() for name in rows.index]
    shared = [name for name in dict.fromkeys(tested) if tested.count(name) > 1]
    return {world: rows.loc[[name for name in shared if name in rows.index]]
            for world, rows in known.items()}  # fmt: skip


def headline_table(worlds: Mapping[str, Iterable[Verdict]]) -> str:
    """Return outcomes and effects of headlines in Markdown: a row each, and a column a world."""
    known = headlines(worlds)
    lines = [f"| headline | {' | '.join(known)} |", "|---" * (len(known) + 1) + "|"]
    for name, short in _named(known).items():
        cells = [_cell(rows, name) for rows in known.values()]
        lines.append(f"| {short} | {' | '.join(cells)} |")
    return "\n".join(lines)


def headline_groups(worlds: Mapping[str, Iterable[Verdict]]) -> str:
    """Return which headlines hold in which worlds, as a list in Markdown."""
    known = headlines(worlds)
    groups: dict[str, list[str]] = {words: [] for words in _GROUPS}
    for name, short in _named(known).items():
        found = {_outcome(rows.loc[name]) for rows in known.values() if name in rows.index}
        words = next(words for words, fits in _GROUPS.items() if fits(found))
        groups[words].append(f"{short[0].lower()}{short[1:]}")
    told = (f"- **{words}:** {'; '.join(named)}." for words, named in groups.items() if named)
    return "\n".join(told)


def failing(verdicts: Iterable[Verdict]) -> str:
    """Return the headlines that one world refutes, with their effects, as running text."""
    own = [one for one in verdicts if one.claim.headline and one.claim.setting == "chosen"]
    rows = verdict_rows(own, cells=False).to_dict("records") if own else []
    refuted = (row for row in rows if chips.verdict_word(row).startswith("fails"))
    return "; ".join(
        f"{row['short'][0].lower()}{row['short'][1:]}, {chips.effect(row)}" for row in refuted
    )


def _named(known: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    return {name: row["short"] for rows in known.values() for name, row in rows.iterrows()}


def _cell(rows: pd.DataFrame, name: str) -> str:
    if name not in rows.index:
        return "–"
    row = rows.loc[name]
    return f"{chips.chip(row, name, beside=False)}<br>{chips.effect(row)}"


def _outcome(row: Mapping[str, Any]) -> str:
    return chips.verdict_word(row).partition(" ")[0]
