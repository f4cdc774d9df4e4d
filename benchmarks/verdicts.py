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
from simulation import Crossed, World

from tasklab.evidence import study
from tasklab.evidence.records import targets
from tasklab.evidence.records.table import provenance
from tasklab.tasks import icons

LIKENESS = {"alike": {"ease": 0.75, "own": 0.1}, "unlike": {"ease": 0.4, "own": 0.3}}
SCOPES = {
    "these tasks": {},
    "these tasks, counts alone": {"counts": True},
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


def crossed() -> list[tuple[dict, Crossed]]:
    """Return what is drawn for the coverage of targets, with the names of what it is.

    Spreads are those that the records of real drawings have: of the sum of linearized vectors and
    of TSV-M, both over the sum; in one set of eight also that of the first headline.
    """
    one = {"sets": ("+".join(icons.usual()),), "rest": 1.5}
    spreads = {
        "linearized, sum": {"tasks": 1.4, "company": 1.5, "of_sets": 0.5, "rest": 2.5},
        "TSV-M": {"tasks": 1.0, "company": 2.9, "of_sets": 0.2, "rest": 1.8},
    }
    found: list[tuple[dict, Crossed]] = [
        ({"target": targets.TASKS, "of": f"one set of eight, {seeds} seeds", "spreads": name},
         Crossed(tasks=tasks, common=common, seeds=seeds, **one))
        for seeds in (3, 5)
        for name, tasks, common in (("headline 1, drawn world", 7.3, 0.5),
                                    ("headline 1, real drawings", 2.1, 0.3))
    ]  # fmt: skip
    for size in (8, 20):
        sets = tuple("+".join(names) for names in icons.sets()[size])
        found += [
            ({"target": target, "of": f"{len(sets)} sets of {size}, 3 seeds", "spreads": name},
             Crossed(sets=sets, **spread))
            for target in (targets.TASKS, targets.SETS)
            for name, spread in spreads.items()
        ]  # fmt: skip
    return found


def coverage(repeats: int) -> list[dict]:
    """Return how often intervals cover their target."""
    return [
        {**names, "covered": simulation.covered(world, names["target"], repeats, seed=i)}
        for i, (names, world) in enumerate(crossed())
    ]


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
    result |= {"coverage": coverage(args.repeats), "provenance": origin}
    args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
