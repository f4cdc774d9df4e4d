"""The small byte-pair vocabulary, learned from every word of the captions and task prompts.

`python -m pretraining.vocabulary` writes the merges file that ships with the package.
"""

from __future__ import annotations

import collections
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

from pretraining.stream import GENERIC, draw_kind
from tasklab.mini.captions import KINDS
from tasklab.mini.catalog import TASKS
from tasklab.mini.clip import MERGES
from tasklab.mini.draw import Rng


def words() -> list[str]:
    """Return, sorted, every word that a caption or a prompt of the tasks can hold."""
    texts = list(GENERIC)
    for kind in KINDS:
        texts += draw_kind(kind, 2000, Rng(0)).captions
    for task in TASKS:
        texts += [form.format(name) for form in task["templates"] for name in task["classes"]]
    return sorted({word for text in texts for word in text.split()})


def learn_merges(
    vocabulary: Mapping[str, int] | Sequence[str], limit: int = 1200
) -> list[tuple[str, str]]:
    """Return byte-pair merges, the most frequent pair first, until every word is one token.

    Args:
        vocabulary: Words, and how often each is said (once, where that is not given).
        limit: How many merges at most.
    """
    said = vocabulary if isinstance(vocabulary, Mapping) else dict.fromkeys(vocabulary, 1)
    words = [([*word[:-1], word[-1] + "</w>"], count) for word, count in said.items()]
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    holders = collections.defaultdict(set)  # a pair -> words that have, or had, it
    for number, (pieces, count) in enumerate(words):
        for pair in zip(pieces, pieces[1:], strict=False):
            counts[pair] += count
            holders[pair].add(number)
    merges: list[tuple[str, str]] = []
    while len(merges) < limit and counts:
        most = max(counts.values())
        best = min(pair for pair, count in counts.items() if count == most)
        merges.append(best)
        for number in holders.pop(best):
            pieces, count = words[number]
            for pair in zip(pieces, pieces[1:], strict=False):
                counts[pair] -= count
                if not counts[pair]:
                    del counts[pair]
            i = 0
            while i < len(pieces) - 1:
                if (pieces[i], pieces[i + 1]) == best:
                    pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
                i += 1
            for pair in zip(pieces, pieces[1:], strict=False):
                counts[pair] += count
                holders[pair].add(number)
    return merges


def write(path: Path = MERGES, merges: Sequence[tuple[str, str]] | None = None) -> int:
    """Write the merges file in the layout that open_clip reads; return the number of merges."""
    merges = learn_merges(words()) if merges is None else merges
    lines = ["#version: tasklab mini", *(" ".join(pair) for pair in merges)]
    with open(path, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return len(merges)


if __name__ == "__main__":
    print(f"{write()} merges written to {MERGES}")
