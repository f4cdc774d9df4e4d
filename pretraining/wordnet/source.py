"""Read WordNet's data files (format: wndb(5WN)): synsets, their hypernyms and their definitions."""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path("/usr/share/wordnet")  # of Debian's package wordnet-base
HYPERNYMS = ("@", "@i")  # kind of, instance of
USAGE = ";u"  # points to the synset of a usage, such as slang


@dataclass(frozen=True)
class Synset:
    """A synset of one file."""

    offset: str  #: Eight digits that identify the synset in its file
    kind: str  #: `noun` or `verb`
    file: int  #: Number of the lexicographer's file
    lemma: str  #: The first word
    hypernyms: tuple[str, ...]  #: Offsets of what it is a kind or an instance of
    usage: tuple[str, ...]  #: Offsets of the nouns that name its usage
    definition: str  #: The gloss without its examples

    @property
    def key(self) -> str:
        """The usual identifier, such as `n02084071`."""
        return self.kind[0] + self.offset


@dataclass(frozen=True)
class Hierarchy:
    """The synsets of a kind, and what lies below each."""

    synsets: Mapping[str, Synset]  #: By offset
    _below: dict[str, frozenset[str]] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def _children(self) -> Mapping[str, list[str]]:
        children = collections.defaultdict(list)
        for one in self.synsets.values():
            for parent in one.hypernyms:
                children[parent].append(one.offset)
        return children

    def subtree(self, root: str) -> frozenset[str]:
        """Return the offsets of a synset and of all below it."""
        if root not in self._below:
            found, queue = {root}, [root]
            while queue:
                new = set(self._children.get(queue.pop(), ())) - found
                found |= new
                queue += new
            self._below[root] = frozenset(found)
        return self._below[root]


def definition(gloss: str) -> str:
    """Return a gloss without its examples and without the sources of these.

    >>> definition('a large hat; "he wore it"- A. Poet; worn by "dandies"')
    'a large hat; worn by "dandies"'
    """
    parts = [part.strip() for part in re.findall(r'(?:"[^"]*"?|[^;"])+', gloss)]
    return " ".join("; ".join(part for part in parts if part and part[0] != '"').split())


def read(folder: Path, kind: str) -> Hierarchy:
    """Return the synsets of `data.<kind>`."""
    synsets = {}
    for line in (folder / f"data.{kind}").read_text("ascii").splitlines():
        if line.startswith(" "):  # the licence
            continue
        data, _, gloss = line.partition("|")
        fields = data.split()
        n_words = int(fields[3], 16)
        pointers = fields[5 + 2 * n_words :]
        # A pointer is a symbol, an offset, a part of speech, and source and target words.
        found = [pointers[at : at + 3] for at in range(0, 4 * int(fields[4 + 2 * n_words]), 4)]
        synsets[fields[0]] = Synset(
            offset=fields[0],
            kind=kind,
            file=int(fields[1]),
            lemma=fields[4],
            hypernyms=tuple(to for symbol, to, _ in found if symbol in HYPERNYMS),
            usage=tuple(to for symbol, to, _ in found if symbol == USAGE),
            definition=definition(gloss),
        )
    return Hierarchy(synsets)
