"""The order in which merges are tried where few of them shall be: that of recorded gains.

`order.json` has each merge's mean gain over the plain sum in recorded settings, in points, made by
`benchmarks/orders.py`, and how good the order was in models that were left out of the means. The
order is the same for all vectors. Orders predicted from their number, length, angles and kind of
fine-tuning were tried: they were right no more often, so none is used.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Mapping
from importlib import resources
from typing import Any, NamedTuple

FILE = "order.json"
FIRST = 3  # merges that are tried
NEAR = 1.0  # points within which the best of those is as good as the best of all


class Odds(NamedTuple):
    """How good the first `FIRST` merges of the order were in models that it was not fitted to."""

    rightly: float  #: Share of pairs of merges, more than a point apart, in the right order
    settings: int  #: How many with at least ten merges: a model, a kind, a number of vectors
    best: int  #: Settings in which the best of all merges was among the first
    near: int  #: Those in which the best of the first came within `NEAR` points of it
    lost: float  #: Points that the best of the first is behind, mean over settings
    most: float  #: The largest of these


def first(names: Iterable[str], named: Collection[str] = (), count: int = FIRST) -> tuple[str, ...]:
    """Return the merges to try, in the order given.

    Args:
        names: Merges to choose from.
        named: Merges that are tried even without recorded runs, as a user's own rule.
        count: How many of the recorded ones.

    >>> first(["average", "ties", "tsv_m", "regmean", "iso_c", "my_rule.py"], ["my_rule.py"])
    ('tsv_m', 'regmean', 'iso_c', 'my_rule.py')
    """
    asked, known = list(names), list(_read()["order"])
    ranks = sorted((name for name in asked if name in known), key=known.index)
    taken = {*ranks[:count], *(name for name in asked if name in named and name not in known)}
    return tuple(name for name in asked if name in taken)


def odds() -> Odds:
    """Return the counts of left-out settings in which the order was right."""
    return Odds(**_read()["odds"])


@functools.cache
def _read() -> Mapping[str, Any]:
    return json.loads(resources.files(__package__).joinpath(FILE).read_text("utf-8"))


def told(tried: int, every: int) -> str:
    """Return a sentence on how good the order is, for people."""
    of = odds()
    return (
        f"Trying {tried} of {every} merges, those with the largest recorded gains. In "
        f"{of.settings} recorded settings, each model's left out in turn, the first {FIRST} had "
        f"the best merge in {of.best} and came within {NEAR:g} point of it in {of.near}. The order "
        "is the same for all vectors: their number, norms and angles predicted it no better."
    )
