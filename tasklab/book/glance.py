"""A chapter at a glance: at which scales its statements can be tested, and what each takes."""

from __future__ import annotations

from typing import Any

from tasklab.book.words import say
from tasklab.chapters import chapter
from tasklab.doctor import needs, speed
from tasklab.exchange.catalogue import PREFIX
from tasklab.experiments.parameters import Parameters
from tasklab.models.zoo import spec
from tasklab.progress import duration
from tasklab.study.results import sittings_of
from tasklab.tuning.methods import POSTHOC, TABLE
from tasklab.tuning.recipe import PAPER_STEPS

SCALES = ("embedded", "published checkpoints", "full protocol")
_TASKS, _SEEDS = 8, 3


def glance(name: str) -> Any:
    """Return a chapter's scales as a table, and what differs at full size."""
    entry = chapter(name)
    sittings = sittings_of(name)
    spent = sittings[["fine-tuning (h)", "measuring (h)"]] if len(sittings) else None
    hours = 0.0 if spent is None else spent.replace("", "0").astype(float).to_numpy().sum()
    cards = sorted({one for one in sittings["machine"] if " cores" not in one}) if hours else []
    machines = "; ".join(["two CPU cores", *(f"parts on one {card}" for card in cards)])
    ours = f"recorded in {hours:.0f} h; the page opens in minutes" if hours else "minutes"
    embedded = "its eight encoders" if entry.apart else "`mini`"
    clip = "eight encoders, 224 pixels" if entry.apart else "CLIP ViT-B/32, B/16, L/14"
    trained = dict.fromkeys(POSTHOC.get(one, one) for one in entry.methods if one != "probe")
    runs = len(trained) * _TASKS * _SEEDS
    model = spec("vitb16_in1k" if entry.apart else "vitb32")
    seconds = sum(
        PAPER_STEPS * _TASKS * _SEEDS
        * speed.step(model, speed.H100, compiled=True, products=TABLE[method].products)
        for method in trained
    )  # fmt: skip
    none = "nothing to run: none is published for these encoders"
    told = ""
    if not entry.apart:
        full = Parameters(model="vitb32", preset="full", device="cpu", vectors=f"{PREFIX}orthoreg")
        (need,) = needs.evaluation(full, needs.Pace(speed.H100, compiled=True), [name])
        told = (
            f"no fine-tuning; at most {duration(need.seconds)} of evaluation on an H100 (vitb32); "
            "not recorded yet"
        )
    rows = [
        (f"**{SCALES[0]}**: all verdicts here", f"{embedded}, eight tasks of drawn images",
         machines, ours),
        (SCALES[1], f"{clip}, the papers' eight tasks" if told else none,
         "one GPU" if told else "", told),
        (SCALES[2], f"{clip}, {runs} runs of {PAPER_STEPS:,} steps a model", "one GPU",
         f"{duration(seconds)} of fine-tuning on an H100 ({model.name}); not recorded yet"),
    ]  # fmt: skip
    lines = ["| scale | scope | hardware | time |", "|---|---|---|---|"]
    shown = [*lines, *("| " + " | ".join(row) + " |" for row in rows)]
    return say("\n".join([*shown, "", f"*At full size.* {entry.full_size}"]))
