"""All verdicts, each a link to its evidence: a forest plot and a list with filters.

Both are one piece of HTML; the list is a plain table without scripts, on a phone one card per row.
"""

from __future__ import annotations

import html
import uuid
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tasklab.evidence.chapters import CHAPTERS
from tasklab.evidence.figures.narrow import for_site
from tasklab.evidence.figures.pictures import PIXELS, for_notebook, put_legend
from tasklab.evidence.figures.rows import require_rows
from tasklab.evidence.figures.style import book_figure
from tasklab.evidence.records.judgement import ABOUT_VERDICTS, DECIDED, Verdict
from tasklab.evidence.records.statements import (
    at,
    effect_of,
    evidence_link,
    how_many,
    is_open_nonetheless,
    on_site,
    plain,
    seen,
    settled,
    verdict_rows,
)
from tasklab.storage.templates import filled

# Outcome: colour, marker. Colours are those of the palette that are told apart in grey as well.
LOOKS = {
    "holds": ("#0072B2", "o"),
    "undecided": ("#8C8C8C", "D"),
    "does not hold": ("#D55E00", "X"),
    "outside the band": ("#B8860B", "s"),
    "no gain": ("#8C8C8C", "v"),
}
_LIGHTER = {"holds": "#9CCBEA", "does not hold": "#F5BE8E"}
PAPERS = {name: one.label for name, one in CHAPTERS.items()}
_PICTURE = '<img alt="{}" src="data:image/png;base64,{}" style="display: block; width: 100%">'
FARTHEST = 6.0  # half-widths; a mark beyond is an arrow there
_SIGNS = {"✓": "survives the correction for many tests", "†": "open for a reason in the list"}
_WIDE = 7.0  # inches: of a page without a table of contents


class _Forest(Figure):
    """A figure whose lines are links: panel, line, address and description of each.

    Styles are in the tags: JupyterLab drops others if untrusted.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.links: list[tuple[Axes, int, str, str]] = []

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        bundle = for_site(self) if on_site() else for_notebook(self)[0]
        shown = _PICTURE.format(html.escape(bundle["text/plain"]), bundle["image/png"])
        style = files("tasklab.evidence.figures").joinpath("forest.css").read_text("utf-8")
        width = PIXELS * self.get_figwidth()
        rows = "\n".join(self._row(*link) for link in self.links)
        text = (
            f'<div class="tasklab-forest"><style>{style}</style>\n'
            f'<div style="position: relative; max-width: {width:.0f}px">\n{shown}\n{rows}\n'
            "</div></div>"
        )
        return {**bundle, "text/html": text}

    def _row(self, axes: Axes, line: int, link: str, said: str) -> str:
        ends = axes.transData.transform([(0, line - 0.5), (0, line + 0.5)])[:, 1]
        top, bottom = 100 * (1 - ends / self.bbox.height)
        place = f"position: absolute; left: 0; width: 100%; border-radius: 0.2rem; top: {top:.3f}%"
        place += f"; height: {bottom - top:.3f}%"
        said = html.escape(said)
        return f'<a href="{link}" style="{place}" title="{said}" aria-label="{said}"></a>'


@book_figure
def forest(verdicts: Iterable[Verdict], here: str = "") -> Figure:
    """Plot every claim's effect in half-widths of its 95 % interval.

    Beyond 1 a claim holds, below −1 it does not. Of a claim with several parts the weakest is
    drawn; below a claim is its result where both sides are made equal. Open marks at 0 have no
    interval. Claims that were not tested are left out.

    Args:
        verdicts: On claims of one or several papers.
        here: The chapter that shows it; by default a page beside the folder of chapters.
    """
    rows = verdict_rows(verdicts, cells=False)
    chosen = rows["setting"] == "chosen"
    kept = rows["survives"].str.contains("all").map({True: " ✓", False: ""})
    dagger = ["" if not is_open_nonetheless(row) else " †" for row in rows.to_dict("records")]
    rows = rows.assign(label=rows["short"].where(chosen, rows["setting"].map(at)) + kept + dagger)
    place = {entry: number for number, entry in enumerate(rows["id"].unique())}
    rows = rows.sort_values("id", key=lambda ids: ids.map(place), kind="stable")
    rows = rows[rows["outcome"] != "not tested"]
    require_rows(rows, "no statement was tested")
    groups = [(PAPERS.get(name, name), part) for name, part in rows.groupby("paper", sort=False)]
    label = "effect divided by its margin of error"
    figure, panels = in_half_widths(groups, label, _WIDE, 0.19, FigureClass=_Forest)
    for (_, part), axes in zip(groups, panels, strict=True):
        _panel(axes, part)
        for line, row in enumerate(part.to_dict("records")):
            which = f"{row['short']} {at(row['setting'])}".rstrip()
            said = f"{which}: {plain(row['outcome'])}, {effect_of(row)}"
            figure.links.append((axes, line, evidence_link(row["evidence"], here), said))
    for sign, meaning in _SIGNS.items():
        if any(part["label"].str.endswith(sign).any() for _, part in groups):
            figure.supxlabel(f"{figure.get_supxlabel()}\n{sign} {meaning}", fontsize=9)
    _legend(figure, rows)
    return figure


def in_half_widths(
    groups: Sequence[tuple[str, pd.DataFrame]], label: str, width: float, line: float, **more: Any
) -> tuple[Any, list[Axes]]:
    """Return a figure with one panel per group, for effects in half-widths of their intervals.

    Args:
        groups: Title and rows of each panel; the column `label` names the rows.
        label: Title of the horizontal axis.
        width: Inches of the figure.
        line: Inches of one row.
        more: Keywords of `matplotlib.pyplot.subplots`.

    Returns:
        The figure and its panels from the top.
    """
    heights = [len(part) + (1.2 if title else 0.4) for title, part in groups]
    figure, drawn = plt.subplots(
        len(groups), 1, figsize=(width, line * sum(heights) + 0.9), sharex=True, squeeze=False,
        height_ratios=heights, layout="constrained", **more,
    )  # fmt: skip
    panels = list(drawn[:, 0])
    for (title, part), axes in zip(groups, panels, strict=True):
        axes.axvspan(-1, 1, color="#E6E6E6", zorder=0)
        axes.axvline(0, color="#404040", linewidth=0.8, zorder=1)
        axes.set_title(title, loc="left", fontweight="bold", fontsize=10)
        axes.set_yticks(range(len(part)), part["label"], fontsize=8.5)
        axes.set_ylim(len(part) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.spines["left"].set_visible(False)
    panels[-1].set_xlim(-FARTHEST - 0.5, FARTHEST + 0.5)
    sides = "← against the claim        for the claim →"
    figure.supxlabel(f"{label}\n{sides}", fontsize=9)
    return figure, panels


def _look(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return an outcome and, where only these tasks decide it, the outcome on them."""
    lighter = row["outcome"] == "undecided" and row["here"] in _LIGHTER
    return row["outcome"], row["here"] if lighter else ""


def _mark(outcome: str, here: str) -> dict[str, Any]:
    colour, marker = LOOKS[here or outcome]
    face = _LIGHTER[here] if here else colour
    return {"color": colour, "marker": marker, "mfc": face, "ms": 5.5 if here else 5, "ls": ""}


def _legend(figure: Figure, rows: pd.DataFrame) -> None:
    found = {_look(row) for row in rows.to_dict("records")}
    told = {(outcome, ""): outcome for outcome in LOOKS if outcome in {one for one, _ in found}}
    lighter = next((look for look in sorted(found, reverse=True) if look[1]), None)
    if lighter:
        told[lighter] = "light: on these tasks alone"
    handles = [
        (Line2D([], [], color=LOOKS[look[0]][0], lw=1.2), Line2D([], [], **_mark(*look)))
        for look in told
    ]
    words = list(map(plain, told.values()))
    put_legend(figure, handles, words, _WIDE)


def strengths_of(rows: pd.DataFrame, side: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Return effect / half-width (0 without an interval), and a mask of known intervals."""
    half = (rows[f"high{side}"] - rows[f"low{side}"]).to_numpy(float) / 2
    known = np.isfinite(half) & (half > 0)  # what does not vary has none to measure by
    return np.where(known, rows[f"strength{side}"].to_numpy(float), 0.0), known


def _panel(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw one line per row, with its label left of the panel."""
    strengths = zip(*strengths_of(rows), rows.to_dict("records"), strict=True)
    for y, (place, sure, row) in enumerate(strengths):
        colour, _ = LOOKS[row["outcome"]]
        if not sure:
            axes.plot(place, y, "o", markersize=5, markerfacecolor="white", color=colour, zorder=3)
        elif abs(place) > FARTHEST:
            end, arrow = np.sign(place) * FARTHEST, ">" if place > 0 else "<"
            axes.plot([np.sign(place), end], [y, y], color=colour, linewidth=1.2, zorder=2)
            axes.plot(end, y, arrow, markersize=6, color=colour, zorder=3)
        else:
            axes.plot([place - 1, place + 1], [y, y], color=colour, linewidth=1.2, zorder=2)
            axes.plot(place, y, zorder=3, **_mark(*_look(row)))
        place_of = {"transform": axes.get_yaxis_transform(), "va": "center"}
        effect = effect_of({**row, "band": False}, scope=False)  # the list has the limit
        axes.text(1.02, y, effect, color="#404040", fontsize=7.5, **place_of)
    for label, matched in zip(axes.get_yticklabels(), rows["setting"] != "chosen", strict=True):
        label.set_style("italic" if matched else "normal")


def verdict_list(
    verdicts: Iterable[Verdict],
    here: str = "",
    *,
    worlds: Mapping[str, Iterable[Verdict]] | None = None,
    folded: bool = False,
) -> Any:
    """Return all verdicts as a list with filters, each world's beside one another.

    Args:
        verdicts: Of the first world.
        here: The chapter that shows the list.
        worlds: Verdicts on the same claims by world; the first one's are `verdicts`.
        folded: Whether each paper's statements are a closed group. Other settings of a statement
            are shown with its parts then, and headlines have their anchors in another list.
    """
    from IPython.display import HTML  # of notebooks and pages alone

    style, script = (
        files(__package__).joinpath(f"verdict_list.{kind}").read_text("utf-8")
        for kind in ("css", "js")
    )
    first, *others = worlds or [""]
    table, name = verdict_rows(verdicts), f"verdicts-{uuid.uuid4().hex}"
    tested = table["outcome"] != "not tested"
    rows = _beside(table[tested], [verdict_rows((worlds or {})[one]) for one in others])
    grouped = {paper: [row for row in rows if row["paper"] == paper] for paper in PAPERS}
    told = {
        paper: [settled(row) for row in part if row["setting"] == "chosen" and not row["cell"]]
        for paper, part in grouped.items()
    }
    text = filled(
        "evidence/figures/verdict_list.html",
        **{"name": name, "style": style, "script": script.replace("@ID@", name)},
        **{"about": ABOUT_VERDICTS, "papers": PAPERS, "here": here},
        **{"plain": plain, "link": evidence_link, "effect": _effect, "at": at},
        **{"first": first, "worlds": others, "decided": DECIDED, "counted": _counted},
        rows=rows,
        groups=[
            (
                PAPERS[paper],
                f"{len(told[paper])} statements, {how_many(told[paper])} on these tasks",
                part,
            )
            for paper, part in grouped.items()
            if folded and part
        ],
        waiting=(~tested & table["cell"].eq("")).sum(),
    )
    return HTML(text)


def _beside(table: pd.DataFrame, others: Sequence[pd.DataFrame]) -> list[dict[str, Any]]:
    """Return the rows of a table, each with the rows of other worlds on the same."""
    keys = ["id", "setting", "cell"]
    there = [
        {tuple(row[key] for key in keys): row for row in one.to_dict("records")} for one in others
    ]
    rows = table.to_dict("records")
    for row in rows:
        found = [one.get(tuple(row[key] for key in keys)) for one in there]
        row["there"] = [one if one and one["outcome"] != "not tested" else None for one in found]
        kinds = {settled(one) for one in (row, *filter(None, row["there"]))}
        row["differ"] = len(kinds) > 1
    return rows


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _effect(row: Mapping[str, Any], side: str = "") -> str:
    """Return a row's effect, or that of another side, whose unit is the first one's."""
    return effect_of(seen(row, side) if side else row)
