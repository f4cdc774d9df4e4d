"""What was found, a few sentences a topic, whose numbers are computed from the recorded results.

The sentences are so worded that they stay true whatever the numbers are: an accuracy goes from one
number to another, and what a paper claims is followed by what the intervals say of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable

import pandas as pd

from tasklab.figures.merging import MERGE_LABEL
from tasklab.records.judgement import Verdict
from tasklab.records.statements import effect_of, evidence_link, on_these_tasks, verdict_rows
from tasklab.study.results import evidence, recorded


def findings(verdicts: Iterable[Verdict], model: str = "mini") -> tuple[str, ...]:
    """Return the findings, Markdown with links to the chapters: seven, less those not recorded.

    Args:
        verdicts: On the claims of all papers.
        model: Whose records they are about.
    """
    rows = verdict_rows(verdicts, cells=False)
    at = {setting: part.set_index("id") for setting, part in rows.groupby("setting")}
    verdict = functools.partial(_verdict, at.get("chosen", rows.set_index("id")[:0]))
    equally = functools.partial(_equally_accurate, at.get("equal accuracy"))
    tangent, ctl = evidence("tangent"), evidence("ctl")
    closed, layers = recorded("closed_vocab")[0], _of(evidence("linear_layers"), model=model)
    usual = _of(tangent, model=model, init="pretrained")
    random = _of(tangent, model=model, init="random")
    eight = {"experiment": "addition", "metric": "absolute", "n_tasks": 8}
    merged = _of(ctl, model=model, experiment="ctl", method="nonlinear")
    merged = merged[merged["block"].isna()]  # at the encoder's output, where it is judged
    near, far, coefficient = (_mean(merged, metric=m) for m in ("distance", "base", "coef"))
    alone = {"experiment": "single", "metric": "single"}
    before = _mean(usual, method="pretrained", **alone)
    added = ("the mean accuracy on their tasks", before, _mean(usual, method="nonlinear", **eight))
    subtracted = (("its task", "target"), ("the control task", "control"))
    probed = [
        (name, *(_mean(closed, model=f"{model}_{one}", method=method, **eight)
                 for method in ("probe", "nonlinear")))
        for one, name in (("clip_more", "CLIP's image encoder"), ("mae", "a masked autoencoder"))
    ]  # fmt: skip
    sentences = (
        f"**Addition.** The sum of eight task vectors {_takes(added)}; each alone reaches "
        f"{_mean(usual, method='nonlinear', **alone):.1f} % on its own. Linearized fine-tuning: "
        f"{_mean(usual, method='linearized', **eight):.1f} %. That it adds better: "
        f"{verdict('tangent-adds')}{equally('tangent-adds')}.",
        "**Subtraction.** A vector that is subtracted "
        f"{_takes(*(_negated(usual, *of) for of in subtracted))}. "
        "That linearized vectors forget better: "
        f"{verdict('tangent-forgets')}{equally('tangent-forgets')}.",
        "**Attention alone.** Where only the attention's linear layers are fine-tuned, the sum of "
        f"eight vectors reaches {_mean(layers, method='attention', **eight):.1f} %; where all "
        f"weights are, {_mean(layers, method='nonlinear', **eight):.1f} %, linearized "
        f"{_mean(layers, method='linearized', **eight):.1f} %. That attention alone adds best: "
        f"{verdict('linear-adds')}{equally('linear-adds')}.",
        "**Pre-training.** From random weights a task alone is learnt to "
        f"{_mean(random, method='nonlinear', **alone):.1f} %, and the sum of eight vectors is at "
        f"{_mean(random, method='nonlinear', **eight):.1f} %. That random networks do not add: "
        f"{verdict('tangent-random-adds')}.",
        "**Features.** Those of averaged weights lie at a distance (1 − cosine) of "
        f"{near:.3f} from the average of two models' features, which lie at {far:.3f} from each "
        f"other; the coefficient between both is {coefficient:.2f}. That it is near 1, within 0.1: "
        f"{verdict('ctl-linear-coef')}.",
        "**Without text.** With probed heads in place of prompts, the sum of eight vectors "
        f"{_takes(*probed)}. That CLIP's adds best: "
        f"{verdict('closed-clip')}.",
        *_of_merges(_of(evidence("merging"), model=model, method="nonlinear"), verdict),
    )
    return tuple(sentence for sentence in sentences if not re.search(r"\bnan\b", sentence))


def _of_merges(records: pd.DataFrame, verdict: Callable[[str], str]) -> tuple[str, ...]:
    """Return the sentence on merges, or nothing where none is recorded."""
    rows = _of(records, experiment="merging", metric="absolute")
    if rows.empty:
        return ()
    means = rows[rows["n_tasks"] == rows["n_tasks"].max()].groupby("merge")["value"].mean()
    tried = means.drop(["arithmetic", "best_span", "best", "best_loss"], errors="ignore")
    return (
        f"**Merging.** Of {int(rows['n_tasks'].max())} task vectors, task arithmetic reaches "
        f"{means['arithmetic']:.1f} %, {MERGE_LABEL[tried.idxmax()]}, the most accurate of "
        f"{len(tried)} other merges, {tried.max():.1f} %, and the best merge of the tangent model "
        f"on their span {means['best_span']:.1f} %. That TIES beats task arithmetic: "
        f"{verdict('merging-ties')}.",
    )


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
    return task, *(_mean(records, method=method, **given) for method in ("pretrained", "nonlinear"))


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


def _equally_accurate(rows: pd.DataFrame | None, name: str) -> str:
    """Return what is added to a verdict where both ways are equally accurate alone, if recorded."""
    if rows is None or name not in rows.index or rows.loc[name, "outcome"] == "not tested":
        return ""
    return f"; where both are equally accurate alone: {_verdict(rows, name)}"


def _verdict(rows: pd.DataFrame, name: str) -> str:
    """Return the outcome of a statement, leading to its evidence, with its effect and interval."""
    if name not in rows.index:
        return "not tested"
    row = rows.loc[name]
    text = f'<a href="{evidence_link(row["evidence"])}"><strong>{row["outcome"]}</strong></a>'
    if pd.isna(row["effect"]):
        return text
    told = filter(None, (effect_of(row), on_these_tasks(row)))
    return f"{text} ({'; '.join(told)})"
