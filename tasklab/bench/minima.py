"""Merges that are solved for on images, as further merges of a bench (`merging`).

Those of least E(tau) over all weights (`LEAST`), and those that are trained (`DISTILLED`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tasklab import machine
from tasklab.analyses.merging import METHODS, best, distilling, matching, merge, minimum
from tasklab.errors import TasklabError
from tasklab.storage.store import Artifact
from tasklab.tasks import drawn
from tasklab.taskvector import TaskVector
from tasklab.tuning import kronecker, tangent

Bench = Any  # a `merges.Bench`, which is above this module
CACHE_VERSION = 2  # part of every key: raise it when the same configuration gives other numbers
KIND = "minimum"  # of artifact
LEAST = {"least_few": "features"} | {f"least_{metric}": metric for metric in best.METRICS}
#: Gradient steps on weights, or on coefficients of each block; steps of conjugate gradients. All
#: read the images of `least_few`, and keep of their looks that of least loss of features.
DISTILLED = {"distillation": 320, "prodistill": 320, "mats": matching.COUNTS[-1]}
MINIMA = (*LEAST, *DISTILLED)
FEW = 256  # images of each task
CHECKED = 250  # validation images of each task, at most, for early stopping
_ALL = 2**31
MOST = 4096  # training images of each task, which are in memory together


def effort(bench: Bench, name: str) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return epochs of steps on batches, then images of each task and steps of each round.

    `least_few` has the images that RegMean reads, in both presets. In the metric of logits, and
    where tasks count alike, batches are too noisy. `DISTILLED` takes one round of gradient
    steps.
    """
    lab = bench.trial.lab
    if name in DISTILLED:
        return 0, ((2, 1) if lab.rehearsal else (FEW, DISTILLED[name]),)
    if lab.rehearsal:
        return 1, ((2, 1),)
    if lab.parameters.preset == "quick" and name != "least_few":
        return 0, ((64, 4), (256, 4))
    full: dict[str, tuple[int, tuple[tuple[int, int], ...]]] = {
        "least_few": (0, ((FEW, 20),)),
        "least_features": (4, ((_ALL, 3),)),
        "least_logits": (0, ((512, 12), (_ALL, 5))),
    }
    return full.get(name, (0, ((_ALL, 3),)))


def _sizes(bench: Bench, name: str) -> list[int]:
    images, most = drawn.images_of(bench.trial.lab.suite), effort(bench, name)[1][-1][0]
    return [min(images.size(task, "train"), most, MOST) for task in bench.tasks]


def memory(bench: Bench, name: str) -> int:
    """Return about how many bytes a solution takes, 0 if it is in the store; raise if it cannot."""
    lab = bench.trial.lab
    if lab.store.has(KIND, _config(bench, name)):
        return 0
    encoder = lab.clip.encoder
    images = sum(_sizes(bench, name)) * 3 * encoder.image_size**2
    needed = images + minimum.size(next(iter(bench.vectors.values())))
    room = machine.free_on(str(encoder.device))
    if room is not None and needed > room:
        takes, free = machine.too_large(needed, room)
        raise TasklabError(
            f"{name} takes {takes} of memory to solve for, and {free} are free on "
            f"{encoder.device}: end other programs, or choose another merge."
        )
    return needed


def solved(bench: Bench, name: str) -> Artifact:
    """Return a solution (one of `MINIMA`) from the store, or solve; its record has the steps."""
    config = _config(bench, name)
    return bench.trial.lab.store.get(KIND, config, lambda _: _solve(bench, name))


def _config(bench: Bench, name: str) -> dict[str, Any]:
    trial, lab = bench.trial, bench.trial.lab
    data, heads = drawn.images_of(lab.suite), map(trial.evaluator.head, bench.tasks)
    return {
        "algorithm": CACHE_VERSION,
        **({"metric": LEAST[name]} if name in LEAST else _recipe(name)),
        "effort": effort(bench, name),
        "images": lab.scale.counts.get("val"),
        **lab.clip.identity,
        "vectors": {task: vector.fingerprint() for task, vector in bench.vectors.items()},
        "heads": [TaskVector({"head": head.weight}).fingerprint() for head in heads],
        "data": [data.version(task, s) for task in bench.tasks for s in ("train", "val")],
    }


def _recipe(name: str) -> dict[str, Any]:
    """Return the entries of the key of a merge that is trained, beside its effort."""
    if name == "distillation":
        return {"trained": name, "rates": distilling.RATES, "batch": distilling.BATCH}
    if name == "mats":
        return {"trained": name, "counts": matching.COUNTS}
    rates, start = distilling.COEFFICIENT_RATES, distilling.START
    return {"trained": name, "rates": rates, "batch": distilling.BATCH, "start": start}


def _distil(bench: Bench, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Train from TSV-M at its best coefficient in the tangent model, or all coefficients.

    MaTS starts from the sum at its best coefficient.
    """
    trial, evaluator, encoder = bench.trial, bench.trial.evaluator, bench.trial.lab.clip.encoder
    if trial.linear:
        raise TasklabError(f"{name} trains the network itself: least_few is for linearized models.")
    (_, steps), vectors = effort(bench, name)[1][0], list(trial.vectors_on_device.values())
    images = [*map(bench.images, bench.tasks, _sizes(bench, name))]
    seen = [evaluator.images(task, "val").x[:CHECKED] for task in bench.tasks]
    parts, checks = (
        [
            minimum.Part(x, distilling.features(encoder, tau, x), best.Metric())
            for tau, x in zip(vectors, each, strict=True)
        ]
        for each in (images, seen)
    )
    shared: dict[str, Any] = {"steps": steps, "progress": trial.lab.progress}
    if name == "prodistill":
        found = distilling.progressive(encoder, vectors, parts, checks, **shared)
    else:
        start = merge("arithmetic" if name == "mats" else "tsv_m", bench.vectors)
        first = bench.place(start)[0] * start
    if name == "mats":
        heads = [evaluator.head(task) for task in bench.tasks]
        factors = [
            kronecker.fisher(encoder, head, x, params=tau.apply(encoder.params))
            for head, x, tau in zip(heads, images, vectors, strict=True)
        ]
        looks = [first, *matching.mats(vectors, factors, first)]
        found = distilling.looked(encoder, looks, parts, checks)
    elif name == "distillation":
        found = distilling.distilled(encoder, parts, first, checks, **shared)
    zero = TaskVector({key: torch.zeros_like(x) for key, x in found.vector.items()})
    record: dict[str, Any] = {"residual": []}
    for key, some in (("objective", parts), ("checked", checks)):
        unedited = [distilling.features(encoder, zero, one.images) - one.own for one in some]
        whole = best.total(unedited, [one.metric for one in some])
        record[key] = [value / whole for value in getattr(found, key)]
    return {key: x.cpu() for key, x in found.vector.items()}, record


def _solve(bench: Bench, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Go to the minimum from RegMean, or from that in features, at its best coefficient."""
    memory(bench, name)
    if name in DISTILLED:
        return _distil(bench, name)
    trial, evaluator, encoder = bench.trial, bench.trial.evaluator, bench.trial.lab.clip.encoder
    heads = [evaluator.head(task) for task in bench.tasks]
    metric, (epochs, rounds), size = LEAST[name], effort(bench, name), evaluator.parts.size
    images = [*map(bench.images, bench.tasks, _sizes(bench, name))]
    features = [
        tangent.features(encoder, encoder.params, vector, x, size)
        for vector, x in zip(trial.vectors.values(), images, strict=True)
    ]
    seen = [evaluator.images(task, "val").x for task in bench.tasks]
    by = bench.metrics(metric)
    checks = [one.first(CHECKED) for one in _parts(seen, bench.features, by)]
    parts = _parts(images, features, best.metrics(metric, features, heads))
    if metric == "normalised":
        start = bench.merged("least_features")
    else:
        rule = METHODS["regmean"]
        start = merge("regmean", bench.vectors, **bench.statistics("regmean"), **rule.fixed)
    found = minimum.minimum(
        encoder, parts, bench.place(start, by)[0] * start, checks,
        epochs=epochs, rounds=rounds, factors=bench.sizes["grams"], batch_size=size,
        progress=trial.lab.progress,
    )  # fmt: skip
    values = {"objective": found.objective, "checked": found.checked}
    record = {"residual": list(found.residual)}
    for (key, each), some in zip(values.items(), (parts, checks), strict=True):
        zero = best.total([one.own for one in some], [one.metric for one in some])
        record[key] = [value / zero for value in each]
    return {name: x.cpu() for name, x in found.vector.items()}, record


def _parts(
    images: Sequence[Tensor], features: Sequence[tangent.TangentFeatures], by: Sequence[best.Metric]
) -> list[minimum.Part]:
    each = zip(images, features, by, strict=True)
    return [minimum.Part(x, one.jtau, metric) for x, one, metric in each]
