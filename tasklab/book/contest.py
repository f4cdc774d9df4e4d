"""One self-contained HTML page of a comparison of merges: no script, no request to anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.ticker import MaxNLocator

from tasklab.analyses.merging import registry
from tasklab.analyses.shares import Estimate
from tasklab.bench.contest import Contest, Entry
from tasklab.evidence.records.table import where
from tasklab.evidence.study import results
from tasklab.progress import shared
from tasklab.storage.templates import filled

_EXPECTED = ("merging", "mini")  # the recorded chapter and model that a row is compared with


def page(contest: Contest, about: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        about: `model`, `suite`, `vectors` (rows of vector, task, method, norm, notes), `images`
            (task -> images by split), `written` (what was written beside the page), `provenance`.
    """
    best, start = contest.best, contest.start
    return filled(
        "book/contest.html",
        **{"model": about["model"], "tasks": contest.tasks, "labels": contest.labels},
        **{"headline": _headline(contest), "warnings": _warnings(contest), "alpha": contest.alpha},
        **{"mean": best.mean, "gain": best.gain(start)},
        count=f"{len(contest.merges)} merge{'s'[: len(contest.merges) != 1]}",
        better=sum(best.accuracy(task) > start.accuracy(task) for task in contest.tasks),
        forest=_forest(contest),
        merges=_merges(contest),
        gains=_gains(contest),
        vectors=_vectors(contest, about["vectors"]),
        notes=shared({one["task"]: one["notes"] for one in about["vectors"]}),
        pairs=_pairs(contest),
        facts=_facts(contest, about),
    )


def rows(contest: Contest) -> list[dict[str, Any]]:
    """Return one row per task for the pre-trained model, each vector alone and each merge."""
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
    if contest.gains:
        return f"The merge to take: {contest.best.title}"
    return (
        "Keep the single models: no merge is better than the pre-trained model "
        f"(the best: {contest.best.title})"
    )


def _merges(contest: Contest) -> tuple[list[str], list[list[object]]]:
    expected = expected_gains(len(contest.tasks))
    plain = next((one for one in contest.merges if one.name == "arithmetic"), None)
    lines: list[list[object]] = []
    for one in contest.merges:
        mean, gain = one.mean, one.gain(contest.start)
        over = "" if plain is None or one is plain else f"{mean.value - plain.mean.value:+.1f}"
        book = expected.get(one.name)
        lines.append([
            one.title, _shown(mean), _shown(gain, "+"), over,
            "" if book is None or not over else f"{book:+.1f}", f"{one.alpha:.3g}", _option(one),
            _score(one), f"{one.norm:.3g}", f"{one.seconds:.0f}",
        ])  # fmt: skip
    first = [contest.start.title, _shown(contest.start.mean), *[""] * 5]
    lines.append([*first, _score(contest.start) if contest.labels else "1", "", ""])
    head = ["merge", "test, %", "gain, points", "over the sum", "expected", "coefficient", "option"]
    return [*head, "validation, %" if contest.labels else "E(τ) / E(0)", "norm", "seconds"], lines


def _shown(one: Estimate, sign: str = "") -> str:
    value, low, high = (f"{x:{sign}.1f}".replace("-", "−") for x in one)
    return f"{value} ({low} to {high})"


def _score(one: Entry) -> str:
    return f"{one.validation:.1f}" if one.validation is not None else f"{one.loss:.3f}"


def _option(one: Entry) -> str:
    if one.option is None:
        return ""
    rule = registry.method(one.name)
    return f"{rule.searched} {one.option:g} of {', '.join(f'{x:g}' for x in rule.values)}"


def expected_gains(count: int) -> dict[str, float]:
    """Return the recorded gain of each merge over the plain sum, in points on test images."""
    chapter, model = _EXPECTED
    tables = [results.recorded(chapter, part)[0] for part in ("editing", "fewer")]
    every = pd.concat([one for one in tables if not one.empty] or tables)
    if every.empty:
        return {}
    asked = {"experiment": "merging", "model": model, "metric": "absolute", "method": "nonlinear"}
    every = where(every, **asked)
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
    if contest.best.gain(contest.start).high < 0:
        found.append("Every merge is worse than the pre-trained model: do not use one.")
    if alike := [one.title for one in contest.alike if one is not contest.best]:
        found.append(
            f"Validation images cannot tell {', '.join(alike)} from it; of these it costs least."
        )
    if contest.single is not None and contest.over_single is not None:
        single = contest.single
        found.append(
            f"It beats the best single model on all tasks, that of {single.title} "
            f"({single.mean.value:.1f} %), with a probability of {100 * contest.over_single:.0f} %."
        )
    for task in contest.best.others:
        lost = _shown(contest.best.forgot(contest.start, task), "+")
        found.append(f"{task}, a task without a vector, changes by {lost} points.")
    rest = [one for one in contest.merges if one not in contest.alike]
    if close := [one.title for one in rest if not one.gain(contest.best).sure]:
        found.append(f"Test images do not surely tell them from it: {', '.join(close)}.")
    return found


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


def _facts(contest: Contest, about: Mapping[str, Any]) -> list[tuple[str, str]]:
    notes, machine = about["provenance"], about["provenance"]["machine"]
    images = shared(
        {
            task: [", ".join(f"{n} {k}" for k, n in of.items())]
            for task, of in about["images"].items()
        }
    )
    looks = sorted({one.looks for one in contest.merges})
    return [
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


def _forest(contest: Contest) -> dict[str, Any]:
    """Return places of mean accuracies with their intervals, the chosen merge first."""
    entries = [*contest.merges, contest.start]
    means = [one.mean for one in entries]
    own = sum(one.accuracy(task) for task, one in contest.alone.items()) / len(contest.alone)
    low, high = min(one.low for one in means), max(own, *(one.high for one in means))
    low, high = low - 0.05 * (high - low) - 0.1, high + 0.05 * (high - low) + 0.1
    left = 20 + 7 * max(len(one.title) for one in entries)
    width, step, top = 240, 22, 40

    def x(value: float) -> str:
        return f"{left + width * (value - low) / (high - low):.1f}"

    rows = [
        {"title": one.title, "mean": mean.value, "x": x(mean.value),
         "ends": [x(mean.low), x(mean.high)], "y": top + step * (number + 0.5)}
        for number, (one, mean) in enumerate(zip(entries, means, strict=True))
    ]  # fmt: skip
    ticks = (value for value in MaxNLocator(6).tick_values(low, high) if low <= value <= high)
    marked = ((means[-1].value, "pre-trained", 24), (own, "own vector alone", 8))
    return {
        **{"left": left, "width": left + width + 60, "height": top + step * len(entries) + 30},
        "rows": rows,
        "ticks": [(x(value), f"{value:g}") for value in ticks],
        "marked": [(x(value), label, top - above) for value, label, above in marked],
    }
