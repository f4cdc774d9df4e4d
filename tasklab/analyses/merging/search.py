"""Options and coefficient of a merge, chosen on validation images by one rule and one budget.

Every method may look equally often at the accuracy on validation images, `BUDGET` times:

1. once for each value of its option, if it has one (`Method.searched`), at the coefficient c* that
   is best in the tangent model (`best.span`), so that methods whose results differ in length by
   orders of magnitude are searched alike (where c* is below 0 its size counts);
2. with what is left, for the best of these values, at multiples of c* from `LOW` to `HIGH`, evenly
   on a logarithmic scale.

The best look is taken; of equals, the smaller coefficient and the earlier value. A look may end
where it is surely below the best so far (`looks`): multiples near c* come first. A method without
an option has a finer grid of coefficients instead.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from tasklab.errors import TasklabError, whole
from tasklab.taskvector import TaskVector

BUDGET = 12  # looks at validation images; the experiments' presets may have another one for all
LOW, HIGH = 0.25, 2.5  # of c*

Option = float | None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What validation chose."""

    vector: TaskVector  #: The merge, before its coefficient
    alpha: float
    option: Option  #: The value behind the vector, if its method has an option
    scale: float  #: The size of c*, the coefficient that is best in the tangent model
    #: E(c* tau) / E(0) there (`best.relative`); 1 where c* is not above 0, as no coefficient above
    #: 0 is better than none.
    objective: float
    trials: int  #: How often validation images were looked at


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
        look: The vector, a coefficient and the best score so far -> what is to be as large as
            possible on validation images; anything below the best stands for all that is.

    >>> one = TaskVector({})
    >>> score = lambda _, alpha, least: -abs(alpha - 3.0)
    >>> choice = choose(lambda _: one, (None,), lambda _: (2.0, 0.5), score, budget=3)
    >>> round(choice.alpha, 2), choice.trials  # of 0.5, 1.58 and 5
    (1.58, 3)
    """
    first = len(options) if len(options) > 1 else 0
    left = whole("budget", budget, 1) - first
    if left < 1:
        raise TasklabError(
            f"a budget of {budget} looks at validation images is too small for {len(options)} "
            "values of an option and one coefficient more."
        )
    best, chosen = -math.inf, None
    for option in options:
        vector = None  # unless it is the best so far: a third would be one too many in memory
        vector = make(option)
        scale, objective = place(vector)
        if not scale > 0:
            scale, objective = abs(scale) or 1.0, 1.0
        score = look(vector, scale, best) if first else 0.0
        if chosen is None or score > best:
            best, chosen = score, (vector, option, scale, objective)
    assert chosen is not None, "there is always one option"
    vector, option, scale, objective = chosen
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
