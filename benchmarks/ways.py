"""Ways of being fast on a card, each switched off in turn (`card.py paths`).

A way whose absence costs less than `LEAST` times the time in every kind of work leaves the package.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tasklab import Lab, TaskVector, sums
from tasklab.analyses import disentanglement
from tasklab.analyses.edited import Edited
from tasklab.models import inference
from tasklab.storage import placement, writing
from tasklab.tuning import compiled, dual, recipe, session

LEAST = 1.2  # what a way of being fast has to gain
TRAINED = ("nonlinear", "linearized")
EVALUATED = "evaluation"
KINDS = (*TRAINED, EVALUATED)  # of work
ALL = "all"
_AdamW = torch.optim.AdamW
Row = dict[str, Any]
Off = contextlib.AbstractContextManager[Any]


@dataclasses.dataclass(frozen=True)
class Way:
    """A way of being fast.

    Attributes:
        off: Switches it off in a block.
        place: What leaves the package where it gains too little.
        kinds: Of work that it serves.
    """

    off: Callable[[], Off]
    place: str
    kinds: tuple[str, ...] = TRAINED


@contextlib.contextmanager
def replaced(name: str, value: Any, *owners: Any) -> Iterator[None]:
    """Have another value under a name of some modules while the block runs."""
    before = [getattr(owner, name) for owner in owners]
    for owner in owners:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, one in zip(owners, before, strict=True):
            setattr(owner, name, one)


def nowhere(size: int, device: object) -> bool:
    """Say that nothing fits on a device."""
    return False


def unfused(*given: Any, fused: bool, **named: Any) -> torch.optim.Optimizer:
    """Return AdamW as PyTorch makes it by default."""
    return _AdamW(*given, **named)


WAYS = {
    "products in bfloat16": Way(
        lambda: replaced("usual_precision", lambda device: "float32", recipe),
        "tuning/recipe.py: usual_precision",
    ),
    "compiled blocks": Way(
        lambda: replaced("block", dual.block_of, compiled), "tuning/compiled.py: compiles, block"
    ),
    "one pass for values and tangents": Way(
        lambda: replaced("passes", lambda *given: None, dual),
        "tuning/dual.py, and compiled blocks, which are its functions",
    ),
    "recorded steps": Way(
        lambda: replaced("records", lambda *given: False, compiled),
        "tuning/compiled.py: records, Replayed",
    ),
    "a fused optimiser": Way(
        lambda: replaced("AdamW", unfused, torch.optim), "tuning/session.py: fused"
    ),
    "losses read together": Way(
        lambda: replaced("EVERY", 1, session), "tuning/session.py: EVERY, and Journal's list"
    ),
    "a thread that writes": Way(
        lambda: replaced("LARGE", 2**62, writing), "storage/writing.py: the thread"
    ),
    "tensors that stay on the card": Way(
        lambda: replaced("fits", nowhere, placement, sys.modules[Edited.__module__]),
        "storage/placement.py: resident, fits",
        KINDS,
    ),
    "one kernel for all weights": Way(
        lambda: replaced("_FUSED", (), sums), "sums.py: _FUSED", (EVALUATED,)
    ),
    "passes without derivatives": Way(
        lambda: replaced("passes", lambda encoder, **given: encoder, inference),
        "models/inference.py: passes",
        (EVALUATED,),
    ),
    "patches embedded once": Way(
        lambda: replaced("from_patches", lambda encoder: None, inference),
        "models/inference.py: from_patches",
        (EVALUATED,),
    ),
}


def gains(rows: list[Row], *, decide: bool = True) -> list[str]:
    """Return a line for each way of being fast: what it gains, and what leaves if that is little.

    Args:
        rows: Measurements of one card and commit.
        decide: Whether anything leaves; a rehearsal decides nothing.
    """
    seconds = {row["name"]: row["seconds"] for row in rows if "failed" not in row}
    told = []
    for way, about in WAYS.items():
        found = {
            kind: seconds[f"without {way}, {kind}"] / seconds[f"{ALL}, {kind}"]
            for kind in about.kinds
            if {f"without {way}, {kind}", f"{ALL}, {kind}"} <= seconds.keys()
        }
        if found:
            each = ", ".join(f"{kind} {gain:.2f}" for kind, gain in found.items())
            leaves = decide and max(found.values()) < LEAST and len(found) == len(about.kinds)
            told.append(f"{way}: {each}" + f"; leaves: {about.place}" * leaves)
    return told


def paths(size: Any, device: str) -> Iterator[tuple[str, float, Callable[[], Row]]]:
    """Yield a job for each way of being fast that is switched off, and one for all of them.

    Args:
        size: How much is measured (`card.Size`).
        device: Where.
    """
    usual = Way(contextlib.nullcontext, "", KINDS)
    for way, about in {ALL: usual, **{f"without {one}": of for one, of in WAYS.items()}}.items():
        for kind in about.kinds:

            def measure(off: Callable[[], Off] = about.off, kind: str = kind) -> Row:
                with off(), tempfile.TemporaryDirectory() as store:
                    lab = Lab(
                        size.small, init="random", device=device, steps=size.run_steps,
                        store_root=store, suite="mini", progress=False,
                    )  # fmt: skip
                    do = evaluated if kind == EVALUATED else trained
                    return {"seconds": do(lab, size.runs, kind)}

            yield f"{way}, {kind}", 120.0, measure


def trained(lab: Lab, runs: int, method: str) -> float:
    """Return the seconds of a run of fine-tuning, written to the disk.

    Args:
        lab: Of the model.
        runs: How many are timed, a task each.
        method: Of fine-tuning.
    """
    names = lab.suite.names[:runs]
    lab.tune(names[0], method, 1)  # compiled, and libraries loaded
    began = time.perf_counter()
    for name in names:
        lab.tune(name, method, 0)
    writing.finish()
    return (time.perf_counter() - began) / len(names)


def evaluated(lab: Lab, runs: int, kind: str) -> float:
    """Return the seconds of test accuracies at three coefficients, and of a 3 x 3 error map.

    Args:
        lab: Of the model.
        runs: Tasks whose accuracies are computed.
        kind: `EVALUATED`.
    """
    evaluator, draw = lab.evaluator, torch.Generator().manual_seed(0)
    shapes = {name: x.shape for name, x in lab.clip.encoder.params.items()}
    vectors = {
        task: TaskVector({n: 1e-3 * torch.randn(of, generator=draw) for n, of in shapes.items()})
        for task in lab.suite.names[:2]
    }
    one = next(iter(vectors.values()))
    evaluator.evaluate(one, lab.suite.names[0], "val", 1.0)  # libraries loaded
    began = time.perf_counter()
    for name in lab.suite.names[:runs]:
        evaluator.evaluate(one, name, "test", (0.25, 0.5, 0.75))
    at = {"linear": False, "alphas": (-1.0, 0.5, 1.0), "progress": False}
    disentanglement.error_map(evaluator, vectors, **at)
    return time.perf_counter() - began
