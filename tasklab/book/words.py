"""Sentences with numbers from records, and their parts."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import IPython.display
import pandas as pd

from tasklab.evidence.records.statements import on_site
from tasklab.evidence.study.numbers import word_of as word

IN_NOTEBOOKS, ON_SITE = "](../book/", "](../"  # how links from chapters to pages begin


def say(text: str) -> Any:
    """Return Markdown, or `None` for an empty text.

    Indented lines are one paragraph; hyphens before numbers become minus signs. Links to pages,
    which are paths to their files, lead to them on the site.
    """
    text = re.sub(r"(?<![^\s(\[])-(?=\d)", "−", textwrap.dedent(text).strip())
    text = text.replace(IN_NOTEBOOKS, ON_SITE) if on_site() else text
    return IPython.display.Markdown(text) if text else None


def answer(text: str) -> Any:
    """Return the answer to an exercise, folded in JupyterLab; the site folds the whole cell."""
    return say(text if on_site() else f"<details><summary>Answer</summary>\n\n{text}\n\n</details>")


def counted(low: int, high: int, noun: str) -> str:
    """Return a number of things, or a range of numbers, in words up to nine.

    Args:
        low, high: Ends of the range, equal for one number.
        noun: In the singular.

    >>> counted(1, 3, "seed"), counted(2, 3, "seed"), counted(500, 500, "image")
    ('one to three seeds', 'two or three seeds', '500 images')
    """
    words = dict.fromkeys(word(number) for number in (low, high))
    between = " or " if high == low + 1 else " to "
    return f"{between.join(words)} {noun}{'' if high == 1 else 's'}"


def order(values: pd.Series, form: str = "{:.1f}") -> str:
    """Return names with their numbers, the largest first, as running text.

    >>> order(pd.Series({"linearized": 59.52, "non-linear": 57.8}))
    'linearized 59.5, non-linear 57.8'
    """
    ranked = values.sort_values(ascending=False)
    comma = "; " if any("," in str(name) for name in ranked.index) else ", "
    return comma.join(f"{name} {form.format(value)}" for name, value in ranked.items())


def so_far(done: int, every: int) -> str:
    """Count the recorded parts in a sentence; empty where all are.

    >>> so_far(3, 30), so_far(30, 30)
    ('*Three of the 30 parts of the chapters are recorded so far.*', '')
    """
    if done == every:
        return ""
    number = word(done).capitalize() if done else "None"
    return f"*{number} of the {every} parts of the chapters are recorded so far.*"
