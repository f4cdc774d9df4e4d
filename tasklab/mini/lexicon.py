"""The words of the text world, facts about its things, and its tokens.

A token is a word. Every word of tasks and texts of pre-training is listed here; `tasklab.mini.text`
has the grammars.
"""

from __future__ import annotations

import functools

from tasklab.errors import TasklabError
from tasklab.mini.catalog import COLOURS as _RGB
from tasklab.mini.catalog import SHAPES, VEHICLES

LENGTH = 48  # token ids of a text, with the end mark

COLOURS = tuple(_RGB)
THINGS = SHAPES + VEHICLES
SPOTS = (
    "forest", "river", "highway", "factory", "pasture", "lake", "orchard", "airport", "bridge",
    "harbor", "stadium", "island", "beach", "railway", "mountain", "desert", "sea", "city",
    "meadow", "canyon", "village", "lighthouse", "waterfall", "cave",
)  # fmt: skip
PEOPLE = (
    "mary", "john", "anna", "paul", "lucy", "mark", "emma", "peter", "sara", "tom", "nina", "hugo",
    "ruth", "ivan", "lena", "omar",
)  # fmt: skip
# name: colour, place, food, movement, cover, size
ANIMALS = {
    name: tuple(traits.split())
    for name, traits in {
        "cow": "brown pasture grass runs skin big",
        "sheep": "white pasture grass jumps wool big",
        "whale": "blue sea fish swims skin big",
        "salmon": "pink river insects swims scales small",
        "frog": "green lake insects jumps skin small",
        "owl": "gray forest meat flies feathers small",
        "parrot": "red island seeds flies feathers small",
        "gull": "white beach fish flies feathers small",
        "crab": "orange beach meat crawls shell small",
        "camel": "yellow desert leaves runs fur big",
        "snake": "green desert meat crawls scales small",
        "wolf": "gray forest meat runs fur big",
        "squirrel": "red forest nuts climbs fur small",
        "monkey": "brown island fruit climbs fur big",
        "goat": "white mountain leaves climbs wool big",
        "eagle": "black mountain fish flies feathers big",
        "bat": "black cave insects flies skin small",
        "bear": "black cave fruit climbs fur big",
        "mole": "black meadow insects digs fur small",
        "turtle": "green sea leaves swims shell big",
    }.items()
}
FOODS = ("grass", "fish", "insects", "meat", "seeds", "leaves", "nuts", "fruit")
TOPICS = {
    name: tuple(words.split())
    for name, words in {
        "sport": "team player coach goal match race referee ball medal trainer",
        "cooking": "oven soup chef recipe sugar flour butter pan spice dinner",
        "travel": "ticket hotel luggage passport flight tourist guide map cabin suitcase",
        "science": "experiment theory laboratory atom cell telescope planet formula robot data",
        "music": "song guitar piano singer concert drum melody orchestra violin choir",
        "farming": "crop barn harvest field wheat soil plow hay fence seed",
        "money": "bank price market loan tax coin profit debt budget salary",
        "health": "doctor nurse hospital medicine fever patient pill wound clinic bandage",
    }.items()
}
PRODUCTS = ("film", "book", "meal", "show", "game", "trip")
ASPECTS = (
    "plot", "actor", "ending", "food", "service", "room", "sound", "story", "style", "view",
    "start", "staff",
)  # fmt: skip
# word: how good
VERDICTS = {
    word: strength
    for strength, words in {
        2: "wonderful brilliant superb excellent amazing perfect splendid delightful",
        1: "good nice pleasant fine charming lovely decent solid",
        -1: "bad poor dull weak slow ugly noisy bland",
        -2: "terrible awful horrible dreadful dire rotten hopeless appalling",
    }.items()
    for word in words.split()
}
DEGREES = {"very": 1.5, "really": 1.5, "quite": 1.0, "slightly": 0.5, "not": -0.7}
OPTIONS = tuple(f"({letter})" for letter in "abcdefgh")
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
STATES = ("new", "old", "heavy", "light", "wet", "dry", "broken", "cheap")
_FUNCTION_WORDS = """
, . : ? ___ a about all and animal are at but buy carries choose claim colour context covered day
did disliked eats false find for found full gave guess has here how hypothesis in is it its keeps
known left liked likes list lives look looked looks many marks maybe missing named near negative
news no number of often or painted people positive premise question review saw seemed seen
sentiment she should stands stars subject talked tell the they things think this title true
unknown used wants was watched we were what where which with word yes
"""


def words() -> tuple[str, ...]:
    """Return, sorted, every word that a text of this world can hold."""
    groups = (
        _FUNCTION_WORDS.split(), COLOURS, THINGS, SPOTS, PEOPLE, ANIMALS, FOODS, TOPICS,
        PRODUCTS, ASPECTS, VERDICTS, DEGREES, OPTIONS, NUMBERS, STATES,
        *ANIMALS.values(), *TOPICS.values(), ("an",),
    )  # fmt: skip
    return tuple(sorted({word for group in groups for word in group}))


SENTINELS = tuple(f"<extra_id_{i}>" for i in range(8))
SPECIAL = ("<pad>", "</s>", "<unk>", *SENTINELS)
PAD, EOS, UNK = 0, 1, 2


@functools.cache
def vocabulary() -> dict[str, int]:
    """Return the id of each word: T5's special ones first (pad 0, end 1, unknown 2)."""
    return {word: i for i, word in enumerate((*SPECIAL, *words()))}


def encode(text: str) -> list[int]:
    """Return the ids of a text's words and the end mark."""
    known = vocabulary()
    ids = [known.get(word, UNK) for word in text.split()] + [EOS]
    if len(ids) > LENGTH:
        raise TasklabError(f"a text has {len(ids)} tokens, but at most {LENGTH} fit: {text!r}")
    return ids
