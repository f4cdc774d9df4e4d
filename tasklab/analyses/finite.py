"""Refuse numbers that are not finite before they are scored: `argmax` of NaN is a class, too.

Every check is one reduction over a batch, and its error says what is wrong and where.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

import tasklab
from tasklab.errors import TasklabError, shown

if TYPE_CHECKING:  # what looks at tables alone needs no torch, which takes seconds to load
    from torch import Tensor

LARGEST = 1e6  # no coefficient of a task vector is larger: sums in float32 would lose theta_0
Numbers = TypeVar("Numbers", "Tensor", np.ndarray, float)


def finite(values: Numbers, subject: str) -> Numbers:
    """Return numbers, or raise a `TasklabError` if one of them is NaN or infinite.

    Args:
        subject: A name for the message, in the plural: "the features of task 'Textures'".
    """
    found = values.isfinite() if hasattr(values, "isfinite") else np.isfinite(values)
    if not bool(found.all()):
        raise TasklabError(
            f"{subject} are not all finite: look for NaN, infinite or huge numbers in the task "
            "vectors, coefficients and weights behind them."
        )
    return values


def finite_array(values: object, subject: str) -> np.ndarray:
    """Return numbers as an array in float64, or raise a `TasklabError` unless all are finite."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":  # an array of texts would be read as numbers
            raise TypeError
    except (TypeError, ValueError):
        raise TasklabError(f"{subject} must be numbers, not {shown(str(values))}.") from None
    return finite(array.astype(float, copy=False), subject)


def finite_rows(features: Tensor, subject: str) -> Tensor:
    """Return features (N, D), or raise if the length of one of them is not finite.

    A length overflows where no single number does; scaled to unit length, such features would be 0.
    """
    finite(features.norm(dim=-1), subject)
    return features


def as_coefficient(value: Any, name: str = "a coefficient") -> float:
    """Return a coefficient as a float, or raise unless it is a number from -1e6 to 1e6.

    >>> as_coefficient(1)
    1.0
    """
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not abs(number) <= LARGEST:
        raise TasklabError(
            f"{name} must be a finite number from -1e6 to 1e6, not {shown(str(value))}."
        )
    return number


def is_several(value: object) -> bool:
    """Return whether a value is a list, an array or a tensor of numbers, and not one of them."""
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return listed or getattr(value, "ndim", 0) > 0


def as_coefficients(values: object, name: str = "alphas") -> tuple[float, ...]:
    """Return coefficients as floats, or raise unless they are a list of numbers, at least one."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TasklabError(f"{name} must be a list of numbers, not {shown(str(values))}.")
    numbers = tuple(as_coefficient(value, f"each of {name}") for value in values)
    if not numbers:
        raise TasklabError(f"{name} must be a list of at least one number.")
    return numbers


def check_grid(alphas: Sequence[float]) -> None:
    """Raise a `TasklabError` unless the coefficients are numbers in strictly ascending order."""
    if (np.diff(as_coefficients(alphas)) <= 0).any():
        raise TasklabError(
            "alphas must ascend without repeats, e.g. 0, 0.05, ..., 1; got "
            f"{shown(str(list(alphas)))}."
        )


def check_vectors(vectors: object) -> None:
    """Raise a `TasklabError` unless these are task vectors by the task's name, at least one."""
    if not isinstance(vectors, Mapping) or isinstance(vectors, tasklab.TaskVector):
        raise TasklabError(
            f"task vectors are given by their tasks' names, e.g. {{'Textures': vector}}, not as "
            f"{type(vectors).__name__}."
        )
    for task, vector in vectors.items():
        if not isinstance(vector, tasklab.TaskVector):
            raise TasklabError(
                f"what is given for task {shown(str(task))} is no TaskVector but "
                f"{type(vector).__name__}."
            )
    if not vectors:
        raise TasklabError("there is nothing to add or compare: give at least one task vector.")
