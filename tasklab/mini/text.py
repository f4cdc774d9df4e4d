"""The text world: generated texts about the drawn world's things, and seven tasks set in them.

A task is in T5's text-to-text form [Raffel et al., 2020]: a text with a question in, one answer
word out, so that the first generated word decides the class. How hard each task is was set once, on
validation texts.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tasklab.errors import choose
from tasklab.mini import lexicon
from tasklab.mini.catalog import with_articles

if TYPE_CHECKING:
    from torch import Tensor

TEXT_VERSION = "mini-text-2"
SPLITS = ("train", "val", "test")

Rng = random.Random
TEXT_TASKS: tuple[dict[str, Any], ...] = tuple(
    {"name": name, "classes": tuple(classes), "templates": ("{}",), "stand_in_for": stand_in}
    for name, classes, stand_in in (
        ("Reviews", ("positive", "negative"), "IMDB"),
        ("Questions", lexicon.OPTIONS, "QASC"),
        ("Reading", lexicon.COLOURS, "SQuAD"),
        ("Topics", lexicon.TOPICS, "MultiNews"),
        ("Entailment", ("yes", "no", "maybe"), "RTE"),
        ("Counting", lexicon.NUMBERS[:5], "DROP"),
        ("Cloze", lexicon.ANIMALS, "C4"),
    )
)
TEXT_TASKS[-1]["control"] = True


# --- Parts that tasks and pre-training share, in words that each chooses -------------------------


def opinion(rng: Rng) -> tuple[str, float]:
    """Return an adjective phrase such as `not very good` and how good it says a thing is."""
    word = rng.choice(list(lexicon.VERDICTS))
    value: float = lexicon.VERDICTS[word]
    if rng.random() < 0.5:
        degree = rng.choice(list(lexicon.DEGREES))
        return f"{degree} {word}", value * lexicon.DEGREES[degree]
    return word, value


def clauses(rng: Rng, forms: tuple[str, ...], n: int) -> tuple[str, float]:
    """Return joined judgements of a product's parts, and their sum.

    Args:
        rng: Draws parts, judgements and links.
        forms: Templates of a clause, with places for the part and the judgement.
        n: Number of clauses.

    Returns:
        The text, and the sum of its judgements: positive for praise. A clause after `but` counts
        half more.
    """
    said, total = [], 0.0
    for i, aspect in enumerate(rng.sample(lexicon.ASPECTS, n)):
        phrase, value = opinion(rng)
        link = rng.choice(("but", "and", ".", ".")) if i else ""
        said.append(f"{link} {rng.choice(forms).format(aspect, phrase)}".strip())
        total += 1.5 * value if link == "but" else value
    return " ".join(said), total


def owned(rng: Rng, n: int) -> list[tuple[str, str, str, str]]:
    """Return n (person, colour, thing, place), each part different in each."""
    words = lexicon.PEOPLE, lexicon.COLOURS, lexicon.THINGS, lexicon.SPOTS
    return list(zip(*(rng.sample(one, n) for one in words), strict=True))


def paragraph(rng: Rng, topic: str, forms: tuple[str, ...], stray: float, n: int) -> str:
    """Return a paragraph with nouns of a topic.

    Args:
        rng: Draws templates and nouns.
        topic: One of `lexicon.TOPICS`.
        forms: Templates of a sentence, with places for two nouns.
        stray: Probability that a noun is of any topic.
        n: Number of sentences.
    """

    def noun() -> str:
        of = rng.choice(list(lexicon.TOPICS)) if rng.random() < stray else topic
        return rng.choice(lexicon.TOPICS[of])

    return " ".join(rng.choice(forms).format(noun(), noun()) for _ in range(n))


def clues(rng: Rng, animal: str, forms: tuple[tuple[str, ...], ...], n: int) -> list[str]:
    """Return traits of an animal in words, enough of them to identify it.

    Args:
        rng: Draws traits and templates.
        animal: One of `lexicon.ANIMALS`.
        forms: For each trait its templates.
        n: Number of traits to begin with; more are added where several animals share them.
    """
    traits = lexicon.ANIMALS[animal]
    while True:
        shown = rng.sample(range(len(traits)), n)
        if sum(all(t[i] == traits[i] for i in shown) for t in lexicon.ANIMALS.values()) == 1:
            return [rng.choice(forms[i]).format(traits[i]) for i in shown]
        n = min(n + (rng.random() < 0.3), len(traits))


def choices(rng: Rng, right: str, pool: tuple[str, ...], at: int, n: int, near: tuple = ()) -> str:
    """Return lettered options, one of them right.

    Args:
        rng: Draws the wrong options and their order.
        right: The right option.
        pool: Options to draw from.
        at: Place of the right one, from 0.
        n: Number of options.
        near: Wrong options that are always among them.
    """
    others = [x for x in near if x != right][: n - 1]
    rest = [x for x in pool if x != right and x not in others]
    others += rng.sample(rest, n - 1 - len(others))
    rng.shuffle(others)
    others.insert(at, right)
    return " ".join(f"{letter} {x}" for letter, x in zip(lexicon.OPTIONS, others, strict=False))


def shuffled(rng: Rng, items: list[str]) -> list[str]:
    """Return the items in another order."""
    return rng.sample(items, len(items))


# --- The tasks: (random numbers, label) -> text ---------------------------------------------------


def _reviews(rng: Rng, label: int) -> str:
    forms = ("the {} was {}", "the {} is {}", "we found the {} {}")
    while True:
        text, total = clauses(rng, forms, rng.choice((3, 4, 4)))
        if abs(total) > 0.7 and (total < 0) == bool(label):
            return f"review of a {rng.choice(lexicon.PRODUCTS)} : {text} . sentiment ?"


def _questions(rng: Rng, label: int) -> str:
    if rng.random() < 0.3:  # what an animal eats: half of the time it has to be known
        person, animal = rng.choice(lexicon.PEOPLE), rng.choice(list(lexicon.ANIMALS))
        food = lexicon.ANIMALS[animal][2]
        facts = [f"{person} keeps a {animal} .", rng.choice(("", f"the {animal} eats {food} ."))]
        ask, options = f"what should {person} buy ?", choices(rng, food, lexicon.FOODS, label, 8)
    else:  # where a person's thing is: two facts in one answer
        chains = owned(rng, rng.choice((1, 2)))
        person, _, _, spot = chains[0]
        facts = [f"{p} has the {t} ." for p, _, t, _ in chains]
        facts += [f"the {t} is in the {s} ." for _, _, t, s in chains]
        near = tuple(s for *_, s in chains)
        ask, options = f"where is {person} ?", choices(rng, spot, lexicon.SPOTS, label, 8, near)
    return f"{' '.join(shuffled(rng, facts))} {ask} {options}"


def _reading(rng: Rng, label: int) -> str:
    rows = owned(rng, 4)
    ask = rng.randrange(4)
    colours = [row[1] for row in rows]
    if lexicon.COLOURS[label] in colours:
        ask = colours.index(lexicon.COLOURS[label])
    colours[ask] = lexicon.COLOURS[label]
    facts = []
    for (person, _, thing, spot), colour in zip(rows, colours, strict=True):
        form = rng.choice(("{0} has a {1} {2} .", "a {1} {2} is near the {3} ."))
        facts.append(form.format(person, colour, thing, spot))
    return f"question : which colour is the {rows[ask][2]} ? context : {' '.join(facts)}"


def _topics(rng: Rng, label: int) -> str:
    forms = (
        "the {} was near the {} .", "{} and {} were in the news .", "they saw the {} and a {} .",
        "this {} has no {} .",
    )  # fmt: skip
    topic = list(lexicon.TOPICS)[label]
    return f"subject ? {paragraph(rng, topic, forms, 0.45, rng.choice((3, 4)))}"


def _entailment(rng: Rng, label: int) -> str:
    rows, ask = owned(rng, 3), rng.randrange(3)
    stated = [rng.random() < 0.7 for _ in rows]
    stated[ask] = label != 2
    facts = [
        f"{p} has a {c} {t} ." if known else f"{p} has a {rng.choice(lexicon.STATES)} {t} ."
        for (p, c, t, _), known in zip(rows, stated, strict=True)
    ]
    _, colour, thing, _ = rows[ask]
    if label == 1:  # half of the wrong colours are another thing's
        others = [row[1] for row, known in zip(rows, stated, strict=True) if known]
        pool = others if len(others) > 1 and rng.random() < 0.5 else lexicon.COLOURS
        colour = rng.choice([c for c in pool if c != colour])
    elif label == 2 and rng.random() < 0.5:
        colour = rng.choice(rows)[1]
    return f"premise : {' '.join(facts)} hypothesis : the {thing} is {colour} ."


def _counting(rng: Rng, label: int) -> str:
    kind, *others = rng.sample(lexicon.THINGS, 4)
    size = rng.randint(max(label + 1, 4), 8)
    items = [kind] * (label + 1) + [rng.choice(others) for _ in range(size - label - 1)]
    said = [f"a {rng.choice(lexicon.COLOURS)} {x}" for x in shuffled(rng, items)]
    return f"how many things named {kind} are here ? {' , '.join(said)}"


def _cloze(rng: Rng, label: int) -> str:
    forms = (
        ("is {}", "has a {} colour"), ("lives near the {}", "is often in the {}"),
        ("eats {}", "likes {}"), ("{}", "often {}"), ("has {}", "is covered with {}"),
        ("is {}", "is quite {}"),
    )  # fmt: skip
    hints = clues(rng, list(lexicon.ANIMALS)[label], forms, 3)
    text = f"{rng.choice(lexicon.PEOPLE)} saw a ___ . it {' and it '.join(hints)}"
    return f"which word is missing ? {text} ."


_WRITERS: dict[str, Callable[[Rng, int], str]] = {
    "Reviews": _reviews, "Questions": _questions, "Reading": _reading, "Topics": _topics,
    "Entailment": _entailment, "Counting": _counting, "Cloze": _cloze,
}  # fmt: skip


def write(task: str, split: str, n: int) -> tuple[list[str], list[int]]:
    """Return texts of a task and their labels, the same on every call (`sample_text`).

    Args:
        task: Name of a task of `TEXT_TASKS`.
        split: `"train"`, `"val"` or `"test"`; no text is in two splits.
        n: Number of texts.

    Returns:
        n texts, and n indices of classes, equally frequent and shuffled.

    Raises:
        TasklabError: If there is no such task or split.
    """
    choose("task", task, _WRITERS)
    choose("split", split, SPLITS)
    entry = next(entry for entry in TEXT_TASKS if entry["name"] == task)
    rng = random.Random(f"{TEXT_VERSION} {task} {split}")
    labels = [i % len(entry["classes"]) for i in range(n)]
    rng.shuffle(labels)
    texts = []
    for label in labels:
        text = with_articles(_WRITERS[task](rng, label))
        while _split_of(text) != split:  # so that no text is in two splits
            text = with_articles(_WRITERS[task](rng, label))
        texts.append(text)
    return texts, labels


def sample_text(task: str, split: str, n: int) -> tuple[Tensor, Tensor]:
    """Return n texts of a task as token ids int64 (n, 48), padded, and labels int64 (n,).

    Classes are balanced and shuffled. The splits are drawn from different seeds, and no text is in
    two of them.

    Args:
        task: Name of a task.
        split: `"train"`, `"val"` or `"test"`.
        n: Number of texts.
    """
    import torch

    texts, labels = write(task, split, n)
    ids = torch.zeros(n, lexicon.LENGTH, dtype=torch.int64)
    for row, text in zip(ids, texts, strict=True):
        tokens = lexicon.encode(text)
        row[: len(tokens)] = torch.tensor(tokens)
    return ids, torch.tensor(labels)


def _split_of(text: str) -> str:
    """Return the only split that may hold a text, by its checksum: two thirds are for training."""
    return ("train", "train", "train", "train", "val", "test")[zlib.crc32(text.encode()) % 6]
