"""One self-contained HTML page of a rule that was judged: no script, no request to anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasklab.analyses.merging.registry import Method
from tasklab.analyses.merging.registry import method as rule_of
from tasklab.bench.merges import LOSS, SPAN
from tasklab.evidence.study.judging import Judgement
from tasklab.storage.templates import filled

_MINIMA = {SPAN: "least E on the span", LOSS: "least loss on the span"}


def page(found: Sequence[Judgement], rule: Method) -> str:
    """Return the page of a rule's judgements, one for each world."""
    return filled("book/judging.html", rule=rule, worlds=[_world(one) for one in found])


def _world(one: Judgement) -> dict[str, Any]:
    gains = [
        {"over": rule_of(other).title, "target": target, "effect": gain.effect}
        | {"low": gain.low, "high": gain.high}
        for other, of in one.gains.items()
        for target, gain in of.items()
    ]
    places = [
        {"title": _title(name), "mean": mean, "own": name == one.rule}
        for name, mean in one.places.items()
    ]
    about = {"name": one.world, "mean": one.mean, "place": one.place, "of": len(one.places)}
    counts = {"seeds": one.rows["seed"].nunique(), "sets": one.rows["subset"].nunique()}
    return {**about, **counts, "gains": gains, "places": places}


def _title(name: object) -> str:
    return _MINIMA.get(str(name)) or rule_of(str(name)).title
