"""Captions, sentences, code and provenance in the outputs of chapters.

All of it is Markdown or HTML in a cell's output, which JupyterLab and the site render alike.
"""

from __future__ import annotations

import ast
import dataclasses
import html
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from tasklab.book.words import answer as answer
from tasklab.book.words import counted, say
from tasklab.book.words import order as order
from tasklab.book.words import so_far as so_far
from tasklab.book.words import word as word
from tasklab.chapters import CHAPTERS
from tasklab.errors import TasklabError, choose
from tasklab.experiments.registry import REGISTRY
from tasklab.figures.tables import origin_table, table
from tasklab.records.judgement import Verdict
from tasklab.records.statements import PLAIN, anchor, effect_of, on_site, verdict_rows
from tasklab.records.table import is_awaited

_ROOT = Path(__file__).resolve().parents[2]
FIGURE = "**Figure.**"  # what a caption begins with; the site puts a number in its place
NOT_YET = "Not recorded yet."
ORIGIN = "tasklab"  # under which an output's metadata tell programs where it comes from


def caption(
    name: str,
    text: str,
    records: pd.DataFrame | None = None,
    *,
    kind: str | None = None,
    counts: bool = True,
) -> Any:
    """Return the caption of the figure above.

    Args:
        name: Its anchor on the site: `fig-tangent-loss`.
        text: Markdown.
        records: The records that were drawn; their numbers of seeds, tasks and images are added.
            Without any the caption says that they are awaited.
        kind: `"live"` or `"recorded"`, said before that; by default what the records say
            (`results`, `study.recorded`).
        counts: Whether these numbers are added.

    Raises:
        TasklabError: If a live or recorded figure comes without records.
    """
    if kind is None:
        kind = "" if records is None else records.attrs.get("kind", "")
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


def sample(records: pd.DataFrame) -> str:
    """Return the numbers of seeds, tasks and images: `three seeds, eight tasks`.

    A range where methods differ, without the pre-trained model. Images are test images, or
    validation images if there are no others; costs have rounds.
    """
    experiments = {*records["experiment"]} if "experiment" in records else set()
    if experiments == {"cost"}:
        return counted(int(records["n"].min()), int(records["n"].max()), "round") + " of timing"
    if "method" in records and (records["method"] != "pretrained").any():
        records = records[records["method"] != "pretrained"]
    parts = []
    if "seed" in records:
        by = [n for n in ("model", "init", "method", "n_tasks") if n in records]
        seeds = (records.groupby(by, dropna=False) if by else records)["seed"].nunique()
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
        low, high = map(int, counts.loc[split]) if split else (0, 0)
        parts += [counted(low, high, noun) + each] if split else []
    return ", ".join(parts)


def source(*functions: Callable[..., Any]) -> Any:
    """Return the code of functions as it is in the package, without docstrings."""
    blocks = [f"```python\n{_stripped(one)}\n```" for one in map(inspect.unwrap, functions)]
    from IPython.display import Markdown

    return Markdown("\n\n".join(blocks))


def _stripped(function: Callable[..., Any]) -> str:
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    node = ast.parse("\n".join(lines)).body[0]
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
        first = node.body[0]
        del lines[first.lineno - 1 : first.end_lineno]
    file = Path(inspect.getsourcefile(function) or "").resolve()
    place = file.relative_to(_ROOT).as_posix() if file.is_relative_to(_ROOT) else file.name
    return "\n".join([f"# {place}", *lines])


def results(
    lab: Any,
    rows: pd.DataFrame,
    run: Callable[..., pd.DataFrame],
    methods: Sequence[str] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Return recorded results, or those of the same experiment that runs here.

    It runs with `live="all"`, the default of models of which nothing is recorded.

    Args:
        lab: The chapter's.
        rows: Recorded results, of which those of the experiment and methods are returned.
        run: One of `tasklab.experiments`, or a function of the lab that calls several.
        methods: The experiment's second argument; the pre-trained model's rows are kept as well.
        **options: Its further ones.
    """
    given = () if methods is None else (methods,)
    if lab.parameters.live == "all":
        return _of_kind(run(lab, *given, **options), "live")
    if run.__name__ in REGISTRY:
        rows = rows[rows["experiment"].isin(REGISTRY[run.__name__].records)]
    if methods is not None:
        rows = rows[rows["method"].isin(["pretrained", *methods])]
    return _of_kind(rows, "recorded")


def _of_kind(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    rows = rows.copy(deep=False)
    rows.attrs["kind"] = kind
    return rows


def findings(verdicts: Iterable[Verdict], heading: str) -> Any:
    """Return the verdicts on the statements of one section, a short line each.

    Args:
        verdicts: On all claims of the chapter, from recorded results.
        heading: The section's, as a link has it: `do-the-vectors-add`.

    Raises:
        TasklabError: If no claim is judged under that heading.
    """
    rows = verdict_rows(verdicts, cells=False)
    places = rows["evidence"].str.partition("#")[2].map(anchor)
    choose("heading", heading, {*places})
    here = rows[(places == heading) & (rows["setting"] == "chosen")]
    tested = here[here["outcome"] != "not tested"]
    lines = [
        f"<b>{PLAIN.get(row['outcome'], row['outcome'])}</b>: {row['short']}"
        + (f" ({effect_of(row)})" if row["n_seeds"] else "")
        for row in tested.to_dict("records")
    ]
    lines += [
        f"<b>not tested</b>: {short}" for short in here[~here.index.isin(tested.index)]["short"]
    ]
    lead = _link("verdicts", "Statements of the paper")
    return say(f'<p class="tl-verdicts">{lead}, in recorded runs: {"; ".join(lines)}.</p>')


def _link(page: str, text: str, query: str = "") -> str:
    """Return a link from a chapter to a page of the book, on the site and in JupyterLab."""
    place = f"{page}.html" if on_site() else f"book/{page}.md"
    return f'<a href="../{place}{query}">{text}</a>'


def verdicts(judged: Iterable[Verdict], chapter: str) -> Any:
    """Count the outcomes of a chapter's statements, with a link to their list.

    Args:
        judged: Verdicts on the chapter's claims.
        chapter: One of `chapters.CHAPTERS`.
    """
    rows = verdict_rows(judged, cells=False)
    rows = rows[rows["setting"] == "chosen"]
    counts = rows["outcome"].map(lambda one: PLAIN.get(one, one)).value_counts()
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    kept = int((rows["survives"] != "").sum())
    link = _link("verdicts", "list of them", f"?paper={quote(CHAPTERS[chapter].label)}")
    rule = _link("verdicts_method", "how a claim is judged")
    return say(
        f"{len(rows)} statements of the paper: {told}. {kept} of these outcomes survive the "
        f"correction for the number of tests. The {link} has effects, intervals and scopes; see "
        f"also {rule}."
    )


@dataclasses.dataclass(frozen=True)
class opened:  # noqa: N801 (called as a function)
    """A chapter's first output: its `lab`, and the style of figures in JupyterLab.

    Its metadata have the provenance of what the notebook computes, which the site lists.
    """

    lab: Any

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        p = self.lab.parameters
        shown = (
            "figures and tables: computed here; sentences are about recorded runs of mini"
            if p.live == "all"
            else 'results: recorded runs; "Run it yourself" runs here, and all with live="all"'
        )
        style = files("tasklab.figures").joinpath("jupyterlab.css").read_text(encoding="utf-8")
        text = f"{self.lab!r}\n{shown}"
        marked = f'<pre class="tasklab-opened">{html.escape(text)}</pre>'
        data = {"text/plain": text, "text/html": f"<style>{style}</style>{marked}"}
        return data, {ORIGIN: self.lab.provenance()}


def once_recorded(show: Callable[..., Any], *tables: pd.DataFrame) -> Any:
    """Return `show(*tables)`, or "Not recorded yet" while one of the tables is awaited."""
    return say(f"*{NOT_YET}*") if any(map(is_awaited, tables)) else show(*tables)


def awaited(recorded: pd.DataFrame, chapter: str) -> Any:
    """Return a sentence while nothing of a chapter is recorded."""
    if len(recorded):
        return None
    return say(f"""
        **Nothing of this chapter is recorded yet.** What would come from records is marked so
        below, and claims are not tested, until `python -m tasklab record {chapter} --all` has run.
    """)


def origin(recorded: Mapping[str, Any], lab: Any) -> Any:
    """Return the provenance of recorded results and of this page, side by side."""
    sides = [origin_table(one)[""] for one in (recorded, lab.provenance())]
    return table(pd.concat(sides, axis=1, keys=["recorded", "this page"], sort=False).fillna(""))
