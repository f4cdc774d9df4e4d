"""Correct the precision in the provenance of recorded results by what their sittings say.

    python benchmarks/provenance.py

`recipe.precision` of a part in several sittings was that of one of them. It becomes that of all,
with their seeds; what stood there is kept as `corrected`. A second call changes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

from tasklab.records.table import sealed
from tasklab.storage import atomic
from tasklab.study.results import RECORDED
from tasklab.study.sittings import with_precision


def correct(file: Path) -> bool:
    """Correct a provenance file; return whether it changed."""
    before = json.loads(file.read_text("utf-8"))
    if "sittings" not in before:
        return False  # the recipe is of the one sitting
    after = with_precision(before)
    if after == before:
        return False
    kept = {"recipe": (before["recipe"] or {}).get("precision")} | {
        name: own["precision"] for name, own in before.get("recipes", {}).items()
        if "precision" in own
    }  # fmt: skip
    after["corrected"] = {"precision": {k: v for k, v in kept.items() if v is not None}}
    atomic.write(file, json.dumps(sealed(after), indent=2, allow_nan=False) + "\n")
    return True


if __name__ == "__main__":
    for path in sorted(RECORDED.glob("*.json")):
        if correct(path):
            print(path.name)
