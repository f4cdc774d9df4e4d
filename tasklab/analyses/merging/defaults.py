"""Coefficients to begin with, predicted from the number of vectors and their length.

Coefficients that validation images chose in the recorded runs of both drawn worlds follow, by
method,

    ln alpha = level + number ln(n / 8) + beyond max(0, ln(n / 8))² + length ln(r / 0.08)
               + size ln(P / 2,734,848) + way w,

where n is the number of vectors, r the mean of |tau_t| / |theta_0|, P the number of parameters, and
w is 1 for vectors that were fine-tuned linearized or in attention only, else 0. `defaults.csv` has
the terms and their spread, fitted by `benchmarks/coefficients.py`. The recommendation is 0.75
spreads below: too long a vector costs about twice as much as too short a one.
Other networks were not measured: there a coefficient is only a start.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from tasklab.errors import TasklabError

if TYPE_CHECKING:
    from torch import Tensor

    from tasklab.taskvector import TaskVector

FILE = "defaults.csv"
EIGHT, USUAL = 8, 0.08  # number of vectors, and their relative length, at which `level` holds
LENGTHS = (0.02, 0.16)  # recorded ones; shorter vectors are not extrapolated to
SIZES = (836_864, 2_734_848)  # parameters of recorded networks; others count as the nearest
BELOW = 0.75  # spreads that are recommended below what was fitted
UNSURE = 0.6  # spread of ln alpha from which on no coefficient is recommended


@dataclasses.dataclass(frozen=True)
class Known:
    """Properties of vectors from which a coefficient is predicted."""

    count: int
    relative: float = USUAL  #: Mean length over that of the weights that they start from
    size: int = SIZES[1]  #: Number of parameters
    partly: bool = False  #: Whether they were fine-tuned linearized, or in attention only

    @classmethod
    def of(
        cls, vectors: Collection[TaskVector], theta0: Mapping[str, Tensor], method: str = ""
    ) -> Known:
        """Measure vectors against the weights that they start from.

        Args:
            vectors: Task vectors of one model.
            theta0: Its pre-trained parameters.
            method: How the vectors were fine-tuned; empty if not known.
        """
        lengths = [vector.norm() for vector in vectors]
        start = math.sqrt(sum(float(x.detach().double().square().sum()) for x in theta0.values()))
        mean = sum(lengths) / len(lengths)
        size = sum(x.numel() for x in theta0.values())
        partly = method.partition("_")[0] in ("linearized", "attention")
        return cls(len(lengths), mean / start if start and mean else USUAL, size, partly)


class Default(NamedTuple):
    """The fit of a merge's coefficient."""

    level: float
    number: float
    beyond: float
    length: float
    size: float
    way: float
    spread: float  #: Standard deviation of ln alpha between recorded settings, around the fit
    settings: int  #: How many: model, kind of fine-tuning, rate and number of vectors
    options: Mapping[int, float]  #: Number of vectors -> value that was chosen most often

    def alpha(self, known: Known | int) -> float:
        """Return the coefficient for some vectors, or for a number of them of the usual length."""
        of = known if isinstance(known, Known) else Known(known)
        n = math.log(max(of.count, 2) / EIGHT)
        r = math.log(max(of.relative, LENGTHS[0]) / USUAL)
        s = math.log(min(max(of.size, SIZES[0]), SIZES[1]) / SIZES[1])
        fitted = self.level + self.number * n + self.beyond * max(0.0, n) ** 2
        fitted += self.length * r + self.size * s + self.way * of.partly
        return math.exp(fitted - BELOW * self.spread)

    def option(self, count: int) -> float | None:
        """Return the option's value at the nearest recorded number; `None` if it has none."""
        if not self.options:
            return None
        return self.options[min(self.options, key=lambda n: abs(math.log(n / count)))]


def of(name: str) -> Default:
    """Return the recommended values of a method, given by its name.

    Raises:
        TasklabError: If recorded coefficients of it differ too much to recommend one.

    >>> 0.1 < of("arithmetic").alpha(8) < 0.3, of("ties").alpha(20) < of("ties").alpha(8)
    (True, True)
    """
    if not known(name):
        raise TasklabError(
            f"{name} has no recommended coefficient: its best one differs too much between "
            "recorded settings. Give alpha (--alpha), or let validation images choose it (search, "
            "--search)."
        )
    return _table()[name]


def known(name: str) -> bool:
    """Return whether a coefficient is recommended for a method."""
    return name in _table() and _table()[name].spread <= UNSURE


@functools.cache
def _table() -> dict[str, Default]:
    text = resources.files(__package__).joinpath(FILE).read_text("utf-8")
    found = {}
    for row in csv.DictReader(text.splitlines()):
        pairs = (pair.split(":") for pair in row["options"].split())
        terms: dict[str, Any] = {name: float(row[name]) for name in Default._fields[:7]}
        found[row["merge"]] = Default(
            **terms,
            settings=int(row["settings"]),
            options={int(count): float(value) for count, value in pairs},
        )
    return found
