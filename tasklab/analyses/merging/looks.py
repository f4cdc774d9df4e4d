"""Evaluations on validation images that stop as soon as they cannot be the best.

A search compares many merged vectors, and keeps the best (`search`). Of another it need only know
that it is worse: with every image that is left counted as right, the score is an upper bound, and
below the best so far the look ends. What is chosen is what whole looks choose.

Letters: T tasks, N images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tasklab.analyses.edited import line
from tasklab.analyses.evaluation import Evaluator
from tasklab.taskvector import TaskVector

ROUNDS = 5  # parts of each task's images; after each of them a look may end


class Looks:
    """Scores of edited networks by their accuracy on several tasks.

    Args:
        score: Of accuracies (T,) in %; it falls with none of them.

    Attributes:
        seen: Images that were passed through a network, in all looks.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        tasks: Sequence[str],
        split: str,
        score: Callable[[Float[np.ndarray, " T"]], float],
    ) -> None:
        self.evaluator, self.tasks, self.split, self.score = evaluator, tuple(tasks), split, score
        self.seen = 0
        self._counts = np.array([evaluator.count(task, split) for task in tasks])
        self._wrong = [np.zeros(count, dtype=int) for count in self._counts]  # in earlier looks

    def __call__(self, vector: TaskVector, alpha: float, least: float = -math.inf) -> float:
        """Return the score, or minus infinity where it is surely below `least`."""
        params = line(self.evaluator.clip.encoder.params, vector).at(alpha)
        rounds = [np.array_split(np.argsort(-w, kind="stable"), ROUNDS) for w in self._wrong]
        most = self._counts.copy()  # right answers, if all that is left is right
        for places in zip(*rounds, strict=True):
            if not any(map(len, places)):  # fewer images than rounds
                continue
            answers = self._answers(params, places, f"split {self.split!r}, coefficient {alpha:g}")
            for t, right in enumerate(answers):
                self._wrong[t][places[t]] += ~right
                most[t] -= (~right).sum()
            self.seen += sum(map(len, places))
            if self.score(100 * (most / self._counts)) < least:
                return -math.inf
        return self.score(100 * (most / self._counts))

    @torch.inference_mode()
    def _answers(
        self, params: Mapping[str, Tensor], places: Sequence[np.ndarray], place: str
    ) -> list[Bool[np.ndarray, " n"]]:
        evaluator = self.evaluator
        images = [evaluator.images(task, self.split) for task in self.tasks]
        encoder = evaluator.passes
        owners = np.repeat(np.arange(len(places)), [len(of_task) for of_task in places])
        index = torch.from_numpy(np.stack([owners, np.concatenate(places)], axis=1))

        def features_of(rows: Tensor) -> Tensor:
            tasks = rows[:, 0].unique().tolist()
            x = [encoder.preprocess(images[t].x[rows[rows[:, 0] == t, 1]]) for t in tasks]
            return encoder(params, torch.cat(x))

        features = torch.cat(list(evaluator.parts(features_of, index)))
        parts = features.split([len(of_task) for of_task in places])
        return [
            (evaluator.logits(part, task, place).argmax(-1) == of.y[at]).cpu().numpy()
            for part, task, of, at in zip(parts, self.tasks, images, places, strict=True)
        ]
