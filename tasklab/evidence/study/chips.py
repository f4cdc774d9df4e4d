"""Outcomes and effects of statements in a few words, as pages show them."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from tasklab.evidence.records.judgement import DECIDED
from tasklab.evidence.records.statements import effect_of, on_site, seen, settled

CHIPS = {  # outcomes, and what a reader sees who points at one
    "holds for new tasks": "The interval over seeds and tasks excludes 0.",
    "holds here": "The interval over seeds excludes 0; nothing is decided for other tasks.",
    "fails for new tasks": "The effect is against the claim, over seeds and tasks.",
    "fails": "The effect is against the claim.",
    "fails here": "The effect is against the claim on these tasks; for other tasks it is open.",
    "open": "The interval holds 0, or there are too few runs.",
    "not tested": "No records test it.",
}
BY_WORLD = "by world"  # where recorded worlds have different outcomes


def verdict_word(row: Mapping[str, Any]) -> str:
    """Return the outcome of a row of `verdict_rows` in a word or four, one of `CHIPS`."""
    outcome, general = row["outcome"], row["here"] != ""
    if outcome == "not tested":
        return outcome
    if outcome == "holds":
        return "holds for new tasks" if general else "holds here"
    if outcome in DECIDED:
        return "fails for new tasks" if general else "fails"
    here = settled(row)
    return {"holds": "holds here"}.get(here, "fails here" if here in DECIDED else "open")


def chip(row: Mapping[str, Any], statement: str, *, beside: bool = True) -> str:
    """Return a verdict as a word in a frame, linked to its row among all verdicts.

    Args:
        row: A row of `verdict_rows`.
        statement: Name of the statement.
        beside: Whether the link stands in a chapter, and not on a page beside the list.
    """
    word, page = verdict_word(row), _page("verdicts") if beside else "verdicts.html"
    kind = word.partition(" ")[0]
    where = f'href="{page}#verdict-{statement}" title="{html.escape(CHIPS[word])}"'
    return f'<a class="tl-chip tl-{kind}" {where}>{html.escape(word)}</a>'


def by_world(statement: str) -> str:
    """Return the frame that says that recorded worlds differ, linked to the statement's row."""
    page = f"{_page('verdicts')}#verdict-{statement}"
    where = f'href="{page}" title="The recorded worlds have different outcomes."'
    return f'<a class="tl-chip tl-world" {where}>{BY_WORLD}</a>'


def _page(name: str) -> str:
    return f"../{name}.html" if on_site() else f"../book/{name}.md"


def effect(row: Mapping[str, Any], *, interval: bool = True) -> str:
    """Return an effect in words, in the scope of its outcome (`statements.effect_of`).

    It is over seeds and tasks where the outcome is about new tasks, else on these tasks.

    >>> row = {"here": "holds", "outcome": "undecided", "unit": "points", "n_seeds": 5}
    >>> row |= {"here_effect": 3.86, "here_low": 2.5, "here_high": 5.22}
    >>> effect(row)
    '+3.9 points (2.5 to 5.2 over seeds)'
    """
    plain = {**row, "band": False}
    if row["here"] and row["outcome"] not in DECIDED:
        plain = seen(plain, "here")
    return effect_of(plain, interval=interval)
