"""A run against the paper and the recorded worlds: a table at a chapter's end, and a file."""

from __future__ import annotations

import dataclasses
import html
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import IPython.display

from tasklab.book.captions import KEY
from tasklab.evidence.records.intervals import in_words
from tasklab.evidence.study import sections
from tasklab.evidence.study.sections import Evidence
from tasklab.storage import atomic

FILE = "TASKLAB_SUMMARY"  # in the environment of a kernel: where the file is written
_OUTPUT = "PAPERMILL_OUTPUT_PATH"  # that papermill injects, if asked: --inject-output-path
_HEAD = ("statement", "this model", "outcome", "paper")


@dataclasses.dataclass(frozen=True)
class Summary:
    """Tests of a chapter's run, beside the paper's numbers and those of the recorded worlds."""

    chapter: str
    model: str
    steps: int | None
    rows: Sequence[Mapping[str, Any]]  #: Of `sections.comparison`

    @classmethod
    def of(cls, evidence: Evidence) -> Summary:
        """Return the summary of a page's records, and write it where its notebook is written."""
        rows = sections.comparison(evidence)
        found = cls(evidence.chapter, evidence.name, evidence.steps, rows)
        if place := _place(evidence.chapter):
            found.write(place)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return {**dataclasses.asdict(self), "rows": [dict(one) for one in self.rows]}

    def write(self, path: Path) -> None:
        """Write the summary as JSON."""
        atomic.write(path, json.dumps(self.as_json(), indent=1) + "\n")

    def to_html(self) -> str:
        """Return the table."""
        lead = f"<p><b>{_code(self.model)} against the paper and the recorded worlds</b></p>"
        if not self.rows:
            return f"{lead}<p>This run tests none of the chapter's statements.</p>"
        worlds = list(dict.fromkeys(name for row in self.rows for name in row["worlds"]))
        head = "".join(f'<th scope="col">{one}</th>' for one in (*_HEAD, *map(_code, worlds)))
        body = "".join(f"<tr>{_cells(row, worlds)}</tr>" for row in self.rows)
        note = (
            "<p>Effects are positive in the direction that the paper claims. One seed has no "
            "interval and decides nothing.</p>"
        )
        return (
            f'{lead}<div class="tl-summary"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>{note}"
        )

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        text = "\n".join(
            f"{row['short']}: {_effect(row['this'], row['unit'])}" for row in self.rows
        )
        data = {"text/html": self.to_html(), "text/plain": text or "no statement is tested"}
        return data, {KEY: {"summary": self.as_json()}}


def of_notebook(notebook: Mapping[str, Any]) -> Summary | None:
    """Return the summary in the outputs of an executed chapter; `None` without one."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            told = output.get("metadata", {}).get(KEY, {})
            if "summary" in told:
                return Summary(**told["summary"])
    return None


def page(summaries: Iterable[Summary]) -> str:
    """Return the tables of several chapters as a page of HTML that stands by itself."""
    style = (
        "body{font-family:sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse}th,td{padding:.3em .6em;border-bottom:1px solid #ccc;"
        "text-align:left;vertical-align:top}"
    )
    found = list(summaries)
    parts = "".join(f"<h2>{html.escape(one.chapter)}</h2>{one.to_html()}" for one in found)
    title = f"{found[0].model if found else 'A model'} against the papers"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{style}</style><body><h1>{html.escape(title)}</h1>{parts}</body></html>\n"
    )


def _place(chapter: str) -> Path | None:
    """Return where a summary is written: beside the notebook's output, if that is known."""
    if FILE in os.environ:
        return Path(os.environ[FILE]) if os.environ[FILE] else None
    shell = IPython.get_ipython()
    space = {} if shell is None else shell.user_ns
    if _OUTPUT in space:
        return Path(space[_OUTPUT]).absolute().with_name(f"{chapter}.summary.json")
    cells = (one for one in space.get("In", ()) if isinstance(one, str))
    ran = any(one.startswith("# Parameters\n") for one in cells)  # by papermill
    return Path.cwd() / f"{chapter}.summary.json" if ran else None


def _cells(row: Mapping[str, Any], worlds: Sequence[str]) -> str:
    printed = "<br>".join(f"{value:+.1f} {_code(model)}" for model, value in row["paper"].items())
    unit = row["unit"]
    there = [row["worlds"].get(one) for one in worlds]
    cells = [
        html.escape(row["short"]), _effect(row["this"], unit), row["this"]["outcome"],
        printed.replace("-", "−") or "–",
        *("–" if one is None else f"{_effect(one, unit)}<br>{one['outcome']}" for one in there),
    ]  # fmt: skip
    return "".join(f"<td>{one}</td>" for one in cells)


def _effect(of: Mapping[str, Any], unit: str) -> str:
    effect, low, high = (_number(of[name]) for name in ("effect", "low", "high"))
    told = in_words(effect, low, high, unit=unit, over=of["over"])
    return f"{told}, one seed" if of.get("seeds") == 1 else told


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _code(name: str) -> str:
    return f"<code>{html.escape(name)}</code>"
