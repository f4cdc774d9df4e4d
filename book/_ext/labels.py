"""Citations as people write them, in the text and in the bibliography: `Ilharco et al., 2023`."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator

from pybtex.database import Entry
from pybtex.plugin import register_plugin
from pybtex.style.formatting.alpha import Style as Alpha
from pybtex.style.labels import BaseLabelStyle
from sphinx.application import Sphinx
from sphinxcontrib.bibtex import plugin
from sphinxcontrib.bibtex.style.referencing import BracketStyle
from sphinxcontrib.bibtex.style.referencing.label import LabelReferenceStyle

NAME = "people"


class Labels(BaseLabelStyle):
    """Labels of names and year, and of a letter where two would be the same."""

    def format_labels(self, sorted_entries: Iterable[Entry]) -> Iterator[str]:
        """Yield the label of each entry."""
        labels = [_label(entry) for entry in sorted_entries]
        often, seen = collections.Counter(labels), collections.Counter()
        for label in labels:
            letter = chr(ord("a") + seen[label]) if often[label] > 1 else ""
            seen[label] += 1
            yield label + letter


def _label(entry: Entry) -> str:
    names = [" ".join([*p.prelast_names, *p.last_names]) for p in entry.persons.get("author", ())]
    several = len(names) > 2 or "others" in names
    who = f"{names[0]} et al." if several else " and ".join(names)
    return f"{who}, {entry.fields.get('year', '')}".strip(", ")


class Style(Alpha):
    """The style of the bibliography."""

    default_label_style = Labels


def _round() -> BracketStyle:
    return BracketStyle(left="(", right=")", sep="; ")


@dataclasses.dataclass
class References(LabelReferenceStyle):
    """Labels in round brackets."""

    bracket_parenthetical: BracketStyle = dataclasses.field(default_factory=_round)
    bracket_label: BracketStyle = dataclasses.field(default_factory=_round)


def setup(app: Sphinx) -> dict[str, bool]:
    """Make both styles known to Sphinx."""
    register_plugin("pybtex.style.formatting", NAME, Style)
    plugin.register_plugin("sphinxcontrib.bibtex.style.referencing", NAME, References)
    return {"parallel_read_safe": True}
