"""Which definition belongs to which class of which task, and to which split.

A class is one or more subtrees of WordNet's nouns. A synset in subtrees of several classes goes to
the innermost; if there is no single innermost class, it is left out.
"""

from __future__ import annotations

import collections
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pretraining.wordnet.source import Hierarchy, Synset
from tasklab.tasks import wordnet

TABLE = Path(__file__).with_name("tasks.txt")
#: The control's classes: the verbs of a lexicographer's file (lexnames(5WN)).
VERBS = {
    29: "caring for the body",
    30: "changing",
    31: "thinking",
    32: "speaking or writing",
    33: "fighting or competing",
    34: "eating or drinking",
    35: "touching, hitting or fastening",
    36: "making or performing",
    37: "feeling",
    38: "moving",
    39: "seeing, hearing or smelling",
    40: "buying, giving or owning",
    41: "social or political behaviour",
    42: "being or having",
    43: "raining, snowing or blowing",
}
LEAST, MOST = 40, 500  # texts of a class
SHARES = {"test": 0.4, "validation": 0.15}  # of a task's texts; the others are for training
LIMITS = {"test": 1000, "validation": 400}  # texts of a split at most
CONTROL_SIZES = {"test": 2000, "validation": 1000}
WORDS = 3  # of a definition at least
NEAR = 0.75  # share of common words from which two definitions are nearly equal

# Nouns that no text comes from, with all below: religion, race and origin, sexuality, contempt.
LEFT_OUT = (
    "spiritual_being:09504135", "religion:05946687", "religion:08081668", "sacred_text:06429590",
    "religious_person:09628382", "spiritual_leader:09505153", "Holy_Order:13950812",
    "inhabitant:09620078", "person_of_color:09636106", "African:09634494", "Amerindian:09644820",
    "ethnic_group:07967382", "sexual_activity:00844254", "unwelcome_person:09631129",
    "unfortunate:09630641", "bad_person:09831962",
)  # fmt: skip
#: Usages whose synsets are left out.
USAGES = ("disparagement:06717170", "ethnic_slur:06718862", "obscenity:07124340")
UNKIND = re.compile(
    r"\b(offensive (term|word|name)|derogatory|disparag\w+|slurs?|contemptuous(ly)? term|insulting"
    r"|pejorative|obscen\w+|vulgar\w*|racial\w*|ethnic\w*|negro\w*|jew|jews|jewess\w*"
    r"|black (man|woman|men|women)|sex|\w*sexual\w*|lesbian\w*|prostitut\w+|penis|vagina\w*"
    r"|genital\w*|coitus|copulat\w*|rape|raped|rapist)\b",
    re.IGNORECASE,
)


class Class(NamedTuple):
    """A class of a task."""

    task: str
    name: str
    roots: tuple[str, ...]  #: `lemma:offset` of the synsets whose subtrees it consists of


class Text(NamedTuple):
    """A definition with its class."""

    synset: str  #: Such as `n02084071`
    label: int  #: Index of the class in its task
    text: str


def table(text: str | None = None) -> list[Class]:
    """Return the classes of `tasks.txt`, or of a text in its form."""
    text = TABLE.read_text("utf-8") if text is None else text
    result = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line and line[0] != "#"]
        for line in lines[1:]:
            name, _, roots = line.partition(": ")
            result.append(Class(lines[0], name, tuple(roots.split())))
    return result


def order(*said: object) -> str:
    """Return a text that sorts like random numbers, and everywhere in the same way."""
    return hashlib.sha256("/".join(map(str, said)).encode()).hexdigest()


def offsets(nouns: Hierarchy, named: Iterable[str]) -> list[str]:
    """Return the offsets of nouns given as `lemma:offset`, after a check of the lemmas."""
    result = []
    for one in named:
        lemma, _, offset = one.partition(":")
        if offset not in nouns.synsets or nouns.synsets[offset].lemma != lemma:
            raise ValueError(f"{one} is no synset of WordNet 3.0")
        result.append(offset)
    return result


def innermost(nouns: Hierarchy, classes: Sequence[Class]) -> dict[str, Class]:
    """Return the class of each noun, by offset."""
    roots = {}
    for one in classes:
        roots |= dict.fromkeys(offsets(nouns, one.roots), one)
    above = collections.defaultdict(set)
    for offset in roots:
        for below in nouns.subtree(offset):
            above[below].add(offset)
    result = {}
    for synset, over in above.items():
        inner = {roots[one] for one in over if not over & nouns.subtree(one) - {one}}
        if len(inner) == 1:
            result[synset] = inner.pop()
    return result


def fit(definition: str) -> bool:
    """Return whether a definition may be a text: long enough, and neither unkind nor sexual."""
    return len(wordnet.words(definition)) >= WORDS and not UNKIND.search(definition)


def alike(sets: Sequence[frozenset[str]], share: float = NEAR) -> list[tuple[int, int]]:
    """Return the pairs of sets whose intersection is at least a share of their union.

    Two such sets have one of the rarest words of each in common: only these are compared.
    """
    counted = collections.Counter(word for one in sets for word in one)
    seen = collections.defaultdict(list)
    pairs = []
    for index, one in enumerate(sets):
        rarest = sorted(one, key=lambda word: (counted[word], word))
        prefix = rarest[: len(one) - math.ceil(share * len(one)) + 1]
        others = {other for word in prefix for other in seen[word]}
        pairs += [(o, index) for o in others if len(one & sets[o]) >= share * len(one | sets[o])]
        for word in prefix:
            seen[word].append(index)
    return pairs


def distinct(found: Iterable[tuple[Synset, Class]]) -> list[tuple[Synset, Class]]:
    """Return synsets without near copies: one of those of a class, none of those of several."""
    rows = sorted(found, key=lambda row: order("copy", row[0].key))
    leader = list(range(len(rows)))

    def first(index: int) -> int:
        while leader[index] != index:
            index = leader[index]
        return index

    for a, b in alike([wordnet.words(synset.definition) for synset, _ in rows]):
        low, high = sorted((first(a), first(b)))
        leader[high] = low
    classes = collections.defaultdict(set)
    for index, (_, of) in enumerate(rows):
        classes[first(index)].add(of)
    return [
        row for index, row in enumerate(rows) if leader[index] == index and len(classes[index]) == 1
    ]


def sizes(task: str, n: int) -> dict[str, int]:
    """Return the number of texts of each split of a task with n texts."""
    if task == wordnet.CONTROL:
        test, validation = CONTROL_SIZES["test"], CONTROL_SIZES["validation"]
        return {"train": 0, "validation": min(validation, n - test), "test": test}
    test, validation = (min(LIMITS[s], round(share * n)) for s, share in SHARES.items())
    return {"train": n - test - validation, "validation": validation, "test": test}


def make(
    nouns: Hierarchy, verbs: Hierarchy, classes: Sequence[Class]
) -> dict[str, dict[str, list[Text]]]:
    """Return the texts of every task and split, the control last.

    Args:
        nouns: WordNet's nouns.
        verbs: WordNet's verbs.
        classes: Classes of the tasks.
    """
    gone = {below for root in offsets(nouns, LEFT_OUT) for below in nouns.subtree(root)}
    usages = set(offsets(nouns, USAGES))
    found = [
        (nouns.synsets[offset], one)
        for offset, one in innermost(nouns, classes).items()
        if offset not in gone
    ]
    control = {file: Class(wordnet.CONTROL, name, ()) for file, name in VERBS.items()}
    found += [(verb, control[verb.file]) for verb in verbs.synsets.values()]
    by_class = collections.defaultdict(list)
    kept = [row for row in found if fit(row[0].definition) and not usages & set(row[0].usage)]
    for synset, one in distinct(kept):
        by_class[one].append(synset)
    result: dict[str, dict[str, list[Text]]] = {}
    for task in (*wordnet.TASKS, wordnet.CONTROL):
        members = [one for one in (*classes, *control.values()) if one.task == task]
        texts = []
        for label, one in enumerate(members):
            if len(by_class[one]) < LEAST:
                raise ValueError(f"{one.name} of {task} has {len(by_class[one])} texts")
            some = sorted(by_class[one], key=lambda synset: order("class", synset.key))[:MOST]
            texts += [Text(synset.key, label, synset.definition) for synset in some]
        result[task] = split(texts, sizes(task, len(texts)))
    return result


def split(texts: Iterable[Text], n: Mapping[str, int]) -> dict[str, list[Text]]:
    """Return texts by split: a hash of the synset decides."""
    shuffled = sorted(texts, key=lambda text: order("split", text.synset))
    result, start = {}, 0
    for name, size in n.items():
        result[name] = shuffled[start : start + size]
        start += size
    return result
