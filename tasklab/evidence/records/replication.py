"""Replication: the verdicts on the same statements in two worlds, side by side.

Records are not pooled: a statement is confirmed in both worlds only if each confirms it alone,
so that no correction for two tests is needed (the intersection-union test).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from tasklab.errors import choose
from tasklab.evidence.records import intervals, targets
from tasklab.evidence.records.claims import CLAIMS, Claim
from tasklab.evidence.records.foretelling import foretold, units
from tasklab.evidence.records.judgement import DECIDED, Verdict, judged, towards, verdict
from tasklab.evidence.records.pairing import Split, pairs
from tasklab.evidence.records.statements import headlines, plain, verdict_rows

BOTH = ("confirmed", "not confirmed", "they differ", "open")
_SAME = ["id", "setting", "paper", "headline", "short", "statement", "evidence", "unit"]
_OWN = [
    "outcome", "effect", "low", "high", "strength", "n_seeds", "n_tasks", "too_few", "value",
    "bound", "band", "here",
]  # fmt: skip
SIDES = ("_first", "_second")
PROPERTIES = ("single", "zero_shot", "classes", "norm", "cosine", "gradient_cosine")


def replication(
    first: Iterable[Verdict], second: Iterable[Verdict], *, here: bool = False
) -> pd.DataFrame:
    """Return the statements that were tested in both worlds, a row each.

    Statements about other networks than the worlds' (chapter 3's small ones), whose records are the
    same in both, are left out.

    Args:
        first: Verdicts of one world.
        second: Verdicts of the other world.
        here: Whether to compare outcomes on the tried tasks alone, where a statement is about
            tasks in general.

    Returns:
        The columns of `verdict_rows` that name a statement; outcome, effect, low, high, ... of each
        world, with the endings of `SIDES`; `both`, one of `BOTH`; and `same_sign`, whether both
        effects are on one side of 0.
    """
    worlds = [{one.claim.id: one for one in world} for world in (first, second)]
    apart = [n for n, one in worlds[0].items() if n in worlds[1] and not _same(one, worlds[1][n])]
    tables = [_of([world[name] for name in apart], here) for world in worlds]
    rows = tables[0].merge(tables[1], on=_SAME, suffixes=SIDES)
    outcomes = [rows[f"outcome{side}"] for side in SIDES]
    rows = rows[np.logical_and(*(one != "not tested" for one in outcomes))]
    both = [
        _both(*pair) for pair in zip(rows["outcome_first"], rows["outcome_second"], strict=True)
    ]
    signs = [np.sign(rows[f"effect{side}"]) for side in SIDES]
    return rows.assign(both=both, same_sign=signs[0] == signs[1]).reset_index(drop=True)


def _of(verdicts: Iterable[Verdict], here: bool) -> pd.DataFrame:
    if here:
        verdicts = [one.on_these_tasks or one for one in verdicts]
    return verdict_rows(verdicts, cells=False)[[*_SAME, *_OWN]]


def _same(first: Verdict, second: Verdict) -> bool:
    return bool(first.by_seed) and first.by_seed == second.by_seed


def _both(first: str, second: str) -> str:
    if first == second == "holds":
        return "confirmed"
    decided = {first, second} <= {*DECIDED}
    if decided and "holds" in (first, second):
        return "they differ"
    return "not confirmed" if decided else "open"


def decided(verdicts: Iterable[Verdict]) -> pd.Series:
    """Return the outcomes of headlines, by statement: for other tasks, else on these tasks."""
    rows = verdict_rows(verdicts, cells=False)
    rows = rows[(rows["headline"] > 0) & (rows["setting"] == "chosen")].set_index("short")
    rows = rows[rows["outcome"] != "not tested"]
    return rows["outcome"].where(rows["outcome"].isin(DECIDED) | (rows["here"] == ""), rows["here"])


def in_common(
    first: Iterable[Verdict], second: Iterable[Verdict], own: Iterable[Verdict] = ()
) -> str:
    """Count the headlines that a second world decides as the first one does, in sentences.

    Args:
        first: Verdicts of the first world.
        second: Verdicts on real drawings, whose test drawings are by other teams.
        own: Verdicts on drawings by the training teams (`on_validation`).
    """
    first = list(first)
    drawn, other, unshifted = (decided(one) for one in (first, second, own))
    known = drawn[drawn != "undecided"]
    asked = [name for name in drawn.index if name in other.index]
    alike = [name for name in asked if known.get(name) == other[name]]
    more = [n for n in asked if n not in alike and n in known and known[n] == unshifted.get(n)]
    decisive = int(headlines(first)["outcome"].ne("open").sum())
    without = f", and {len(more)} more on drawings by the training teams" * bool(more)
    told = (
        f"**Synthetic images decide {decisive} of {len(drawn)} headlines, and {len(known)} with "
        f"the tasks held fixed. Of the {len(asked)} that real drawings can answer, {len(alike)} "
        f"come out alike there{without}.** The other {len(drawn) - len(asked)} compare lengths "
        f"or kinds of pre-training; real drawings have one. Alike: {_listed(alike)}"
    )
    if more:
        told += f"; without the shift of test drawings also {_listed(more)}"
    rest = [
        f"{_listed([name])} ({plain(drawn[name])} on synthetic images, {plain(other[name])} on "
        f"drawings{_unshifted(unshifted.get(name))})"
        for name in asked if name not in alike + more
    ]  # fmt: skip
    return f"{told}. Not alike: {'; '.join(rest)}." if rest else f"{told}."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"*{name}*" for name in names) or "none"


def _unshifted(outcome: str | None) -> str:
    return f", {plain(outcome)} without the shift" if outcome else ""


def counted(rows: pd.DataFrame) -> str:
    """Count the statements of `replication` in a sentence."""
    if rows.empty:
        return ""
    count = {kind: int((rows["both"] == kind).sum()) for kind in BOTH}
    agree = int(rows["same_sign"].sum())
    return (
        f"**{count['confirmed']} of {len(rows)} statements {_are(count['confirmed'])} confirmed in "
        f"both worlds, and {count['they differ']} in one and contradicted in the other.** "
        f"{count['not confirmed']} {_are(count['not confirmed'])} decided in both and confirmed in "
        f"neither; {count['open']} {_are(count['open'])} open in at least one world. The effects "
        f"have the same sign in {agree} of {len(rows)}."
    )


def over_sets(df: pd.DataFrame, *, model: str, n_tasks: int = 8) -> list[Verdict]:
    """Judge the statements on sums and merges over sets of tasks: the set is the unit.

    Both sides are of the same seed, set and task. The interval's target is other tasks, that of
    `here` other sets of these tasks (`targets`).

    Args:
        df: Records `merging` of a lab of all tasks; sums are the merge `arithmetic`.
        model: Short name of the model.
        n_tasks: Size of the sets.

    Returns:
        A verdict on each claim that two seeds and three sets or more test; `by_task` has the effect
        in each set.
    """
    df = df[(df["n_tasks"] == n_tasks).fillna(False)]
    split = Split(pd.concat([df, df[df["merge"] == "arithmetic"].assign(experiment="addition")]))
    tables = {
        claim: pairs(claim, split, model, n_tasks)
        for claim in CLAIMS
        if claim.experiment in ("addition", "merging")
        and claim.setting == "chosen"
        and not claim.grows
    }
    return [
        _of_sets(claim, table)
        for claim, table in tables.items()
        if len(table) and table["seed"].nunique() > 1 and table["subset"].nunique() > 2
    ]


def _of_sets(claim: Claim, table: pd.DataFrame) -> Verdict:
    by_seed, by_set = (table.groupby(name)["difference"].mean() for name in ("seed", "subset"))
    effect = float(by_seed.mean())
    drawn, here = (targets.sources(table, one) for one in (targets.TASKS, targets.SETS))
    interval, far = intervals.interval(effect, drawn), towards(claim, effect)
    return Verdict(
        claim=claim,
        outcome=judged(interval, claim.margin),
        interval=interval,
        sources=tuple(source.name for source in drawn),
        here=intervals.interval(effect, here),
        p=intervals.p_value(far, drawn),
        p_here=intervals.p_value(far, here),
        by_seed={int(seed): float(value) for seed, value in by_seed.items()},
        by_task={str(name): float(value) for name, value in by_set.items()},
    )


def set_gains(
    df: pd.DataFrame, of: tuple[str, str], over: tuple[str, str] = ("nonlinear", "arithmetic")
) -> pd.DataFrame:
    """Return the gain in accuracy of one merge over another, paired in sets, by number of tasks.

    Args:
        df: Records `merging` of a lab of all tasks, of one model.
        of: Method and merge whose gain it is.
        over: Method and merge that it is compared with.

    Returns:
        A row per number of tasks: n_tasks, sets, seeds, and effect (points) with its interval low,
        high, whose target is other tasks (`targets`).
    """
    known = set(df["merge"].dropna())
    for _, merge in (of, over):
        choose("merge", merge, known)
    rows = df[(df["metric"] == "absolute") & (df["split"] == "test")]
    keys = ["n_tasks", "seed", "subset", "task"]
    sides = [
        rows[(rows["method"] == method) & (rows["merge"] == merge)].set_index(keys)["value"]
        for method, merge in (of, over)
    ]
    table = (sides[0] - sides[1]).dropna().rename("difference").reset_index()
    return pd.DataFrame([
        {"n_tasks": int(n), "sets": part["subset"].nunique(), "seeds": part["seed"].nunique(),
         **targets.interval(part, targets.TASKS)._asdict()}
        for n, part in table.groupby("n_tasks")
    ])  # fmt: skip


def on_validation(df: pd.DataFrame, *, model: str) -> list[Verdict]:
    """Judge statements on validation images, for other tasks: one half chose for the other.

    Args:
        df: Records `two_fold`, whose images are of the origin of the training images.
        model: Short name of the model.

    Returns:
        The verdicts on the claims that these records test.
    """
    split = Split(as_tested(df))
    asked = [one for one in CLAIMS if one.setting == "chosen" and not one.grows
             and one.experiment in ("single", "addition", "negation", "merging")
             and "@" not in one.left + one.right]  # fmt: skip
    return [one for one in (verdict(c, split, model=model) for c in asked) if one.n_seeds > 1]


def as_tested(df: pd.DataFrame) -> pd.DataFrame:
    """Return records `two_fold` as those of `single`, `addition`, `negation` and `merging`.

    Args:
        df: Records `two_fold`; normalised accuracies follow from those of vectors alone.
    """
    rows = df[df["experiment"] == "two_fold"].assign(split="test")
    merged = rows["merge"].notna() if "merge" in rows else pd.Series(False, index=rows.index)
    names = {"single": "single", "absolute": "addition"}
    rows["experiment"] = rows["metric"].map(names).fillna("negation").mask(merged, "merging")
    keys = ["method", "seed", "task"]
    sums, alone = (rows[rows["metric"] == metric] for metric in ("absolute", "single"))
    both = sums.merge(alone[[*keys, "value"]], on=keys, suffixes=("", "_alone"), validate="m:1")
    share = both.assign(metric="normalised", value=100 * both["value"] / both["value_alone"])
    return pd.concat([rows, share.drop(columns="value_alone")], ignore_index=True)


def of_models(df: pd.DataFrame, n_tasks: int = 8) -> pd.DataFrame:
    """Return accuracies, gains and errors of models of several worlds, side by side.

    Args:
        df: Records `single`, `addition`, `merging` and `search_box` of models from pre-training.
        n_tasks: Number of tasks in a sum.

    Returns:
        A row per model, means over test images, tasks and seeds: zero_shot, single, sum (%); ties,
        tsv_m and regmean over the sum, attention and posthoc (normalised) over non-linear in the
        sum (points); xi, the error of non-linear vectors over the search box (%). Missing
        records are NaN.
    """
    df = df[(df["split"] == "test") & (df["init"] == "pretrained")]

    def mean(metric: str, method: str = "nonlinear", **chosen: str) -> pd.Series:
        rows = df[(df["metric"] == metric) & (df["method"] == method)]
        for name, value in chosen.items():
            rows = rows[rows[name] == value]
        if metric in ("absolute", "normalised"):
            rows = rows[rows["n_tasks"] == n_tasks]
        return rows.groupby("model")["value"].mean()

    def gain(one: Mapping[str, str], other: Mapping[str, str], metric: str) -> pd.Series:
        return mean(metric, **one) - mean(metric, **other)

    merged = {"experiment": "merging", "merge": "arithmetic"}
    added = {"experiment": "addition"}
    columns = {
        "zero_shot": mean("single", "pretrained", experiment="single"),
        "single": mean("single", experiment="single"),
        "sum": mean("absolute", **added),
        **{name: gain({**merged, "merge": name}, merged, "absolute")
           for name in ("tsv_m", "ties", "regmean")},
        "attention": gain({**added, "method": "attention"}, added, "absolute"),
        "posthoc": gain({**added, "method": "posthoc"}, added, "normalised"),
        "xi": mean("xi_classifier_box", experiment="search_box"),
    }  # fmt: skip
    return pd.DataFrame(columns)


def of_pairs(df: pd.DataFrame, classes: Mapping[str, int]) -> pd.DataFrame:
    """Return properties of all pairs of tasks beside the error of their sum.

    Properties of one task, or of its vector, count by their mean over both.

    Args:
        df: Records `crossing` of one model; non-linear vectors are used.
        classes: Number of classes by task.

    Returns:
        A row of `foretelling.units` per pair and seed, with `PROPERTIES` (`zero_shot` is the
        pre-trained accuracy in %) and `xi_pair` (%).
    """
    return units(with_properties(df, classes), 2)


def properties(df: pd.DataFrame, classes: Mapping[str, int]) -> pd.DataFrame:
    """Return rank correlations of `PROPERTIES` with the error of a pair; arguments of `of_pairs`.

    Correlations are the recorded ones of the model (`foretold`).

    Returns:
        Columns metric, mean, and value, low, high, p_holm as of `foretold`; in the order of
        `PROPERTIES`, without unmeasured ones.
    """
    means = of_pairs(df, classes).mean(numeric_only=True)
    ranks = foretold("xi_pair", each=True)
    ranks = ranks[ranks["model"] == df["model"].iloc[0]].set_index("metric")
    table = ranks[["value", "low", "high", "p_holm"]].reindex(
        [name for name in PROPERTIES if name in means.index]
    )
    table.insert(0, "mean", means[list(table.index)])
    return table.rename_axis("metric").reset_index()


def with_properties(df: pd.DataFrame, classes: Mapping[str, int]) -> pd.DataFrame:
    """Return records with `PROPERTIES` of non-linear vectors and the error of pairs.

    Args:
        df: Records `crossing` of one model.
        classes: Number of classes by task.
    """
    alone = df[(df["metric"] == "single") & (df["method"] == "nonlinear")]
    start = df[(df["metric"] == "single") & (df["method"] == "pretrained")]
    known = {"zero_shot": start.groupby("task")["value"].mean(), "classes": classes}
    more = [alone.assign(metric=name, value=alone["task"].map(of)) for name, of in known.items()]
    rows = pd.concat([df[df["method"] == "nonlinear"], *more])
    return rows[rows["metric"].isin(["xi_pair", *PROPERTIES])]


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
