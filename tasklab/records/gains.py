"""What merges gain over another one, for every number of merged tasks, judged as claims are."""

from __future__ import annotations

import pandas as pd

from tasklab.errors import choose
from tasklab.records.claims import Claim
from tasklab.records.judgement import verdict
from tasklab.records.schema import LEADING_MERGES


def gains(
    df: pd.DataFrame, *, over: str = "arithmetic", metric: str = "absolute", model: str = "mini"
) -> pd.DataFrame:
    """Return each merge's gain over another one, with the interval that a verdict has.

    It is that of the mean difference over tasks, at the same seeds and with the same vectors: the
    spread over seeds of fine-tuning and over tasks (`judgement.verdict`). Beside it stands that
    over pre-trainings which differ in their seed, where several are recorded.

    Returns:
        Columns n_tasks, merge, effect, low, high, seeds, and effect, low, high of the others
        (`others_effect`, ...) with their number `pretrainings`; NaN where there is no interval.
    """
    choose("metric", metric, ("absolute", "normalised"))
    df = df[df["experiment"].isin(("merging", "single"))]
    merged, rows = df["experiment"] == "merging", []
    known = list(df["merge"].dropna().unique()) if merged.any() else []
    choose("merge", over, dict.fromkeys(("arithmetic", *LEADING_MERGES, *known)))
    names = [name for name in known if name != over]
    for n in sorted(df.loc[merged, "n_tasks"].dropna().unique()):
        part = df[(merged & (df["n_tasks"] == n).fillna(False)) | ~merged]
        for name in names:
            claim = Claim(
                id=f"{name}-{n}", entry=name, paper="merging", statement=name, table="",
                experiment="merging", comparison="merges", metric=metric, left=name,
                relation=">", right=over,
            )  # fmt: skip
            found = verdict(claim, part, model=model)
            if not found.n_seeds:
                continue
            own = dict(zip(("effect", "low", "high"), found.interval, strict=True))
            others = zip(("effect", "low", "high"), found.pretrainings, strict=True)
            row = {"n_tasks": int(n), "merge": name, **own, "seeds": found.n_seeds}
            row |= {f"others_{end}": value for end, value in others}
            rows.append({**row, "pretrainings": found.n_pretrainings})
    return pd.DataFrame(rows)
