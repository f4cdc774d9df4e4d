"""Options and coefficient of a merge, chosen on validation images by one rule and one budget.

Every method may look equally often at the accuracy on validation images, `BUDGET` times:

1. once for each value of its option, if it has one (`Method.searched`), at the coefficient c* that
   is best in the tangent model (`best.span`), so that methods whose results differ in length by
   orders of magnitude are searched alike (where c* is below 0 its size counts);
2. with what is left, for the best of these values, at multiples of c* from `LOW` to `HIGH`, evenly
   on a logarithmic scale.

The best look is taken; of equals, the smaller coefficient and the earlier value. A method without
an option has a finer grid of coefficients instead.

A look may end where it is surely below the best so far (`Looks`): with every image that is left
counted as right, the score is an upper bound. Multiples near c* are tried first. The choice equals
that of whole looks.

`choose` is that rule, which recorded numbers have. With few images, the best of several noisy
accuracies is a lucky one: `smoothly` looks as often, and takes the coefficient at which a smooth
curve through all looks is highest (`smooth`).

Letters: T tasks, N images.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tasklab.analyses.edited import line
from tasklab.analyses.evaluation import Evaluator
from tasklab.analyses.merging import smooth
from tasklab.errors import TasklabError, whole
from tasklab.isolation import isolated
from tasklab.taskvector import TaskVector

BUDGET = 12  # looks at validation images; the experiments' presets may have another one for all
LOW, HIGH = 0.25, 2.5  # of c*
ROUNDS = 5  # parts of each task's images; after each of them a look may end

Option = float | None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """A merge chosen on validation images."""

    vector: TaskVector  #: The merge, before its coefficient
    alpha: float
    option: Option  #: The value behind the vector, if its method has an option
    scale: float  #: The size of c*, the coefficient that is best in the tangent model
    #: E(c* tau) / E(0) there (`best.relative`); 1 where c* is not above 0, as no coefficient above
    #: 0 is better than none.
    objective: float
    trials: int  #: How often validation images were looked at


@isolated
def choose(
    make: Callable[[Option], TaskVector],
    options: Sequence[Option],
    place: Callable[[TaskVector], tuple[float, float]],
    look: Callable[[TaskVector, float, float], float],
    *,
    budget: int = BUDGET,
) -> Choice:
    """Choose a merge's option and coefficient.

    Args:
        make: Value of the option -> the merged vector.
        options: The values to try; `(None,)` for a method without.
        place: The vector -> its best coefficient in the tangent model, and E there.
        look: The vector, a coefficient and the best score so far -> the score on validation
            images, to be maximised; a score below the best may be any such number.
        budget: Evaluations of accuracy, at most.

    >>> one = TaskVector({})
    >>> score = lambda _, alpha, least: -abs(alpha - 3.0)
    >>> choice = choose(lambda _: one, (None,), lambda _: (2.0, 0.5), score, budget=3)
    >>> round(choice.alpha, 2), choice.trials  # of 0.5, 1.58 and 5
    (1.58, 3)
    """
    first, left = _shares(options, budget)
    (vector, option, scale, objective), best = _option(make, options, place, look)
    scores = {scale: best} if first else {}
    for c in sorted(np.geomspace(LOW, HIGH, left), key=lambda c: abs(math.log(c))):
        alpha = float(scale * c)
        scores[alpha] = look(vector, alpha, max(scores.values(), default=-math.inf))
    return Choice(
        vector=vector,
        alpha=min(scores, key=lambda a: (-scores[a], a)),
        option=option,
        scale=scale,
        objective=objective,
        trials=left + first,
    )


@isolated
def smoothly(
    make: Callable[[Option], TaskVector],
    options: Sequence[Option],
    place: Callable[[TaskVector], tuple[float, float]],
    look: Callable[[TaskVector, float], float],
    *,
    images: float,
    budget: int = BUDGET,
) -> Choice:
    """Choose a merge's option and coefficient by a smooth curve through all looks.

    Args:
        make: As `choose` takes it; so are `options` and `budget`.
        options: The merge's options.
        place: The vector -> the coefficient that is expected to be its best one, and E there.
        look: The vector and a coefficient -> its mean accuracy in % on validation images.
        images: Number of validation images, all tasks together.
        budget: Evaluations of accuracy, at most.

    >>> one = TaskVector({})
    >>> score = lambda _, alpha: 70.0 - 5.0 * abs(alpha - 1.6)
    >>> choice = smoothly(lambda _: one, (None,), lambda _: (1.0, 0.5), score, images=1000)
    >>> 1.4 < choice.alpha < 1.7, choice.trials
    (True, 12)
    """
    first, left = _shares(options, budget)
    chosen, best = _option(make, options, place, lambda vector, alpha, _: look(vector, alpha))
    vector, option, scale, objective = chosen
    scores = {scale: best} if first else {}
    for c in np.exp(smooth.places(left, known=first > 0)):
        alpha = float(scale * c)
        scores[alpha] = look(vector, alpha)
    found = smooth.peak(list(scores), list(scores.values()), center=scale, images=images)
    return Choice(
        vector=vector,
        alpha=found.alpha,
        option=option,
        scale=scale,
        objective=objective,
        trials=left + first,
    )


def _shares(options: Sequence[Option], budget: int) -> tuple[int, int]:
    """Return the numbers of looks that choose the option, and the coefficient."""
    first = len(options) if len(options) > 1 else 0
    left = whole("budget", budget, 1) - first
    if left < 1:
        raise TasklabError(
            f"a budget of {budget} looks at validation images is too small for {len(options)} "
            "values of an option and one coefficient more."
        )
    return first, left


def _option(
    make: Callable[[Option], TaskVector],
    options: Sequence[Option],
    place: Callable[[TaskVector], tuple[float, float]],
    look: Callable[[TaskVector, float, float], float],
) -> tuple[tuple[TaskVector, Option, float, float], float]:
    """Return the vector, option, scale and objective of the best option, and its score."""
    best, chosen = -math.inf, None
    for option in options:
        vector = None  # unless it is the best so far: a third would be one too many in memory
        vector = make(option)
        scale, objective = place(vector)
        if not scale > 0:
            scale, objective = abs(scale) or 1.0, 1.0
        score = look(vector, scale, best) if len(options) > 1 else 0.0
        if chosen is None or score > best:
            best, chosen = score, (vector, option, scale, objective)
    assert chosen is not None, "there is always one option"
    return chosen, best


class Looks:
    """Scores of edited networks by their accuracy on several tasks.

    Args:
        evaluator: The pre-trained model with its heads and images.
        tasks: Names of T tasks.
        split: `"val"` or `"test"`.
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
