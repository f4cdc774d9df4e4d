"""The small byte-pair vocabulary, learned from every word of the captions and task prompts.

`python -m pretraining.vocabulary` writes the merges file that ships with the package.
"""

from __future__ import annotations

import collections
import gzip
from pathlib import Path

from tasklab.mini.captions import GENERIC, KINDS, draw_pairs
from tasklab.mini.catalog import TASKS
from tasklab.mini.clip import MERGES
from tasklab.mini.draw import Rng


def words() -> list[str]:
    """Return, sorted, every word that a caption or a prompt of the tasks can hold."""
    texts = list(GENERIC)
    for kind in KINDS:
        texts += draw_pairs(kind, 2000, Rng(0))[1]
    for task in TASKS:
        texts += [form.format(name) for form in task["templates"] for name in task["classes"]]
    return sorted({word for text in texts for word in text.split()})


def learn_merges(vocabulary: list[str], limit: int = 1200) -> list[tuple[str, str]]:
    """Return byte-pair merges, the most frequent pair first, until every word is one token."""
    pieces = [[*word[:-1], word[-1] + "</w>"] for word in vocabulary]
    merges: list[tuple[str, str]] = []
    while len(merges) < limit:
        counts = collections.Counter(
            p for word in pieces for p in zip(word, word[1:], strict=False)
        )
        if not counts:
            break
        best = max(sorted(counts), key=lambda pair: counts[pair])
        merges.append(best)
        for word in pieces:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [word[i] + word[i + 1]]
                else:
                    i += 1
    return merges


def write(path: Path = MERGES) -> int:
    """Write the merges file in the layout that open_clip reads; return the number of merges."""
    merges = learn_merges(words())
    lines = ["#version: tasklab mini", *(" ".join(pair) for pair in merges)]
    with open(path, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return len(merges)


if __name__ == "__main__":
    print(f"{write()} merges written to {MERGES}")
