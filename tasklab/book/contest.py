"""One self-contained HTML page of a comparison of merges: no script, no request to anywhere."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.ticker import MaxNLocator

from tasklab.analyses.merging import METHODS
from tasklab.experiments.contest import Contest, Entry
from tasklab.progress import shared
from tasklab.study import results

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --soft: #6b6b70; --line: #d9d9de; --paper: #fff;
  --good: 0, 130, 90; --bad: 200, 60, 20; --mark: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf0; --soft: #a0a0a8; --line: #3a3a40;
  --paper: #161618; --good: 60, 190, 140; --bad: 240, 120, 80; --mark: #56b4e9; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
.lead { font-size: 1.15rem } .soft { color: var(--soft) } .wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--line) }
td { white-space: nowrap }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
  background: var(--paper) }
@media (max-width: 40rem) { .wide td:first-child { white-space: normal; min-width: 7rem;
  max-width: 8rem; overflow-wrap: anywhere } }
li, .facts td { overflow-wrap: anywhere }
.facts td:last-child { text-align: left; white-space: normal }
thead th { color: var(--soft); font-weight: 600 }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif }
svg .soft { fill: var(--soft) }
"""
_EXPECTED = ("merging", "mini")  # the recorded chapter and model that a row is compared with


def page(contest: Contest, about: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        contest: What was found.
        about: `model`, `suite`, `vectors` (rows of vector, task, method, norm, notes), `images`
            (task -> images by split), `written` (what was written beside the page), `provenance`.
    """
    best, start, tasks = contest.best, contest.start, contest.tasks
    mean, half = best.mean
    gain, gain_half = best.gain(start)
    better = sum(best.accuracy(task) > start.accuracy(task) for task in tasks)
    notes = shared({one["task"]: one["notes"] for one in about["vectors"]})
    body = [
        f"<h1>{_text(_headline(contest))}</h1>",
        f'<p class="soft">{_text(about["model"])}, {len(tasks)} tasks, {_count(contest)}. '
        f"Options and coefficients, and the merge itself, were chosen {_rule(contest)}; "
        "all accuracies below are on test images.</p>",
        f'<p class="lead">The merged model scores <b>{mean:.1f} %</b> on average '
        f"(95 % interval {mean - half:.1f} to {mean + half:.1f}), {gain:+.1f} points against the "
        f"pre-trained model ({gain - gain_half:+.1f} to {gain + gain_half:+.1f}). "
        f"{better} of {len(tasks)} tasks gain.</p>",
        *_warnings(contest),
        "<h2>All merges</h2>",
        _forest(contest),
        _table(*_merges(contest)),
        '<p class="soft">Intervals draw test images and keep the tasks. "Expected" is what the '
        "merge gained over the plain sum in the book's recorded benchmark (drawn tasks, model "
        "mini): compare orders, not values.</p>",
        "<h2>Gain of each task, in points against the pre-trained model</h2>",
        _table(*_gains(contest), shaded=True),
        '<p class="soft">"Own vector" is the model with the task\'s own vector alone.</p>',
        "<h2>The vectors</h2>",
        _table(*_vectors(contest, about["vectors"])),
        f"<ul>{''.join(f'<li>{_text(one)}</li>' for one in notes)}</ul>" if notes else "",
        "<h2>Interference of pairs</h2>",
        _table(*_pairs(contest)),
        f'<p class="soft">Above the diagonal: ξ, the share of predictions that the other vector '
        "changes, mean over both tasks, and in brackets the accuracy that this costs, in points; "
        f"both vectors at the coefficient {contest.alpha:.2f}, which was chosen for the plain "
        "sum. Below the diagonal: cosines of the vectors.</p>",
        "<h2>How it was measured</h2>",
        _facts(contest, about),
    ]
    title = f"{_count(contest)} of {len(tasks)} task vectors"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def rows(contest: Contest) -> list[dict[str, Any]]:
    """Return a row a task for the pre-trained model, each vector alone and each merge."""
    entries = [contest.start, *contest.alone.values(), *contest.merges]
    return [
        {
            "model": one.name,
            "task": task,
            "accuracy": one.accuracy(task),
            "images": len(one.answers[task]),
            "gain": one.accuracy(task) - contest.start.accuracy(task),
            "alpha": one.alpha,
            "option": one.option,
            "validation": one.validation,
            "loss": one.loss,
        }
        for one in entries
        for task in one.answers
    ]


def _headline(contest: Contest) -> str:
    best, start = contest.best, contest.start
    if (best.validation or 0.0) < (start.validation or 0.0):
        return f"No merge is better than the pre-trained model; the best is {best.title}"
    return f"The merge to take: {best.title}"


def _count(contest: Contest) -> str:
    return f"{len(contest.merges)} merge{'s'[: len(contest.merges) != 1]}"


def _rule(contest: Contest) -> str:
    if contest.labels:
        return "on validation images"
    return (
        "without labels, by E(τ) / E(0): the share of each task's change of features that a merge "
        "loses, to first order, on validation images"
    )


def _text(words: object) -> str:
    return html.escape(str(words))


def _table(head: Sequence[str], lines: Iterable[Sequence[object]], *, shaded: bool = False) -> str:
    """Return an HTML table; numbers of a shaded one are gains, coloured by sign and size."""
    shown = []
    for line in lines:
        cells = [f"<td>{_text(line[0])}</td>"]
        for value in line[1:]:
            colour = ""
            if shaded and isinstance(value, float):
                strength = min(1.0, abs(value) / 30) * 0.45
                side = "good" if value > 0 else "bad"
                colour = f' style="background: rgba(var(--{side}), {strength:.2f})"'
            text = f"{value:+.1f}" if shaded and isinstance(value, float) else value
            cells.append(f"<td{colour}>{_text('' if text is None else text)}</td>")
        shown.append(f"<tr>{''.join(cells)}</tr>")
    heads = "".join(f"<th>{_text(one)}</th>" for one in head)
    body = "\n".join(shown)
    return (
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n'
        "</tbody></table></div>"
    )


def _merges(contest: Contest) -> tuple[list[str], list[list[object]]]:
    expected, plain = expected_gains(len(contest.tasks)), _plain_sum(contest)
    lines: list[list[object]] = []
    for one in contest.merges:
        (mean, half), (gain, around) = one.mean, one.gain(contest.start)
        over = "" if plain is None or one is plain else f"{mean - plain.mean[0]:+.1f}"
        book = expected.get(one.name)
        lines.append([
            one.title, f"{mean:.1f} ± {half:.1f}", f"{gain:+.1f} ± {around:.1f}", over,
            "" if book is None or not over else f"{book:+.1f}", f"{one.alpha:.3g}", _option(one),
            _score(one), f"{one.norm:.3g}", f"{one.seconds:.0f}",
        ])  # fmt: skip
    mean, half = contest.start.mean
    first = [contest.start.title, f"{mean:.1f} ± {half:.1f}", *[""] * 5]
    lines.append([*first, _score(contest.start) if contest.labels else "1", "", ""])
    head = ["merge", "test, %", "gain, points", "over the sum", "expected", "coefficient", "option"]
    return [*head, "validation, %" if contest.labels else "E(τ) / E(0)", "norm", "seconds"], lines


def _score(one: Entry) -> str:
    return f"{one.validation:.1f}" if one.validation is not None else f"{one.loss:.3f}"


def _plain_sum(contest: Contest) -> Entry | None:
    return next((one for one in contest.merges if one.name == "arithmetic"), None)


def _option(one: Entry) -> str:
    """Return the chosen value of a merge's option, and those that were tried."""
    if one.option is None:
        return ""
    rule = METHODS[one.name]
    return f"{rule.searched} {one.option:g} of {', '.join(f'{x:g}' for x in rule.values)}"


def expected_gains(count: int) -> dict[str, float]:
    """Return the recorded gain of each merge over the plain sum, in points on test images."""
    chapter, model = _EXPECTED
    tables = [results.recorded(chapter, part)[0] for part in ("editing", "fewer")]
    every = pd.concat([one for one in tables if not one.empty] or tables)
    if every.empty:
        return {}
    asked = {"experiment": "merging", "model": model, "metric": "absolute", "method": "nonlinear"}
    for column, value in asked.items():
        every = every[every[column] == value]
    nearest = min(set(every["n_tasks"]), key=lambda n: abs(math.log(n / count)))
    means = every[every["n_tasks"] == nearest].groupby("merge")["value"].mean()
    return (means - means["arithmetic"]).to_dict()


def _gains(contest: Contest) -> tuple[list[str], list[list[object]]]:
    def row(one: Entry) -> list[object]:
        gains = [one.accuracy(task) - contest.start.accuracy(task) for task in contest.tasks]
        return [one.title, *gains, sum(gains) / len(gains)]

    own = [one.accuracy(task) - contest.start.accuracy(task) for task, one in contest.alone.items()]
    lines = [["own vector", *own, sum(own) / len(own)], *map(row, contest.merges)]
    return ["", *contest.tasks, "mean"], lines


def _vectors(
    contest: Contest, vectors: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[list[object]]]:
    lines: list[list[object]] = []
    for one in vectors:
        task = one["task"]
        before, after = contest.start.accuracy(task), contest.alone[task].accuracy(task)
        shown = (f"{one['norm']:.3g}", f"{before:.1f}", f"{after:.1f}")
        lines.append([one["vector"], task, one["method"], *shown])
    return ["vector", "task", "method", "norm", "pre-trained, %", "with it, %"], lines


def _warnings(contest: Contest) -> list[str]:
    found = []
    if useless := contest.useless():
        found.append(
            f"The vectors of {', '.join(useless)} do not surely raise the accuracy on the tasks "
            "that they name: check which checkpoint and which images belong together."
        )
    gain, half = contest.best.gain(contest.start)
    if gain + half < 0:
        found.append("Every merge is worse than the pre-trained model: do not use one.")
    apart = {one.title: one.gain(contest.best) for one in contest.merges[1:]}
    close = [title for title, (gain, half) in apart.items() if abs(gain) <= half]
    if close:
        found.append(f"Not distinguishable from it on these images: {', '.join(close)}.")
    return [f"<p>{_text(one)}</p>" for one in found]


def _pairs(contest: Contest) -> tuple[list[str], list[list[object]]]:
    """Return a matrix of tasks: xi above the diagonal, cosines below it."""
    of_pair = {frozenset(pair.tasks): pair for pair in contest.pairs}
    lines: list[list[object]] = []
    for i, one in enumerate(contest.tasks):
        cells: list[object] = [one]
        for j, other in enumerate(contest.tasks):
            pair = of_pair.get(frozenset((one, other)))
            upper = pair and f"{pair.xi:.1f} % ({pair.lost:+.1f})"
            cells.append("" if pair is None or i == j else upper if i < j else f"{pair.cosine:.3f}")
        lines.append(cells)
    return ["", *contest.tasks], lines


def _facts(contest: Contest, about: Mapping[str, Any]) -> str:
    notes, machine = about["provenance"], about["provenance"]["machine"]
    images = shared(
        {
            task: [", ".join(f"{n} {k}" for k, n in of.items())]
            for task, of in about["images"].items()
        }
    )
    looks = sorted({one.looks for one in contest.merges})
    facts = [
        ("model", f"{about['model']}, suite {about['suite']}, weights {notes['weights'][:12]}"),
        (
            "search",
            f"{' to '.join(map(str, looks[:: max(1, len(looks) - 1)]))} evaluations on validation "
            "images for each merge"
            if contest.labels
            else "E in closed form, no label",
        ),
        ("images of the tasks", "; ".join(images)),
        ("written", ", ".join(about["written"]) or "this page"),
        ("machine", machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores"),
        (
            "versions",
            f"tasklab {notes['tasklab']}, torch {notes['torch']}, Python {notes['python']}",
        ),
        ("when", f"{notes['utc']} UTC, {notes['seconds']:.0f} s"),
        ("memory", f"{about['memory']} at its peak" if about.get("memory") else "not measured"),
    ]
    return f'<div class="facts">{_table(["", ""], facts)}</div>'


def _forest(contest: Contest) -> str:
    """Return mean accuracies with their intervals as an SVG, the chosen merge first."""
    entries = [*contest.merges, contest.start]
    ends = [(mean - half, mean + half) for mean, half in (one.mean for one in entries)]
    own = sum(one.accuracy(task) for task, one in contest.alone.items()) / len(contest.alone)
    low, high = min(a for a, _ in ends), max(own, *(b for _, b in ends))
    low, high = low - 0.05 * (high - low) - 0.1, high + 0.05 * (high - low) + 0.1
    left = 20 + 7 * max(len(one.title) for one in entries)
    width, step, top = 240, 22, 40

    def x(value: float) -> float:
        return left + width * (value - low) / (high - low)

    parts = []
    height = top + step * len(entries) + 30
    marked = ((contest.start.mean[0], "pre-trained", 24), (own, "own vector alone", 8))
    for value, label, above in marked:
        parts.append(
            f'<line x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{top - above + 4}" '
            f'y2="{height - 26}" stroke="var(--soft)" stroke-dasharray="3 3"/>'
            f'<text class="soft" x="{x(value):.1f}" y="{top - above}" text-anchor="middle">'
            f"{label}</text>"
        )
    for number, (one, (a, b)) in enumerate(zip(entries, ends, strict=True)):
        y = top + step * (number + 0.5)
        parts.append(
            f'<text x="{left - 10}" y="{y + 4:.1f}" text-anchor="end">{_text(one.title)}</text>'
            f'<line x1="{x(a):.1f}" x2="{x(b):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="var(--mark)" stroke-width="2"/>'
            f'<circle cx="{x(one.mean[0]):.1f}" cy="{y:.1f}" r="4.5" fill="var(--mark)"/>'
        )
    for value in (v for v in MaxNLocator(6).tick_values(low, high) if low <= v <= high):
        parts.append(
            f'<text class="soft" x="{x(value):.1f}" y="{height - 8}" text-anchor="middle">'
            f"{value:g}</text>"
        )
    told = "; ".join(f"{one.title} {one.mean[0]:.1f} %" for one in entries)
    return (
        f'<div class="wide"><svg viewBox="0 0 {left + width + 60} {height}" role="img" '
        f'aria-label="Mean test accuracy: {_text(told)}" style="width: 100%; max-width: 32rem">'
        f"{''.join(parts)}</svg></div>"
        '<p class="soft">Mean test accuracy in % with 95 % intervals, in the order of '
        f"{'validation accuracy' if contest.labels else 'E(τ) / E(0)'}.</p>"
    )
