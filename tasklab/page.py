"""What a chapter shows besides figures and tables: captions, sentences, and the code behind them.

All of it is Markdown in a cell's output: JupyterLab and the site set it alike. The numbers in
it are computed when the cell runs: a sentence about results cannot be older than they are.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

_ROOT = Path(__file__).resolve().parents[1]
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FIGURE = "**Figure.**"  # what a caption begins with; the site puts a number in its place


def say(text: str) -> Any:
    """Return a sentence as Markdown; an f-string takes its numbers from the records at hand.

    Args:
        text: Markdown. Indented lines are one paragraph.
    """
    from IPython.display import Markdown

    return Markdown(textwrap.dedent(text).strip())


def caption(name: str, text: str, records: pd.DataFrame | None = None, *, kind: str = "") -> Any:
    """Return the caption of the figure above.

    Args:
        name: By which text refers to the figure: `[the losses](#fig-tangent-loss)`.
        text: What is to be seen, in Markdown.
        records: Those that were drawn: how many seeds, tasks and images they have is added.
        kind: `"live"` or `"recorded"`, said before that.
    """
    origin = [kind.capitalize()] if kind else []
    origin += [sample(records)] if records is not None else []
    told = f" *{': '.join(origin)}.*" if origin else ""
    return say(f"<!-- caption {name} -->\n\n{FIGURE} {text.strip()}{told}")


def sample(records: pd.DataFrame) -> str:
    """Return of how many seeds, tasks and images records are, e.g. `three seeds, eight tasks`.

    Where the methods differ it is a range. The pre-trained model has no seeds.

    Args:
        records: Tidy records.
    """
    tuned = records[records["method"] != "pretrained"]
    tuned = tuned if len(tuned) else records
    seeds = tuned.groupby(["model", "method"])["seed"].nunique().clip(lower=1)
    told = [counted(seeds.min(), seeds.max(), "seed")]
    tasks = {part for name in tuned["task"].dropna() for part in str(name).split("+")}
    pairs = tuned["task"].astype(str).str.contains("+", regex=False).all()
    if pairs:
        told.append(counted(*[tuned["task"].nunique()] * 2, "pair") + " of tasks")
    elif len(tasks) > 1:
        told.append(counted(len(tasks), len(tasks), "task"))
    n = tuned.loc[tuned["split"] == "test", "n"].dropna()
    if len(n):
        told.append(counted(int(n.min()), int(n.max()), "test image") + " of each")
    return ", ".join(told)


def counted(low: int, high: int, noun: str) -> str:
    """Return a number of things, or a range of them, in words up to nine.

    Args:
        low: The least number.
        high: The largest number.
        noun: One of them.

    >>> counted(1, 3, "seed"), counted(1, 1, "task"), counted(500, 500, "image")
    ('one to three seeds', 'one task', '500 images')
    """
    words = dict.fromkeys(word(number) for number in (low, high))
    return f"{' to '.join(words)} {noun}{'' if high == 1 else 's'}"


def word(number: int) -> str:
    """Return a number as running text has it: in words up to nine."""
    return _WORDS[number] if 0 <= number < len(_WORDS) else f"{number:,}"


def order(values: pd.Series, form: str = "{:.1f}") -> str:
    """Return names with their numbers from the largest to the smallest, as running text.

    Args:
        values: Numbers by name.
        form: Of a number.

    >>> order(pd.Series({"linearized": 59.52, "non-linear": 57.8}))
    'linearized 59.5, non-linear 57.8'
    """
    ranked = values.sort_values(ascending=False)
    return ", ".join(f"{name} {form.format(value)}" for name, value in ranked.items())


def source(*functions: Callable[..., Any]) -> Any:
    """Return the code of functions as it is in the package, without docstrings, to be read.

    Args:
        *functions: Of this package or any other module of Python.
    """
    blocks = [f"```python\n{_stripped(one)}\n```" for one in map(inspect.unwrap, functions)]
    return say("\n\n".join(blocks))


def _stripped(function: Callable[..., Any]) -> str:
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    node = ast.parse("\n".join(lines)).body[0]
    if ast.get_docstring(node, clean=False) is not None:
        first = node.body[0]
        del lines[first.lineno - 1 : first.end_lineno]
    file = Path(inspect.getsourcefile(function)).resolve()
    place = file.relative_to(_ROOT).as_posix() if file.is_relative_to(_ROOT) else file.name
    return "\n".join([f"# {place}", *lines])
