"""All verdicts as a list that can be searched and filtered, each leading to its evidence.

One piece of HTML, as the editor is: a plain table without scripts; on a phone, a card a row.
"""

from __future__ import annotations

import html
import uuid
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

import pandas as pd

from tasklab.figures.forest_plot import PAPERS
from tasklab.records.judgement import ABOUT_VERDICTS, Verdict
from tasklab.records.statements import effect_of, evidence_link, verdict_rows

_HEADS = ("outcome", "statement", "effect [95 % interval]", "seeds", "as claimed")


class VerdictList:
    """What a notebook or a page shows.

    Attributes:
        rows: The table behind it, of `records.verdict_rows`.
    """

    def __init__(self, rows: pd.DataFrame, here: str = "") -> None:
        self.rows, self._here = rows, here

    def _repr_html_(self) -> str:
        style, script = (files(__package__).joinpath(f"verdict_list.{k}") for k in ("css", "js"))
        name = f"verdicts-{uuid.uuid4().hex}"
        heads = "".join(f'<th scope="col">{head}</th>' for head in _HEADS)
        several = self.rows["paper"].nunique() > 1  # for one paper a correction says little
        tested = self.rows[self.rows["outcome"] != "not tested"].to_dict("records")
        body = "\n".join(_row(row, self._here, corrected=several) for row in tested)
        waiting = (self.rows["outcome"].eq("not tested") & self.rows["cell"].eq("")).sum()
        note = f" {waiting} more are not tested: their runs are not recorded." if waiting else ""
        return "\n".join(
            [
                f'<div class="tasklab-verdicts" id="{name}">',
                f"<style>{style.read_text('utf-8')}</style>",
                f"<p>{ABOUT_VERDICTS}{note}</p>",
                f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>",
                f"<script>{script.read_text('utf-8').replace('@ID@', name)}</script>",
                "</div>",
            ]
        )


def verdict_list(verdicts: Iterable[Verdict], here: str = "") -> VerdictList:
    """Return all verdicts as a list with filters; what was not tested is counted below it.

    Args:
        verdicts: On the claims of one or several papers.
        here: The chapter that shows it; by default a page beside the folder of chapters.
    """
    return VerdictList(verdict_rows(verdicts), here)


def _row(row: Mapping[str, Any], here: str, *, corrected: bool) -> str:
    link = evidence_link(row["evidence"], here)
    statement = f"{row['statement']}: {row['cell']}" if row["cell"] else row["statement"]
    statement += "" if row["setting"] == "chosen" else f" (at {row['setting']})"
    paper = PAPERS.get(row["paper"], row["paper"])
    held = row["n_cells"] > 1 and row["outcome"] != "holds"
    share = f"<small>{row['cells_holding']} of {row['n_cells']} parts hold</small>" if held else ""
    if corrected and row["corrected"] and row["corrected"] != row["outcome"]:
        share += f"<small>{row['corrected']} if all share 5 %</small>"
    kind = "part" if row["cell"] else "whole"
    beside = row["n_pretrainings"] > 1
    others = f"<small>and {row['n_pretrainings']} pre-trainings</small>" if beside else ""
    tasks = (
        f"{row['tasks_as_claimed']} of {row['n_tasks']} {row['counted']}"
        if row["n_tasks"] > 1
        else "–"
    )
    word = row["outcome"].replace(" ", "-")
    cells = (
        f'<td class="tv-outcome tv-{word}"><b>{row["outcome"]}</b>{share}</td>',
        f'<td><a href="{link}">{html.escape(statement)}</a>'
        f"<small>{html.escape(paper)}</small></td>",
        f'<td data-head="effect">{effect_of(row)}</td>',
        f'<td data-head="seeds">{row["n_seeds"]}{others}</td>',
        f'<td data-head="as claimed">{tasks}</td>',
    )
    return (
        f'<tr class="tv-{kind}" data-outcome="{row["outcome"]}" data-paper="{html.escape(paper)}">'
        f"{''.join(cells)}</tr>"
    )
