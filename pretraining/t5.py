"""Pre-train the small T5 on the text world.

As T5 was [Raffel et al., 2020], it is trained on two kinds of text at once: stories in which spans
of words are hidden behind sentinels and have to be written out, and questions with an answer. Both
are about the world of the tasks (`tasklab.mini.text`) in other words than theirs: that gap is what
fine-tuning closes. Every text is new: the data are an endless stream drawn from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pretraining.loop import Recipe
from tasklab.architectures import FirstToken
from tasklab.mini.catalog import with_articles
from tasklab.mini.lexicon import (
    ANIMALS,
    COLOURS,
    FOODS,
    NUMBERS,
    PEOPLE,
    PRODUCTS,
    SENTINELS,
    SPOTS,
    THINGS,
    TOPICS,
    encode,
)
from tasklab.mini.t5 import build_t5, text
from tasklab.mini.text import (
    TEXT_TASKS,
    TEXT_VERSION,
    Rng,
    choices,
    clauses,
    clues,
    owned,
    paragraph,
    sample_text,
    shuffled,
)

STORY_SHARE = 0.3  # the rest are questions
HIDDEN = 0.25  # share of a story's words
TARGET = 24  # token ids of an answer, at most

_TRAITS = (
    ("is {}", "looks {}"), ("is found near the {}", "lives at the {}"), ("eats {}", "wants {}"),
    ("{}", "{} all day"), ("has {}", "is full of {}"), ("is {}", "looks {}"),
)  # fmt: skip


# --- Stories, of which words are hidden -----------------------------------------------------------


def _belongings(rng: Rng) -> str:
    facts, back = [], []
    for person, colour, thing, spot in owned(rng, 2):
        facts += [f"{person} carries the {colour} {thing} .", f"the {thing} stands at the {spot} ."]
        back.append(f"{person} looked for the {colour} {thing} at the {spot} .")
    return f"{' '.join(shuffled(rng, facts))} {rng.choice(back)}"


def _animal(rng: Rng) -> str:
    name = rng.choice(list(ANIMALS))
    return f"the {name} {' . it '.join(clues(rng, name, _TRAITS, rng.choice((3, 4))))} ."


def _critic(rng: Rng) -> str:
    said, total = clauses(rng, ("its {} seemed {}", "the {} looked {}"), 3)
    stars = NUMBERS[min(4, max(0, round(2 + total / 2)))]
    verdict = "positive" if total > 0 else "negative"
    end = rng.choice((f"{stars} stars", f"{stars} stars", f"a {verdict} review"))
    return f"{rng.choice(PEOPLE)} watched the {rng.choice(PRODUCTS)} . {said} . it is {end} ."


def _news(rng: Rng) -> str:
    topic = rng.choice(list(TOPICS))
    forms = ("people talked about the {} and the {} .", "she used the {} with a {} .")
    return f"{paragraph(rng, topic, forms, 0.25, 2)} it was all about {topic} ."


# --- Questions with one word for an answer --------------------------------------------------------


def _liked(rng: Rng) -> tuple[str, str]:
    said, total = clauses(rng, ("its {} seemed {}", "the {} looked {}"), rng.choice((1, 2, 3)))
    person, product = rng.choice(PEOPLE), rng.choice(PRODUCTS)
    answer = ("disliked", "liked")[total > 0]
    return f"what did {person} think of the {product} ? {said} .", answer


def _where(rng: Rng) -> tuple[str, str]:
    rows = owned(rng, rng.choice((1, 2, 3)))
    person, _, thing, spot = rows[0]
    if rng.random() < 0.5:
        facts = [f"{p} left the {t} at the {s} ." for p, _, t, s in rows]
        return f"{' '.join(shuffled(rng, facts))} where was the {thing} left ?", spot
    facts = [f"{p} carries the {t} ." for p, _, t, _ in rows[:2]]
    facts += [f"the {t} stands at the {s} ." for _, _, t, s in rows[:2]]
    return f"{' '.join(shuffled(rng, facts))} where should {person} look ?", spot


def _choose(rng: Rng) -> tuple[str, str]:
    n = rng.randint(3, 8)
    at = rng.randrange(n)
    letter = f"({'abcdefgh'[at]})"
    if rng.random() < 0.3:
        animal = rng.choice(list(ANIMALS))
        options = choices(rng, ANIMALS[animal][2], FOODS, at, n)
        return f"choose what the {animal} wants : {options}", letter
    rows = owned(rng, rng.choice((1, 2)))
    facts = [f"the {t} was seen at the {s} ." for _, _, t, s in rows]
    _, _, thing, spot = rows[0]
    options = choices(rng, spot, SPOTS, at, n, tuple(s for *_, s in rows))
    text = f"{' '.join(shuffled(rng, facts))} choose where the {thing} was : {options}"
    return text, letter


def _colour(rng: Rng) -> tuple[str, str]:
    rows = owned(rng, rng.choice((1, 2, 3)))
    form = rng.choice(("{0} painted the {2} {1} .", "{0} gave a {1} {2} .", "the {2} is {1} ."))
    facts = [form.format(p, c, t) for p, c, t, _ in rows]
    return f"tell the colour of {rows[0][2]} : {' '.join(shuffled(rng, facts))}", rows[0][1]


def _claim(rng: Rng) -> tuple[str, str]:
    rows, truth = owned(rng, rng.choice((1, 2))), rng.randrange(3)
    form = rng.choice(("the {1} is {0} .", "{2} marks a {0} {1} ."))
    facts = [form.format(c, t, p) for p, c, t, _ in rows]
    _, colour, thing, _ = rows[0]
    if truth == 1:
        colour = rng.choice([c for c in COLOURS if c != colour])
    elif truth == 2:
        thing = rng.choice([t for t in THINGS if t not in {row[2] for row in rows}])
    text = " ".join(shuffled(rng, facts))
    if rng.random() < 0.25:
        return f"{text} is the {thing} {colour} ?", ("yes", "no", "maybe")[truth]
    answer = ("true", "false", "unknown")[truth]
    return f"known : {text} claim : the {thing} is {colour} . true or false ?", answer


def _title(rng: Rng) -> tuple[str, str]:
    topic = rng.choice(list(TOPICS))
    forms = ("people talked about the {} and the {} .", "she used the {} with a {} .")
    return f"find a title : {paragraph(rng, topic, forms, 0.25, rng.choice((1, 2)))}", topic


def _number(rng: Rng) -> tuple[str, str]:
    kind, *others = rng.sample(THINGS, 3)
    count, more = rng.randint(1, 5), rng.randint(0, 3)
    items = shuffled(rng, [kind] * count + [rng.choice(others) for _ in range(more)])
    return f"list : {' , '.join(items)} . number of {kind} ?", NUMBERS[count - 1]


def _guess(rng: Rng) -> tuple[str, str]:
    name = rng.choice(list(ANIMALS))
    hints = clues(rng, name, _TRAITS, rng.choice((3, 4)))
    return f"guess the animal : it {' , it '.join(hints)} .", name


STORIES: tuple[Callable[[Rng], str], ...] = (_belongings, _animal, _critic, _news)
QUESTIONS: tuple[Callable[[Rng], tuple[str, str]], ...] = (
    _liked, _where, _choose, _choose, _colour, _claim, _title, _number, _guess,
)  # fmt: skip


def hide(rng: Rng, words: list[str]) -> tuple[str, str]:
    """Hide a quarter of the words, in spans of one to three; return what is left and the hidden.

    Each span becomes a sentinel, and the hidden words follow their sentinel, as in T5.
    """
    hidden: set[int] = set()
    while len(hidden) < max(1, round(HIDDEN * len(words))):
        start = rng.randrange(len(words))
        hidden |= set(range(start, min(start + rng.choice((1, 1, 2, 3)), len(words))))
    left, gone, spans = [], [], 0
    for i, word in enumerate(words):
        if i not in hidden:
            left.append(word)
            continue
        if i - 1 not in hidden:
            if spans == len(SENTINELS):  # none is left: the rest stays to be read
                return " ".join(left + words[i:]), " ".join(gone)
            left.append(SENTINELS[spans])
            gone.append(SENTINELS[spans])
            spans += 1
        gone.append(word)
    return " ".join(left), " ".join(gone)


def pair(rng: Rng) -> tuple[str, str]:
    """Return a text of the stream and what is to be written."""
    if rng.random() < STORY_SHARE:
        return hide(rng, with_articles(rng.choice(STORIES)(rng)).split())
    text, answer = rng.choice(QUESTIONS)(rng)
    return with_articles(text), answer


def stream(seed: int, shard: int, n: int, batch: int) -> tuple[Tensor, Tensor]:
    """Return part `shard` of the stream: ids (n, 48) and targets (n, 24), padded.

    Texts of like length share a batch, which spares padding; the batches are in random order. Each
    shard is reproducible by itself, so that a run can stop and resume anywhere.

    Args:
        seed: Of everything random.
        shard: Number of the part.
        n: How many texts.
        batch: Texts in a batch.
    """
    rng = random.Random(f"{TEXT_VERSION} stream {seed} {shard}")
    pairs = [tuple(encode(part) for part in pair(rng)) for _ in range(n)]
    pairs.sort(key=lambda p: (len(p[0]), len(p[1])))
    batches = [pairs[i : i + batch] for i in range(0, n, batch)]
    rng.shuffle(batches)
    ids, targets = torch.zeros(n, 48, dtype=torch.int64), torch.zeros(n, TARGET, dtype=torch.int64)
    for i, (read, written) in enumerate(p for part in batches for p in part):
        ids[i, : len(read)] = torch.tensor(read)
        written = written[:TARGET]
        targets[i, : len(written)] = torch.tensor(written)
    return ids, targets


# --- Training -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    """What is learnt: to write hidden words and answers (an `Objective` of the loop)."""

    recipe: Recipe

    def model(self) -> FirstToken:
        """Return the model with random weights from torch's global seed."""
        return build_t5()

    def shard(self, index: int) -> tuple[Tensor, Tensor]:
        """Return a part of the stream, always the same."""
        r = self.recipe
        return stream(r.seed, index, r.shard, r.batch_size)

    def loss(self, model: FirstToken, ids: Tensor, targets: Tensor, step: int) -> Tensor:
        """Return the mean cross-entropy of the words to be written.

        Args:
            model: The model.
            ids: Token ids (n, 48), padded.
            targets: Token ids to be written (n, 24), padded.
            step: Number of the step.
        """
        return written_loss(model, ids, targets)

    def after_step(self, model: FirstToken) -> None:
        """Change nothing."""

    def evaluate(self, model: FirstToken, n: int) -> dict[str, float]:
        """Return zero-shot accuracies in % on n validation texts of each task."""
        return zero_shot_accuracy(model, n=n)

    def shipped(self, model: FirstToken) -> FirstToken:
        """Return the whole model."""
        return model


def written_loss(model: FirstToken, ids: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of target words given the text and the words before them.

    Args:
        model: The model.
        ids: Token ids (n, 48), padded.
        targets: Token ids to be written (n, 24), padded.
    """
    written = targets != model.pad
    targets = targets[:, : int(written.sum(1).max())]
    written = written[:, : targets.shape[1]]
    before = F.pad(targets, (1, -1), value=model.start)
    states = model.states(ids, before)[written]
    return F.cross_entropy(model.logits(states), targets[written])


@torch.no_grad()
def zero_shot_accuracy(model: FirstToken, split: str = "val", n: int = 500) -> dict[str, float]:
    """Return the accuracy in % on n texts of each task, among its answer words.

    Args:
        model: The model.
        split: `"train"`, `"val"` or `"test"`.
        n: How many of each task.
    """
    result = {}
    for task in TEXT_TASKS:
        ids, labels = sample_text(task["name"], split, n)
        head = text(model, task["classes"])
        guess = torch.cat([(model(part) @ head.T).argmax(1) for part in ids.split(250)])
        result[task["name"]] = 100 * (guess == labels).float().mean().item()
    learnt = [task["name"] for task in TEXT_TASKS if not task.get("control")]
    result[f"mean of {len(learnt)}"] = sum(result[name] for name in learnt) / len(learnt)
    return {name: round(value, 2) for name, value in result.items()}
