"""How often the rule of verdicts errs, and what it finds: the numbers of "How a claim is judged".

    python benchmarks/verdicts.py [--repeats 2000] [--out FILE]

Eight tasks of 1,000 images, three and five seeds, as in the protocol; what varies is how far seeds
differ, how alike both methods answer the images, what is recorded of the images, and the effect.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path

import numpy as np
import simulation
from simulation import World

from tasklab import study
from tasklab.records.table import provenance

LIKENESS = {"alike": {"ease": 0.75, "own": 0.1}, "unlike": {"ease": 0.4, "own": 0.3}}
SCOPES = {
    "these tasks": {},
    "these tasks, counts alone": {"counts": True},
    "tasks in general": {"general": True, "task_spread": 4.0},
}
RATIOS = (0.0, *np.geomspace(1e-3, 1e3, 61))


def worlds() -> list[tuple[dict, World]]:
    """Return what is drawn, with the names of what it is."""
    found = []
    for seeds in (3, 5):
        for scope, more in SCOPES.items():
            for likeness, shares in LIKENESS.items():
                for spread in (0.5, 2.0, 5.0):
                    for effect in (0.0, 1.0, 2.0, 4.0) if spread == 2.0 else (0.0,):
                        world = World(
                            seeds=seeds, seed_spread=spread, effect=effect, **shares, **more
                        )
                        found.append(({"scope": scope, "answers": likeness}, world))
    return found


def worst() -> list[dict]:
    """Return the largest rate of error on a side of each way to combine seeds and images."""
    return [
        {
            "rule": rule,
            "seeds": seeds,
            "wrong": max(simulation.wrong((seeds - 1, math.inf), (1.0, r), rule) for r in RATIOS),
        }
        for rule in simulation.RULES
        for seeds in (2, 3, 5)
    ]


def skewed(repeats: int) -> list[dict]:
    """Return the rates of wrong decisions where tasks' effects are skewed or heavy-tailed."""
    claim = "tangent-1-absolute"
    (found,) = (one for one in study.judged("tangent") if one.claim.id == claim)
    own = np.array(list(found.by_task.values()))
    own = (own - own.mean()) / own.std()
    shapes = simulation.SHAPES | {
        "those of the first headline": lambda rng, size: rng.choice(own, size)
    }
    return [
        {"tasks' effects": name, "seeds": seeds}
        | simulation.skewed(draw, seeds=seeds, repeats=repeats)
        for name, draw in shapes.items()
        for seeds in (3, 5)
    ]


def main() -> None:
    """Draw, print a table, and write the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    began, rows = time.perf_counter(), []
    for i, (names, world) in enumerate(worlds()):
        rates = dataclasses.asdict(simulation.rates(world, args.repeats, seed=i))
        told = {name: getattr(world, name) for name in ("seeds", "seed_spread", "effect")}
        rows.append({**names, **told, **{name: round(value, 5) for name, value in rates.items()}})
        print(rows[-1], flush=True)
    origin = provenance({"repeats": args.repeats}, seconds=round(time.perf_counter() - began))
    result = {"rows": rows, "worst": worst(), "skewed": skewed(10 * args.repeats)}
    result |= {"provenance": origin}
    args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
