"""The command `tasklab judge`: a merge rule of one's own on the recorded worlds."""

from __future__ import annotations

import json as writer
import math
from pathlib import Path
from typing import Any

import tyro

from tasklab import book
from tasklab.analyses.merging import registry
from tasklab.cli import idle, spreadsheet
from tasklab.evidence import study
from tasklab.exchange import places
from tasklab.isolation import isolated
from tasklab.progress import begin, columns, tell

_OF_SETS = "icons_s"
_PAGE = places.Format(".html", b"judged on recorded worlds</title>")
_CSV = places.Format(".csv", b"world,merge,seed,")


@isolated
def judge(
    rule: tyro.conf.Positional[str],
    *,
    world: tuple[str, ...] = (),
    seeds: int | str = 3,
    sets: int | str | None = None,
    store_root: Path | str | None = None,
    out: Path | str = "judged.html",
    csv: Path | str | None = None,
    json: bool = False,
) -> None:
    """Judge a merge rule of your own on the recorded worlds, beside the recorded merges.

    Args:
        rule: FILE.py or FILE.py:FUNCTION, by default its `merge`: from task vectors by task, and
            `features` if it looks at images, to one task vector. Or a method by its name.
        world: Only in mini or icons_s. By default in both.
        seeds: How many runs of fine-tuning, from seed 0 on.
        sets: How many recorded sets of eight tasks of icons_s, beside its default eight. By
            default 3.
        store_root: Folder of results.
        out: The report to write, one HTML file.
        csv: Write accuracies of the rule and of recorded merges, by seed, set and task.
        json: Print JSON: rule, and worlds (world, mean, place, of, gains: against, effect, low,
            high and target of the interval, null for one seed; places: the mean of every
            merge), written.
    """
    outputs = places.Outputs.of({"--out": (out, _PAGE), "--csv": (csv, _CSV)})
    if world and _OF_SETS not in world and str(sets) != "0":
        idle.refuse({"sets": sets}, f"only {_OF_SETS} has sets of tasks")
    sets = 3 if sets is None else sets
    begin(f"judging {rule}.")
    rule = registry.named(rule)
    judging = study.judging
    given: dict[str, Any] = {} if store_root is None else {"store_root": store_root}
    there = judging.runs(world or judging.WORLDS, seeds=seeds, sets=sets, **given)
    if missing := judging.untrained(there):
        tell(
            f"{missing} vector{'s'[: missing != 1]} of the recorded runs are fine-tuned first, "
            "once: about ten seconds of a core each; what is finished is kept."
        )
    found = judging.judge(rule, there)
    texts = {"--out": book.judging.page(found, registry.method(rule))}
    if "--csv" in outputs.files:
        import pandas as pd

        rows = pd.concat([one.rows.assign(world=one.world) for one in found])
        first = ["world", "merge", "seed", "subset", "task", "accuracy"]
        texts["--csv"] = spreadsheet.csv(rows[first])
    with outputs.drafts(texts):
        pass
    written = outputs.written
    if json:
        about = {"rule": rule, "worlds": [_answer(one) for one in found], "written": written}
        print(writer.dumps(about, indent=1))
        return
    for one in found:
        print(*columns(_table(one), right=True), sep="\n")
    print(f"Written: {', '.join(written.values())}.")


def _answer(one: study.judging.Judgement) -> dict[str, Any]:
    gains = [
        {"against": other, "target": target, "effect": gain.effect}
        | {end: x if math.isfinite(x := getattr(gain, end)) else None for end in ("low", "high")}
        for other, of in one.gains.items()
        for target, gain in of.items()
    ]
    about = {"world": one.world, "mean": one.mean, "place": one.place, "of": len(one.places)}
    return {**about, "gains": gains, "places": one.places.to_dict()}


def _table(one: study.judging.Judgement) -> list[list[str]]:
    title = registry.method(one.rule).title
    rows = [[one.world, "points", "95 % interval", "about"]]
    place = f"place {one.place} of {len(one.places)}"
    rows.append([f"{title}, accuracy in %", f"{one.mean:.1f}", "", place])
    for other, of in one.gains.items():
        for target, gain in of.items():
            over = f"gain over {registry.method(other).title}"
            told = math.isfinite(gain.low)
            ends = f"{gain.low:+.1f} to {gain.high:+.1f}" if told else "needs two seeds"
            rows.append([over, f"{gain.effect:+.1f}", ends, target])
    return rows
