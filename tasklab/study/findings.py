"""What was found, a few sentences a topic, whose numbers are computed from the recorded results.

The sentences are so worded that they stay true whatever the numbers are: an accuracy goes from one
number to another, and what a paper claims is followed by what the intervals say of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from tasklab.errors import choose
from tasklab.figures.merging import MERGE_LABEL
from tasklab.records import rates
from tasklab.records.judgement import Verdict
from tasklab.records.statements import (
    PLAIN,
    effect_of,
    entries,
    evidence_link,
    how_many,
    on_how_many,
    on_these_tasks,
    over_pretrainings,
    verdict_rows,
)
from tasklab.study.results import evidence, recorded


def findings(
    verdicts: Iterable[Verdict], model: str = "mini", chapter: str | None = None
) -> tuple[str, ...]:
    """Return the findings, Markdown with links to their evidence, less those not recorded.

    Args:
        verdicts: On the claims of all papers, or of the chapter's.
        model: Whose records they are about.
        chapter: Only its own, with links within it; by default seven of all chapters, for a page
            beside their folder.

    Raises:
        TasklabError: If there is no such chapter.
    """
    if chapter is not None:
        choose("chapter", chapter, _OF)
    verdicts = list(verdicts)
    rows = verdict_rows(verdicts, cells=False)
    at = {setting: part.set_index("id") for setting, part in rows.groupby("setting")}
    here = chapter or ""
    chosen = at.get("chosen", rows.set_index("id")[:0])
    told = _Told(chosen, at.get("equal accuracy"), rates.over_rates(verdicts), here)
    chapters = _OF if chapter is None else (chapter,)
    sentences = [sentence for name in chapters for sentence in _OF[name](told, model)]
    return tuple(sentence for sentence in sentences if not re.search(r"\bnan\b", sentence))


def found(chapter: str, verdicts: Iterable[Verdict], model: str = "mini") -> str:
    """Return a chapter's findings and how many of its statements are decided; or nothing.

    Args:
        chapter: One of `chapters.CHAPTERS`.
        verdicts: On its claims.
        model: Whose records they are about.

    Raises:
        TasklabError: If there is no such chapter.
    """
    verdicts = list(verdicts)
    sentences = findings(verdicts, model, chapter)
    judged = [entry for entry in entries(verdicts) if entry.outcome != "not tested"]
    if not sentences or not judged:
        return ""
    counts = how_many(entry.outcome for entry in judged)
    alone = how_many((entry.here or entry).outcome for entry in judged)
    told = f"Of this chapter's {on_how_many(judged)}, {counts}"
    told += "." if alone == counts else f"; on these tasks alone, {alone}."
    listed = "\n".join(f"- {sentence}" for sentence in sentences)
    return f"**Found** in recorded runs, with 95 % intervals:\n\n{listed}\n\n{told}"


@dataclass(frozen=True)
class _Told:
    """What is said of statements.

    Attributes:
        chosen: Rows of `verdict_rows` by the statement's name, at the rates chosen.
        equal: The same where both sides are equally accurate alone, if there are any.
        rates: Headlines under other rules for the learning rate (`records.over_rates`).
        here: The chapter that shows it; the landing page says less of each.
    """

    chosen: pd.DataFrame
    equal: pd.DataFrame | None
    rates: pd.DataFrame
    here: str

    def verdict(self, name: str) -> str:
        """Return the outcome of a statement, leading to its evidence, with its effect."""
        return _verdict(self.chosen, name, self.here)

    def both(self, name: str, claim: str) -> str:
        """Return the same at the rates that are best alone, and what it is by other rules.

        The landing page leaves out what it is where both ways are equally accurate alone.
        """
        equal = _equally_accurate(self.equal, name, self.here) if self.here else ""
        other = rates.told(self.rates, claim)
        best = " with each at the learning rate that is best alone" if other else ""
        return f"{self.verdict(name)}{best}{equal}" + (f"; {other}" if other else "")


_WITH_IMAGES = ["fisher", "regmean"]  # merges that read training images
_EIGHT = {"experiment": "addition", "metric": "absolute", "n_tasks": 8}
_ALONE = {"experiment": "single", "metric": "single"}


def _of_tangent(told: _Told, model: str) -> tuple[str, ...]:
    tangent = evidence("tangent")
    usual = _of(tangent, model=model, init="pretrained")
    random = _of(tangent, model=model, init="random")
    before = _mean(usual, method="pretrained", **_ALONE)
    added = ("the mean accuracy on their tasks", before, _mean(usual, method="nonlinear", **_EIGHT))
    subtracted = (("its task", "target"), ("the control task", "control"))
    return (
        f"**Addition.** The sum of eight task vectors {_takes(added)}. Each alone reaches "
        f"{_mean(usual, method='nonlinear', **_ALONE):.1f} % on its own task, the sum of "
        f"linearized ones {_mean(usual, method='linearized', **_EIGHT):.1f} %. Linearized "
        f"fine-tuning adds better: {told.both('tangent-adds', 'tangent-1-absolute')}.",
        "**Subtraction.** Subtracting a task's vector "
        f"{_takes(*(_negated(usual, *of) for of in subtracted))}. "
        "Linearized vectors forget better: "
        f"{told.both('tangent-forgets', 'tangent-2-target')}.",
        "**Pre-training.** From random weights a model learns a task to "
        f"{_mean(random, method='nonlinear', **_ALONE):.1f} %, but the sum of eight vectors has "
        f"{_mean(random, method='nonlinear', **_EIGHT):.1f} %. Random networks do not add: "
        f"{told.verdict('tangent-random-adds')}.",
    )


def _of_linear_layers(told: _Told, model: str) -> tuple[str, ...]:
    layers = _of(evidence("linear_layers"), model=model)
    return (
        "**Attention alone.** If only the attention's linear layers are fine-tuned, the sum of "
        f"eight vectors reaches {_mean(layers, method='attention', **_EIGHT):.1f} %; with all "
        f"weights it is {_mean(layers, method='nonlinear', **_EIGHT):.1f} %, linearized "
        f"{_mean(layers, method='linearized', **_EIGHT):.1f} %. Attention alone adds best: "
        f"{told.both('linear-adds', 'linear-1-absolute-nonlinear')}. It learns single tasks "
        f"as well, within one point: {told.verdict('linear-alone-equal')}.",
    )


def _of_ctl(told: _Told, model: str) -> tuple[str, ...]:
    merged = _of(evidence("ctl"), model=model, experiment="ctl", method="nonlinear")
    blocks = _of(merged, metric="coef").dropna(subset="block").groupby("block")["value"].mean()
    merged = merged[merged["block"].isna()]  # at the projected output
    near, far, coefficient = (_mean(merged, metric=m) for m in ("distance", "base", "coef"))
    return (
        "**Features.** Average the weights of two models, and the features are nearly the average "
        f"of theirs: at a distance (1 − cosine) of {near:.3f}, where the two models' are "
        f"{far:.3f} apart. A single model's are further away: {told.verdict('ctl-linear')}. "
        f"The ratio of lengths is {blocks.min():.2f} to {blocks.max():.2f} in the blocks and "
        f"{coefficient:.2f} at the output. It is near 1, within 0.1, in every block: "
        f"{told.verdict('ctl-linear-coef')}.",
    )


def _of_closed_vocab(told: _Told, model: str) -> tuple[str, ...]:
    closed = recorded("closed_vocab")[0]
    probed = []
    for one, name in (("clip_more", "CLIP's image encoder"), ("mae", "a masked autoencoder")):
        mine = _of(closed, model=f"{model}_{one}", **_EIGHT)
        probed.append((name, _mean(mine, method="probe"), _mean(mine, method="nonlinear")))
    return (
        "**Without text.** With linear probes in place of prompts, the sum of eight vectors "
        f"{_takes(*probed)}. CLIP's adds best: {told.verdict('closed-clip')}.",
    )


def _of_merging(told: _Told, model: str) -> tuple[str, ...]:
    rows = _of(evidence("merging"), model=model, method="nonlinear")
    rows = _of(rows, experiment="merging", metric="absolute")
    if rows.empty:
        return ()
    means = rows[rows["n_tasks"] == rows["n_tasks"].max()].groupby("merge")["value"].mean()
    tried = means.drop(["arithmetic", "best_span", "best", "best_loss"], errors="ignore")
    alone = tried.drop(_WITH_IMAGES, errors="ignore")
    best, other = alone.idxmax(), tried.idxmax()
    more = f" {MERGE_LABEL[other]}, which reads training images of every task, has "
    more += f"{tried.max():.1f} %."
    return (
        f"**Merging.** Of {len(alone)} other merges of {int(rows['n_tasks'].max())} task vectors "
        f"without training images, {MERGE_LABEL[best]} is the most accurate: {alone.max():.1f} %, "
        f"where the sum has {means['arithmetic']:.1f} %.{more if other != best else ''} "
        f"TIES beats the sum: {told.verdict('merging-ties')}; TSV-M beats it and "
        f"Consensus: {told.verdict('merging-tsv')}.",
    )


_OF = {
    "tangent": _of_tangent,
    "linear_layers": _of_linear_layers,
    "ctl": _of_ctl,
    "closed_vocab": _of_closed_vocab,
    "merging": _of_merging,
}


def _of(records: pd.DataFrame, **chosen: object) -> pd.DataFrame:
    """Return the records of test images that have these values."""
    rows = records[records["split"] == "test"]
    for name, value in chosen.items():
        rows = rows[(rows[name] == value).fillna(False).astype(bool)]
    return rows


def _mean(records: pd.DataFrame, **chosen: object) -> float:
    return float(_of(records, **chosen)["value"].mean())


def _negated(records: pd.DataFrame, task: str, metric: str) -> tuple[str, float, float]:
    given = {"experiment": "negation", "metric": metric}
    before, after = (_mean(records, method=one, **given) for one in ("pretrained", "nonlinear"))
    return task, before, after


def _takes(*moves: tuple[str, float, float]) -> str:
    """Return what is taken from one accuracy to another or, if they read alike, is left at it."""
    parts, last = [], ""
    for what, before, after in moves:
        one, other = f"{before:.1f}", f"{after:.1f}"
        verb = "leaves" if one == other else "takes"
        told = f"{what} at {one} %" if one == other else f"{what} from {one} to {other} %"
        parts.append(told if verb == last else f"{verb} {told}")
        last = verb
    return ", and ".join(parts)


def _equally_accurate(rows: pd.DataFrame | None, name: str, here: str = "") -> str:
    """Return what is added to a verdict where both ways are equally accurate alone, if recorded."""
    if rows is None or name not in rows.index or rows.loc[name, "outcome"] == "not tested":
        return ""
    return f"; at equal single-task accuracy: {_verdict(rows, name, here)}"


def _verdict(rows: pd.DataFrame, name: str, here: str = "") -> str:
    """Return the outcome of a statement, leading to its evidence, with its effect and interval."""
    if name not in rows.index:
        return "not tested"
    row = rows.loc[name]
    word = row["outcome"] if here else PLAIN.get(row["outcome"], row["outcome"])
    text = f'<a href="{evidence_link(row["evidence"], here)}"><strong>{word}</strong></a>'
    if pd.isna(row["effect"]):
        return text
    others = [on_these_tasks(row), over_pretrainings(row)]
    if not here:
        others = [re.sub(r" \([^)]*\)|:.*", "", one) for one in others]
    return f"{text} ({'; '.join(filter(None, (effect_of(row), *others)))})"
