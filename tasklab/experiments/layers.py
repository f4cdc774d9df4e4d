"""What fine-tuning changed, layer by layer: cosines, sizes, and what vectors do to others' data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tasklab.analyses import layers, tangent_gap
from tasklab.analyses.projections import second_moments
from tasklab.experiments.lab import LINEAR, Lab
from tasklab.records import papers
from tasklab.records.table import filled

ALGORITHM = 1  # part of every key: raise it when the same configuration gives other records


def cosines(lab: Lab, methods: Sequence[str]) -> pd.DataFrame:
    """Return cosines between task vectors and their sizes (linear layers, figure 5).

    Args:
        lab: What to study.
        methods: Those that train a vector.

    Returns:
        Records of the experiment `cosines`: the metrics `cosine` of whole vectors, with the other
        task as subset, `cosine_part`, with the columns block and projection too, and `norm`,
        |tau| / |theta_0|.
    """
    rows = []
    for method, seed in lab.grid(methods, "cosines of task vectors"):
        rows += lab.kept(
            "cosines",
            method,
            seed,
            lambda m=method, s=seed: _cosines(lab, m, s),
            layers=ALGORITHM,
        )
    return papers.tidy(rows)


def _cosines(lab: Lab, method: str, seed: int) -> list[dict]:
    vectors = lab.vectors(method, seed)
    theta0 = {name: tensor.cpu() for name, tensor in lab.clip.encoder.params.items()}
    found = layers.cosines(vectors)
    found["subset"] = found["other"]
    whole = found["block"].isna() & (found["projection"] == layers.ALL)
    found["metric"] = np.where(whole, "cosine", "cosine_part")
    return [
        *_rows(lab, "cosines", method, seed, found),
        *_rows(lab, "cosines", method, seed, layers.norms(vectors, theta0), metric="norm"),
    ]


def alignment(lab: Lab, methods: Sequence[str], *, alpha: float = 0.3) -> pd.DataFrame:
    """Return what vectors do to other tasks' data, predicted and measured (proposition 1).

    Args:
        lab: What to study.
        methods: Any of `EDITS`.
        alpha: Coefficient of all vectors, for what is measured; the default is near those that
            addition of eight chooses.

    Returns:
        Records of the experiments `alignment` (as `layers.alignment` describes, with the columns
        part, block and projection) and `interference` (as `layers.interference` does).
    """
    rows, moments = [], {}
    tasks = lab.suite.names[: lab.scale.most_tasks]
    for method, seed in lab.grid(methods, "alignment"):

        def make(method: str = method, seed: int = seed) -> list[dict]:
            encoder, evaluator = lab.clip.encoder, lab.evaluator_of(method, seed)
            for task in tasks:
                if task not in moments:
                    images = evaluator.images(task, "test").x[: lab.scale.images]
                    found = second_moments(encoder, images)
                    moments[task] = {name: C.float() for name, C in found.items()}  # large
            vectors = {
                task: vector.to(encoder.device)
                for task, vector in lab.vectors(method, seed, tasks).items()
            }
            aligned = layers.alignment(vectors, moments, encoder.params)
            measured = layers.interference(
                evaluator, vectors, aligned, linear=method in LINEAR, alpha=alpha
            )
            return [
                *_rows(lab, "alignment", method, seed, aligned),
                *_rows(lab, "interference", method, seed, measured),
            ]

        rows += lab.kept(
            "alignment",
            method,
            seed,
            make,
            tasks=tasks,
            alpha=alpha,
            images=lab.scale.images,
            layers=ALGORITHM,
        )
    return papers.tidy(rows)


def linear_gaps(
    lab: Lab, methods: Sequence[str], scales: Sequence[float] = tangent_gap.SCALES
) -> pd.DataFrame:
    """Return how far the model is from linear along each task vector (`analyses.tangent_gap`).

    Args:
        lab: What to study.
        methods: Those that train a vector.
        scales: Distances along each vector; 1 is where fine-tuning ended.

    Returns:
        Records of the experiment `linearity`, on test images of the vector's own task: the metrics
        `gap_along` of the features and `gap_block`, with the columns size and block, at every
        distance `alpha`; and `gap`, that of the features at 1.
    """
    rows = []
    for method, seed in lab.grid(methods, "linearity"):

        def make(method: str = method, seed: int = seed) -> list[dict]:
            encoder, found = lab.clip.encoder, []
            for task, vector in lab.vectors(method, seed).items():
                images = lab.evaluator.images(task, "test").x[: lab.scale.images]
                table = tangent_gap.gaps(encoder, vector.to(encoder.device), images, scales)
                table = table.assign(task=task, n=len(images))
                whole = table["block"].isna()
                table["metric"] = np.where(whole, "gap_along", "gap_block")
                end = table[whole & np.isclose(table["alpha"], 1)].assign(metric="gap")
                for part in (table, end):
                    found += _rows(lab, "linearity", method, seed, part)
            return found

        rows += lab.kept(
            "linearity",
            method,
            seed,
            make,
            scales=list(scales),
            images=lab.scale.images,
            gaps=ALGORITHM,
        )
    return papers.tidy(rows)


def _rows(
    lab: Lab, experiment: str, method: str, seed: int, table: pd.DataFrame, **more: str
) -> list[dict]:
    """Return a table's rows as records; what is missing in one is left out there."""
    common = {**lab.row(experiment, method, seed), **more}
    return [{**common, **row} for row in filled(table)]
