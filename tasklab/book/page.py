"""What a chapter shows besides figures and tables: captions, sentences, and the code behind them.

All of it is Markdown in a cell's output: JupyterLab and the site set it alike. The numbers in
it are computed when the cell runs: a sentence about results cannot be older than they are.
"""

from __future__ import annotations

import ast
import dataclasses
import html
import inspect
import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tasklab.errors import choose
from tasklab.records.table import is_awaited

if TYPE_CHECKING:
    from tasklab.records.judgement import Verdict

_ROOT = Path(__file__).resolve().parents[2]
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_FEW = 3  # pairs of methods that are named one by one
FIGURE = "**Figure.**"  # what a caption begins with; the site puts a number in its place
_HEADS = {"model": "encoder", "n_tasks": "tasks", "lr": "learning rate"}
_NOT_YET = "*Not recorded yet.*"
ORIGIN = "tasklab"  # under which an output's metadata tell programs where it comes from


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
        records: Those that were drawn: how many seeds, tasks and images they have is added. Of none
            there is no figure, which is said in place of the caption.
        kind: `"live"` or `"recorded"`, said before that.
    """
    if records is not None and records.empty and kind == "recorded":
        return say(f"<!-- awaited {name} -->\n\n{_NOT_YET}")
    origin = [kind.capitalize()] if kind else []
    origin += [sample(records)] if records is not None else []
    suffix = f" *{': '.join(origin)}.*" if origin else ""
    return say(f"<!-- caption {name} -->\n\n{FIGURE} {text.strip()}{suffix}")


def sample(records: pd.DataFrame) -> str:
    """Return of how many seeds, tasks and images records are, e.g. `three seeds, eight tasks`.

    Where the methods differ it is a range. The pre-trained model has no seeds.

    Args:
        records: Tidy records.
    """
    if "method" in records and (records["method"] != "pretrained").any():
        records = records[records["method"] != "pretrained"]
    parts = []
    if "seed" in records:
        columns = [name for name in ("model", "method") if name in records]
        seeds = (records.groupby(columns) if columns else records)["seed"].nunique()
        parts.append(counted(max(1, np.min(seeds)), max(1, np.max(seeds)), "seed"))
    named = [records[name].dropna().astype(str) for name in ("task", "other") if name in records]
    names = pd.concat(named) if named else pd.Series(dtype=str)
    names = names[names != "all"]  # what is of all tasks at once, as a shared coefficient
    together = names.str.contains("+", regex=False) | (names == "all")  # beside tasks: of these
    names = names if together.all() else names[~together]
    if len(names) and names.str.contains("+", regex=False).all():
        parts.append(counted(names.nunique(), names.nunique(), "pair") + " of tasks")
    elif names.nunique() > 1:
        parts.append(counted(names.nunique(), names.nunique(), "task"))
    if {"n", "split"} <= {*records}:
        n = records.loc[records["split"] == "test", "n"].dropna()
        parts += [counted(int(n.min()), int(n.max()), "test image") + " of each"] if len(n) else []
    return ", ".join(parts)


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
    comma = "; " if any("," in str(name) for name in ranked.index) else ", "
    return comma.join(f"{name} {form.format(value)}" for name, value in ranked.items())


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


def findings(verdicts: Iterable[Verdict], heading: str) -> Any:
    """Return what was found on the claims of one section, as a list of sentences.

    Args:
        verdicts: Of all claims of the chapter, from recorded results.
        heading: The section's, as a link has it: `do-the-vectors-add`.

    Raises:
        TasklabError: If no claim is judged under that heading.
    """
    from tasklab.records.statements import verdict_rows

    rows = verdict_rows(verdicts, cells=False)
    places = rows["evidence"].str.partition("#")[2]
    choose("heading", heading, {*places})
    lines = ["**What the recorded runs say of the claims here**, with 95 % intervals:", ""]
    here = rows[places == heading]
    tested = here[here["outcome"] != "not tested"]
    for row in (tested if len(tested) else here).to_dict("records"):
        at = "" if row["setting"] == "chosen" else f" ({row['setting']})"
        lines.append(f"- {row['statement']}{at}: **{row['outcome']}**{_numbers(row)}.")
    return say("\n".join(lines))


def _numbers(row: Mapping[str, Any]) -> str:
    if not row["n_seeds"]:
        return " (no recorded runs of both sides)"
    ends = "" if pd.isna(row["low"]) else f" [{row['low']:.3g}, {row['high']:.3g}]"
    parts = [f"{row['effect']:+.3g}{ends} {row['unit']}".rstrip()]
    parts.append(counted(row["n_seeds"], row["n_seeds"], "seed"))
    if row["n_tasks"] > 1:
        parts.append(f"{row['tasks_as_claimed']} of {row['n_tasks']} tasks as claimed")
    if row["n_cells"] > 1:
        parts.append(f"{row['cells_holding']} of {row['n_cells']} parts hold, this is the weakest")
    return f", {', '.join(parts)}"


def opened(lab: Any) -> Opened:
    """Return what a chapter begins with: what is studied, and how its figures look in the dark.

    Args:
        lab: The chapter's.
    """
    return Opened(lab)


@dataclasses.dataclass(frozen=True)
class Opened:
    """What is studied, as text; in JupyterLab's dark themes the notebook's figures turn dark, too.

    Attributes:
        lab: What is studied.
    """

    lab: Any

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        style = files("tasklab.figures").joinpath("dark.css").read_text(encoding="utf-8")
        text = repr(self.lab)
        marked = f'<pre class="tasklab-opened">{html.escape(text)}</pre>'
        return {"text/plain": text, "text/html": f"<style>{style}</style>{marked}"}


def once_recorded(show: Callable[..., Any], *tables: pd.DataFrame) -> Any:
    """Return what is made of recorded results; or, while one is awaited, the sentence that says so.

    Args:
        show: Tables -> a figure, a table or a sentence (`say`).
        *tables: What `tasklab.recorded` returned, or was selected from it.
    """
    return say(_NOT_YET) if any(map(is_awaited, tables)) else show(*tables)


def so_far(done: int, every: int) -> str:
    """Return a sentence on how much is recorded, or nothing where everything is.

    Args:
        done: How many parts are.
        every: How many there are.

    >>> so_far(3, 29), so_far(29, 29)
    ('*Three of the 29 parts of the chapters are recorded so far.*', '')
    """
    if done == every:
        return ""
    number = word(done).capitalize() if done else "None"
    return f"*{number} of the {every} parts of the chapters are recorded so far.*"


def awaited(recorded: pd.DataFrame, chapter: str) -> Any:
    """Return a sentence that nothing is recorded of a chapter yet; nothing where something is.

    Args:
        recorded: What `tasklab.recorded` returned.
        chapter: One of `chapters.CHAPTERS`.
    """
    if len(recorded):
        return None
    return say(f"""
        **Nothing of this chapter is recorded yet.** What would come from records is marked so
        below, and claims are not tested, until `python -m tasklab study {chapter} --all` has run.
    """)


def beside_recorded(
    live: pd.DataFrame,
    recorded: pd.DataFrame,
    experiment: str,
    metric: str,
    *,
    n_tasks: int | None = None,
    split: str = "test",
    by: str = "method",
) -> pd.DataFrame:
    """Put what ran here beside what is recorded of the same model and tasks, row by row.

    Args:
        live: Records of one model; of several where `by` is another column than the method's.
        recorded: Recorded results, of any models.
        experiment: Its name in the records.
        metric: One of its metrics.
        n_tasks: Number of added tasks, where the experiment is addition.
        split: Of the images.
        by: The column that tells rows apart: `method` of fine-tuning, `merge`,
            `model`, `n_tasks`, `lr`, `task`, `init`.

    Returns:
        Columns method (or encoder, ...), live, ± images (half of the 95 % interval for the number
        of images, of the first seed), seeds, recorded, std over seeds, recorded seeds; a row a
        method, encoder, ... that ran here.
    """
    from tasklab.figures.merging import merges_in
    from tasklab.figures.style import methods_in
    from tasklab.records.table import summarise

    def chosen(table: pd.DataFrame) -> pd.DataFrame:
        rows = table[(table["experiment"] == experiment) & (table["metric"] == metric)]
        rows = rows[rows["split"] == split]
        return rows if n_tasks is None else rows[(rows["n_tasks"] == n_tasks).fillna(False)]

    live, recorded = chosen(live), chosen(recorded)
    for name in ("model", "init", "task", *(("method", "subset") if by != "method" else ())):
        recorded = recorded[recorded[name].isin(live[name])]
    if by not in recorded:  # nothing is recorded yet
        recorded = recorded.assign(**{by: ""})
    here, there = (summarise(t, [by]).set_index(by) for t in (live, recorded))
    keys = methods_in(live, baseline=True) if by == "method" else here.index
    rows = []
    for key in merges_in(live) if by == "merge" else keys:
        kept = there.loc[key] if key in there.index else {}
        row = {_HEADS.get(by, by): _label(by, key), "live": here.loc[key, "mean"]}
        row |= {"± images": _half(live[live[by] == key])}
        row |= {"seeds": int(here.loc[key, "n_seeds"]), "recorded": kept.get("mean", math.nan)}
        row |= {"std over seeds": kept.get("std", math.nan)}
        rows.append(row | {"recorded seeds": int(kept.get("n_seeds", 0))})
    return pd.DataFrame(rows)


def _label(by: str, key: Any) -> str:
    """Return what a row is called, in a table and in a sentence."""
    from tasklab.figures.merging import MERGE_LABEL
    from tasklab.figures.schemes import scheme
    from tasklab.figures.style import METHOD_LABEL
    from tasklab.models.zoo import REGISTRY

    if by in ("method", "merge"):
        return (METHOD_LABEL if by == "method" else MERGE_LABEL)[key]
    if by == "model":
        return scheme(key) if key in REGISTRY else key
    if by == "n_tasks":
        return counted(key, key, "task")
    return f"rate {key:g}" if by == "lr" else str(key)


def _half(rows: pd.DataFrame) -> float:
    """Return half of the 95 % interval of a mean of shares in %, for the images drawn."""
    from tasklab.records.schema import ACCURACIES

    rows = rows[rows["seed"].isna() | (rows["seed"] == rows["seed"].min())]
    share = rows["value"] / 100
    if not rows["metric"].isin((*ACCURACIES, "xi_classifier_box")).all():
        return math.nan  # no share of images
    if rows["n"].isna().any() or not share.between(0, 1).all():
        return math.nan
    return 196 * math.sqrt((share * (1 - share) / rows["n"].astype(float)).sum()) / len(rows)


def agreement(beside: pd.DataFrame, form: str = "{:.1f}") -> Any:
    """Return a sentence on whether what ran here has the order of what is recorded.

    Args:
        beside: What `beside_recorded` returns.
        form: Of a number.
    """
    comparable = beside.dropna(subset="recorded").set_index(beside.columns[0])
    if not len(comparable):
        return say("Nothing is recorded of this model with these tasks to be compared with.")
    live, recorded, images = comparable["live"], comparable["recorded"], comparable["± images"]
    if len(comparable) == 1:
        off, half = abs(live.iloc[0] - recorded.iloc[0]), images.iloc[0]
        note = "" if pd.isna(half) else f", {'within' if off < half else 'beyond'} "
        note += f"the {half:.1f} of so few images" if note else ""
        return say(
            f"Live, {live.index[0]}: {form.format(live.iloc[0])}; recorded: "
            f"{form.format(recorded.iloc[0])}{note}."
        )
    turned = [
        (one, two) if live[one] > live[two] else (two, one)
        for one, two in itertools.combinations(comparable.index, 2)
        if (live[one] - live[two]) * (recorded[one] - recorded[two]) < 0
    ]
    if not turned:
        return say(f"Live, the order is the recorded one: {order(live, form)}.")
    reversals, within = [], 0
    for one, two in turned:
        far, half = live[one] - live[two], math.hypot(*images[[one, two]])
        if far < half and len(turned) > _FEW:
            within += 1
            continue
        size = form.format(far) if pd.isna(half) else f"{form.format(far)} points"
        small = f"{size}, within the {half:.1f} of so few images"
        reversals.append(f"{one} above {two} ({small if far < half else size})")
    reversals[_FEW:] = (
        [counted(more, more, "more pair")] if (more := len(reversals) - _FEW) > 0 else []
    )
    reversals += (
        [f"{counted(within, within, 'pair')} within what so few images tell"] if within else []
    )
    return say(
        f"**The live run turns the recorded order over**: it has {'; '.join(reversals)}. It is "
        f"one short fine-tuning of few images; the recorded order is {order(recorded, form)}."
    )


def origin(recorded: Mapping[str, Any], lab: Any) -> Origin:
    """Return where numbers come from, recorded ones and those of this page, side by side.

    Args:
        recorded: The provenance of recorded results.
        lab: What ran here.
    """
    from tasklab.figures.tables import origin_table

    here = lab.provenance()
    sides = [origin_table(one)[""] for one in (recorded, here)]
    table = pd.concat(sides, axis=1, keys=["recorded", "this page"], sort=False).fillna("")
    return Origin(table=table, here=here)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """A table of where numbers come from; programs find this page's side in the metadata.

    Attributes:
        table: What is shown.
        here: The provenance of what ran here.
    """

    table: pd.DataFrame
    here: Mapping[str, Any]

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        data = {"text/plain": repr(self.table), "text/html": self.table.to_html()}
        return data, {ORIGIN: dict(self.here)}
