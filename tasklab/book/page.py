"""What a chapter shows besides figures and tables: captions, sentences, and the code behind them.

All of it is Markdown in a cell's output: JupyterLab and the site set it alike. The numbers in
it are computed when the cell runs: a sentence about results cannot be older than they are.
"""

from __future__ import annotations

import ast
import dataclasses
import html
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tasklab.book.beside import agreement as agreement
from tasklab.book.beside import beside_each_seed as beside_each_seed
from tasklab.book.beside import beside_recorded as beside_recorded
from tasklab.book.matched import made_equal as made_equal
from tasklab.book.matched import merges_made_equal as merges_made_equal
from tasklab.book.words import answer as answer
from tasklab.book.words import counted, say
from tasklab.book.words import order as order
from tasklab.book.words import seeds_recorded as seeds_recorded
from tasklab.book.words import so_far as so_far
from tasklab.book.words import word as word
from tasklab.errors import TasklabError, choose
from tasklab.records.table import is_awaited

if TYPE_CHECKING:
    from tasklab.records.judgement import Verdict

_ROOT = Path(__file__).resolve().parents[2]
FIGURE = "**Figure.**"  # what a caption begins with; the site puts a number in its place
NOT_YET = "Not recorded yet."
ORIGIN = "tasklab"  # under which an output's metadata tell programs where it comes from


def caption(
    name: str,
    text: str,
    records: pd.DataFrame | None = None,
    *,
    kind: str = "",
    counts: bool = True,
) -> Any:
    """Return the caption of the figure above.

    Args:
        name: Its anchor on the site, which JupyterLab has not: `fig-tangent-loss`.
        text: What is to be seen, in Markdown.
        records: Those that were drawn: how many seeds, tasks and images they have is added. Of none
            there is no figure, which is said in place of the caption.
        kind: `"live"` or `"recorded"`, said before that.
        counts: Whether these numbers are added.

    Raises:
        TasklabError: If a live or recorded figure comes without records.
    """
    if kind and records is None:
        raise TasklabError(f"{kind} figure {name}: give its records, whose number is to be told.")
    if records is not None and records.empty and kind == "recorded":
        return say(f"<!-- awaited {name} -->\n\n*{NOT_YET}*")
    origin = [kind.capitalize()] if kind else []
    if records is not None and counts and (told := sample(records)):
        origin.append(told)
        if re.match(r"one seed\b", told):  # alone it has no spread to be seen
            text = re.sub(r"[;,] [^;,.]*\bstandard deviations?\b[^;,.]*", "", text)
    suffix = f" *{': '.join(origin)}.*" if origin else ""
    return say(f"<!-- caption {name} -->\n\n{FIGURE} {text.strip()}{suffix}")


def of_forest(verdicts: Iterable[Verdict]) -> str:
    """Return what a forest of statements shows, as a caption says it: only of marks that it has.

    Args:
        verdicts: Those that are drawn.
    """
    from tasklab.records.statements import verdict_rows

    rows = verdict_rows(verdicts, cells=False)
    rows = rows[rows["outcome"] != "not tested"]
    lighter = (rows["outcome"] == "undecided") & rows["here"].isin(["holds", "does not hold"])
    told = {
        "Of a statement with several parts the weakest is drawn, which alone does not decide "
        "against it.": rows["n_cells"] > 1,
        "In italics: the same where both sides are made equal.": rows["setting"] != "chosen",
        "Light marks: decided on these tasks alone.": lighter,
        "Open marks have no interval: one seed, or nothing that varies.": ~(
            rows["high"] > rows["low"]
        ),
    }
    always = (
        "Every statement by its effect in half-widths of its 95 % interval: to the right as "
        "claimed, beyond the shaded strip decided."
    )
    return " ".join([always, *(words for words, marks in told.items() if marks.any())])


def sample(records: pd.DataFrame) -> str:
    """Return of how many seeds, tasks and images or texts they are: `three seeds, eight tasks`.

    Where the methods differ it is a range. The pre-trained model has no seeds. Images are test
    images, or those of validation if there are no others; of costs it is rounds that are told.

    Args:
        records: Tidy records.
    """
    experiments = {*records["experiment"]} if "experiment" in records else set()
    if experiments == {"cost"}:
        return counted(int(records["n"].min()), int(records["n"].max()), "round") + " of timing"
    if "method" in records and (records["method"] != "pretrained").any():
        records = records[records["method"] != "pretrained"]
    parts = []
    if "seed" in records:
        columns = [n for n in ("model", "init", "method", "n_tasks") if n in records]
        seeds = (records.groupby(columns, dropna=False) if columns else records)["seed"].nunique()
        parts.append(counted(max(1, np.min(seeds)), max(1, np.max(seeds)), "seed"))
    columns = ("task", "other") if "cosines" in experiments else ("task",)
    named = [records[name].dropna().astype(str) for name in columns if name in records]
    names = pd.concat(named) if named else pd.Series(dtype=str)
    names = names[names != "all"]  # what is of all tasks at once, as a shared coefficient
    together = names.str.contains("+", regex=False) | (names == "all")  # beside tasks: of these
    names = names if together.all() else names[~together]
    if len(names) and names.str.contains("+", regex=False).all():
        parts.append(counted(names.nunique(), names.nunique(), "pair") + " of tasks")
    elif names.nunique() > 1:
        parts.append(counted(names.nunique(), names.nunique(), "task"))
    if {"n", "split"} <= {*records}:
        counts = records.dropna(subset="n").groupby("split")["n"].agg(["min", "max"])
        split = next((one for one in ("test", "validation") if one in counts.index), None)
        suites = {*records["suite"]} if "suite" in records else set()
        noun = f"{split} {'text' if suites == {'mini_text'} else 'image'}"
        each = " of each" if len(parts) > ("seed" in records) else ""
        parts += [counted(*map(int, counts.loc[split]), noun) + each] if split else []
    return ", ".join(parts)


def source(*functions: Callable[..., Any]) -> Any:
    """Return the code of functions as it is in the package, without docstrings, to be read.

    Args:
        *functions: Of this package or any other module of Python.
    """
    blocks = [f"```python\n{_stripped(one)}\n```" for one in map(inspect.unwrap, functions)]
    from IPython.display import Markdown

    return Markdown("\n\n".join(blocks))


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
    from tasklab.records.statements import anchor, verdict_rows

    rows = verdict_rows(verdicts, cells=False)
    places = rows["evidence"].str.partition("#")[2].map(anchor)
    choose("heading", heading, {*places})
    lines = ["**What the recorded runs say** of this section's claims, with 95 % intervals:", ""]
    here = rows[places == heading]
    tested = here[here["outcome"] != "not tested"]
    for row in (tested if len(tested) else here).to_dict("records"):
        at = "" if row["setting"] == "chosen" else f" ({row['setting']})"
        lines.append(f"- {row['statement']}{at}: **{row['outcome']}**{_numbers(row)}.")
    return say("\n".join(lines))


def _numbers(row: Mapping[str, Any]) -> str:
    if not row["n_seeds"]:
        return " (no recorded runs of both sides)"
    from tasklab.records.statements import effect_of, on_these_tasks, seen

    effect, seeds = effect_of(row), counted(row["n_seeds"], row["n_seeds"], "seed")
    if row["unit"] == "times":  # a cost has no seeds; what was counted has no rounds either
        seeds = "over rounds of timing" if row["high"] > row["low"] else ""
    parts = [effect, *([] if not seeds or effect.endswith(seeds) else [seeds])]
    if mixed := row.get("mixed"):
        parts.append(f"sides on two makes of processor at {word(mixed)} of them")
    if row["n_pretrainings"] > 1:
        beside = counted(row["n_pretrainings"], row["n_pretrainings"], "pre-training")
        parts.append(f"{beside} of a smaller CLIP {effect_of(seen(row, 'others'))}")
    if row["n_tasks"] > 1:
        parts.append(f"{row['tasks_as_claimed']} of {row['n_tasks']} {row['counted']} as claimed")
    elif row["n_tasks"] and row["counted"] == "pairs":
        parts.append("one pair")
    if row["n_cells"] > 1:
        parts.append(_parts(row["cells_holding"], row["n_cells"]))
    alone = on_these_tasks(row)
    return f", {', '.join(parts)}" + (f"; {alone}" if alone else "")


def _parts(holding: int, many: int) -> str:
    """Return how many parts of a statement hold, beside the numbers of the weakest one."""
    verb = "holds" if holding <= 1 else "hold"
    none, every = (
        ("neither part", "both parts") if many == 2 else ("no part", f"all {word(many)} parts")
    )
    told = {0: none, many: every}.get(holding, f"{word(holding)} of {word(many)} parts")
    return f"{told} {verb} (the weakest is shown)"


@dataclasses.dataclass(frozen=True)
class opened:  # noqa: N801 (called as a function)
    """What a chapter begins with: what is studied, and how JupyterLab shows its figures.

    They are as wide as a column of the site at most, and dark in dark themes.

    Attributes:
        lab: The chapter's.
    """

    lab: Any

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        style = files("tasklab.figures").joinpath("jupyterlab.css").read_text(encoding="utf-8")
        text = repr(self.lab)
        marked = f'<pre class="tasklab-opened">{html.escape(text)}</pre>'
        return {"text/plain": text, "text/html": f"<style>{style}</style>{marked}"}


def once_recorded(show: Callable[..., Any], *tables: pd.DataFrame) -> Any:
    """Return what is made of recorded results; or, while one is awaited, the sentence that says so.

    Args:
        show: Tables -> a figure, a table or a sentence (`say`).
        *tables: What `tasklab.recorded` returned, or was selected from it.
    """
    return say(f"*{NOT_YET}*") if any(map(is_awaited, tables)) else show(*tables)


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
        below, and claims are not tested, until `python -m tasklab record {chapter} --all` has run.
    """)


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
        from tasklab.figures.tables import table

        data = {"text/plain": repr(self.table), "text/html": table(self.table).to_html()}
        return data, {ORIGIN: dict(self.here)}
