"""Sentences, code and provenance in the outputs of chapters.

All of it is Markdown or HTML in a cell's output, which JupyterLab and the site render alike.
"""

from __future__ import annotations

import ast
import base64
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

import IPython.display
import pandas as pd

from tasklab.book import running, speaking, words
from tasklab.book.captions import KEY, NOT_YET, follow
from tasklab.book.left_out import skip_cells
from tasklab.book.summary import Summary
from tasklab.book.words import counted as counted
from tasklab.book.words import order as order
from tasklab.book.words import so_far as so_far
from tasklab.book.words import word as word
from tasklab.errors import TasklabError, choose
from tasklab.evidence.chapters import CHAPTERS
from tasklab.evidence.chapters import chapter as chapter_of
from tasklab.evidence.experiments.registry import REGISTRY, trained
from tasklab.evidence.figures.tables import table
from tasklab.evidence.records.judgement import Verdict
from tasklab.evidence.records.statements import anchor, how_many, on_site, verdict_rows
from tasklab.evidence.records.table import is_awaited
from tasklab.evidence.study import sections
from tasklab.evidence.study.results import sittings_of
from tasklab.tuning.recipe import PAPER_STEPS

_ROOT = Path(__file__).resolve().parents[2]
_MANY = 4  # verdicts of a section; more are folded
SCALES = ("embedded", "published checkpoints", "full protocol")
_TASKS, _SEEDS = 8, 3


def say(text: str, *, of: str = "", kind: str = "recorded") -> Any:
    """Return Markdown; on the page of a run, sentences name the source of their records.

    Args:
        text: Markdown; indented lines are one paragraph. Drawings, which begin with a tag, are left
            as they are.
        of: Whose records these are, where they are not those of `mini`.
        kind: `live` where the page computes the numbers, or no record enters them.
    """
    return words.say(_named(textwrap.dedent(text), of, kind))


def answer(text: str, *, of: str = "", kind: str = "recorded") -> Any:
    """Return the answer to an exercise, folded in JupyterLab; the site folds the whole cell.

    Args:
        text: Markdown.
        of: Whose records these are, where they are not those of `mini`.
        kind: `live` where the page computes the numbers, or no record enters them.
    """
    return words.answer(_named(text, of, kind))


def _named(text: str, of: str, kind: str) -> str:
    return text if kind == "live" else speaking.of_records(text, of)


def answered(section: str) -> Any:
    """Show a section's answer, chosen by the verdict on this page's records.

    Args:
        section: The anchor of its heading: `do-the-vectors-add`.
    """
    page = _page()
    return speaking.stand(lambda: page.evidence().answer(section))


def found() -> Any:
    """Show the answers that the chapter begins with, and how many statements are decided.

    Those of recorded runs stand in the notebook before it runs, and are shown by the site alone.
    """
    page = _page()
    if not page.live and not on_site():
        return None
    return speaking.stand(lambda: page.evidence().found())


def _page() -> speaking.Page:
    page = speaking.current()
    if page is None:
        raise TasklabError("no chapter is open here: call page.opened(lab) first.")
    return page


def of_records(shown: Any) -> Any:
    """Return a table of recorded results; where the page is about a run, below its model's name."""
    page = speaking.current()
    if page is not None and page.live and shown is not None:
        IPython.display.display(words.say(f"*Recorded of `{speaking.RECORDED_OF}`:*"))
    return shown


def as_csv(rows: pd.DataFrame, name: str, *, kind: str = "recorded") -> Any:
    """Return a link by which a long table of results is saved, in place of the table.

    Args:
        rows: The table.
        name: Of the file, without its ending.
        kind: `live` where the page computes them.
    """
    if rows.empty:
        return words.say(f"*{NOT_YET}*")
    text = rows.to_csv(index=not isinstance(rows.index, pd.RangeIndex), float_format="%.6g")
    coded = base64.b64encode(text.encode()).decode()
    told = f"{len(rows)} rows: {', '.join(map(str, rows.columns))}"
    link = f'<a download="{name}.csv" href="data:text/csv;base64,{coded}">{name}.csv</a>'
    return say(f"Table as a file: {link} ({html.escape(told)}).", kind=kind)


def folded(shown: Any, summary: str, *, kind: str = "recorded") -> Any:
    """Return a table in a closed fold below a summary.

    Args:
        shown: The table; other objects are returned unchanged.
        summary: The line that stays in sight.
        kind: `live` where the page computes its results.
    """
    if not hasattr(shown, "to_html"):  # a sentence, while nothing is recorded
        return shown
    page = speaking.current()
    of = kind != "live" and page is not None and page.live
    lead = f"Recorded of <code>{speaking.RECORDED_OF}</code>: {summary}" if of else summary
    return IPython.display.HTML(
        f'<details class="tl-table"><summary>{lead}</summary>{shown.to_html()}</details>'
    )


def source(*functions: Callable[..., Any]) -> Any:
    """Return the code of functions as it is in the package, without docstrings."""
    blocks = [f"```python\n{_stripped(one)}\n```" for one in map(inspect.unwrap, functions)]
    return IPython.display.Markdown("\n\n".join(blocks))


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

    It runs with `live="all"`, the default of models without records.

    Args:
        lab: The lab of the page.
        rows: Recorded results, of which those of the experiment and methods are returned.
        run: One of `tasklab.evidence.experiments`, or a function of the lab that calls several.
        methods: The experiment's second argument; the pre-trained model's rows are kept as well.
        options: Further arguments of the experiment.
    """
    given = () if methods is None else (methods,)
    if lab.parameters.live == "all":
        found = _of_kind(run(lab, *given, **options), "live")
        speaking.note(found)
        return found
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
    """Show the verdicts on the statements of one section; many of them are folded.

    Each has its outcome, linked to its row among all verdicts, and its effect: on this page's
    records, in the papers' tables (beside a run) and in the other recorded worlds.

    Args:
        verdicts: On all claims of the chapter, from recorded results.
        heading: The section's, as a link has it: `do-the-vectors-add`.
    """
    verdicts = list(verdicts)
    rows = verdict_rows(verdicts, cells=False)
    places = rows["evidence"].str.partition("#")[2].map(anchor)
    choose("heading", heading, {*places})
    here = list(rows[(places == heading) & (rows["setting"] == "chosen")]["id"])
    own = speaking.RECORDED_OF
    shipped = sections.Evidence(
        chapter=verdicts[0].claim.paper, model=own, name=own, verdicts=verdicts, numbers={},
        recorded=True,
    )  # fmt: skip
    page = speaking.current()
    live = page is not None and page.live
    return speaking.stand(lambda: _listed(page.evidence() if page and live else shipped, here))


def _listed(evidence: sections.Evidence, statements: Sequence[str]) -> str:
    rows = evidence.rows
    tested = [n for n in statements if n in rows.index and rows.loc[n, "outcome"] != "not tested"]
    if not tested:
        return ""
    beside = speaking.current() is not None
    lines = "".join(f"<li>{sections.line(one, evidence, worlds=beside)}</li>" for one in tested)
    if len(tested) > _MANY:
        outcomes = how_many(rows.loc[one, "here"] or rows.loc[one, "outcome"] for one in tested)
        lead = f"<summary>Verdicts: {outcomes} on these tasks</summary>"
        return f'<details class="tl-verdicts">{lead}<ul>{lines}</ul></details>'
    return f'<ul class="tl-verdicts">{lines}</ul>'


def _link(page: str, text: str, query: str = "") -> str:
    """Return a link from a chapter to a page of the book, on the site and in JupyterLab."""
    place = f"{page}.html" if on_site() else f"book/{page}.md"
    return f'<a href="../{place}{query}">{text}</a>'


def verdicts(judged: Iterable[Verdict], chapter: str) -> Any:
    """Count the verdicts that survive the correction, with a link to their list.

    Where the page computes its results: a table of this model against the paper and the recorded
    worlds, which is written as JSON beside the output, too (`summary.Summary`).
    """
    page = speaking.current()
    if page is not None and page.live:
        speaking.end()
        return Summary.of(page.evidence())
    rows = verdict_rows(judged, cells=False)
    rows = rows[rows["setting"] == "chosen"]
    kept = int((rows["survives"] != "").sum())
    link = _link("verdicts", "list of verdicts", f"?paper={quote(CHAPTERS[chapter].label)}")
    rule = _link("verdicts_method", "how a claim is judged")
    return words.say(
        f"{kept} of the chapter's {len(rows)} statements stay{'s' * (kept == 1)} decided after the "
        f"correction for many tests. The {link} has effects and intervals; see also {rule}."
    )


def weaknesses() -> Any:
    """Show statements that fail or stay open on this page's records; empty for recorded ones."""
    page = _page()
    return speaking.stand(lambda: page.evidence().weaknesses() if page.live else "")


def glance(name: str) -> Any:
    """Return a chapter's scale in a sentence, all scales folded, and differences at full size.

    Empty where the page computes its results: the scale is that of the recorded ones.
    """
    page = speaking.current()
    if page is not None and page.live:
        return None
    entry = chapter_of(name)
    sittings = sittings_of(name)
    spent = sittings[["fine-tuning (h)", "measuring (h)"]] if len(sittings) else None
    hours = 0.0 if spent is None else spent.replace("", "0").astype(float).to_numpy().sum()
    cards = sorted({one for one in sittings["machine"] if " cores" not in one}) if hours else []
    machines = "; ".join(["two CPU cores", *(f"parts on one {card}" for card in cards)])
    ours = f"recorded in {hours:.0f} h; the page opens in minutes" if hours else "minutes"
    embedded = "its eight encoders" if entry.apart else "`mini`"
    clip = "eight encoders, 224 pixels" if entry.apart else "CLIP ViT-B/32, B/16, L/14"
    methods = trained(entry.methods)
    runs = len(methods) * _TASKS * _SEEDS
    none = "nothing to run: none is published for these encoders"
    told = ""
    if not entry.apart:
        told = "no fine-tuning; not recorded yet"
    rows = [
        (f"**{SCALES[0]}**: all verdicts here", f"{embedded}, eight tasks of drawn images",
         machines, ours),
        (SCALES[1], f"{clip}, the papers' eight tasks" if told else none,
         "one GPU" if told else "", told),
        (SCALES[2], f"{clip}, {runs} runs of {PAPER_STEPS:,} steps a model", "one GPU",
         "not recorded yet"),
    ]  # fmt: skip
    lines = ["| scale | scope | hardware | time |", "|---|---|---|---|"]
    shown = [*lines, *("| " + " | ".join(row) + " |" for row in rows)]
    took = f"These runs took {hours:.0f} h; " if hours else ""
    lead = f"{took}runs at the papers' scale are not recorded yet. Scope, hardware and time"
    summary = f"<summary>{lead[0].upper()}{lead[1:]}</summary>"
    fold = ['<details class="tl-verdicts">', summary, "", *shown, "", "</details>"]
    return words.say("\n".join([*fold, "", f"*At full size.* {entry.full_size}"]))


@dataclasses.dataclass(frozen=True)
class opened:  # noqa: N801 (called as a function)
    """A chapter's first output: its `lab`, and the style of figures in JupyterLab.

    Its metadata have the provenance of the notebook's results, which the site lists.
    """

    lab: Any

    def __post_init__(self) -> None:
        """Show captions below figures from now on, and skip cells that this lab cannot run.

        With published vectors these are the cells that train, and of a model without relatives
        those that compare it with them.
        """
        notebook = _ROOT / "notebooks" / f"{self.lab.chapter}.ipynb"
        speaking.begin(self.lab)
        running.watch()
        follow(notebook, live=self.lab.parameters.live == "all")
        if self.lab.parameters.vectors is not None or not self.lab.family:
            skip_cells(IPython.get_ipython())

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        p = self.lab.parameters
        shown = (
            "figures and tables: computed here, and the answers to them; what is about recorded "
            "runs names their model"
            if p.live == "all"
            else 'results: recorded runs; "Run it yourself" runs here, and all with live="all"'
        )
        style = files("tasklab.evidence.figures").joinpath("jupyterlab.css").read_text("utf-8")
        text = f"{self.lab!r}\n{shown}"
        marked = f'<pre class="tasklab-opened">{html.escape(text)}</pre>'
        data = {"text/plain": text, "text/html": f"<style>{style}</style>{marked}"}
        return data, {KEY: self.lab.provenance()}


def once_recorded(show: Callable[..., Any], *tables: pd.DataFrame) -> Any:
    """Return `show(*tables)`, or "Not recorded yet" while one of the tables is awaited."""
    if any(map(is_awaited, tables)):
        return words.say(f"*{NOT_YET}*")
    shown = show(*tables)
    return of_records(shown) if hasattr(shown, "to_html") else shown


def awaited(recorded: pd.DataFrame, chapter: str) -> Any:
    """Return a sentence for a chapter without records."""
    if len(recorded):
        return None
    return words.say(f"""
        **Nothing of this chapter is recorded yet.** What would come from records is marked so
        below, and claims are not tested, until `python -m tasklab record {chapter} --all` has run.
    """)


def origin(recorded: Mapping[str, Any], lab: Any) -> Any:
    """Return the provenance of recorded results and of this page, side by side."""
    sides = [_facts(one) for one in (recorded, lab.provenance())]
    return table(pd.concat(sides, axis=1, keys=["recorded", "this page"], sort=False).fillna(""))


def _facts(provenance: Mapping[str, Any]) -> pd.Series:
    """Return versions, machine, configuration and time of results in words."""
    facts: dict[str, str] = {}
    for name, value in provenance.items():
        nested = value if isinstance(value, Mapping) else {"": value}
        facts |= {
            f"{name}: {k}".removesuffix(": ").replace("_", " "): _fact(v)
            for k, v in nested.items()
            if v is not None
        }
    return pd.Series(facts, dtype=object)


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_fact(one)}" for name, one in value.items())
    if isinstance(value, list):
        between = "; " if any(isinstance(one, Mapping) for one in value) else " "
        return between.join(map(_fact, value))
    text = str(value)
    return text[:12] if re.fullmatch("[0-9a-f]{40,}", text) else text  # a checksum's beginning
