"""Two tasks on a ring: a kernel whose eigenfunctions are not localized cannot add them.

Data lie uniformly on a ring, x = (cos a, sin a). The neural tangent kernel of a fully connected
network then depends on the difference of the angles only: its matrix is circulant, the fast Fourier
transform gives its eigenvalues, and its eigenfunctions are Fourier atoms, which are nowhere zero
and linearly independent on every arc. By proposition 3 of the tangent paper (appendix C) such a
kernel cannot do task arithmetic for tasks on the two half rings D_1 and D_2. The same kernel, cut
between the halves, has localized eigenfunctions and can (proposition 2).

The network has one hidden layer of infinite width, f(x) = sqrt(2/m) sum_j v_j relu(w_j · x) with
standard normal w_j, v_j. Its kernel and its eigenvalues are known,

    k(a) = 2 cos(a) (pi - a) / pi + sin(a) / pi,                          0 <= a <= pi,
    c_0 = 6 / pi²,   c_1 = 1/2,   c_n = (2 / pi²) (n² + 3) / (n² - 1)²   for even n,   else 0,

so that what is learnt on D_1 is fixed on D_2: apart from the first harmonic it repeats itself half
a turn later.

Letters: N points on the ring, half of them in each task.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from tasklab.errors import TasklabError, whole
from tasklab.models.heads import Head
from tasklab.tuning.tangent import Params

KERNELS = ("ring", "block")


def angles(points: int) -> Float[ndarray, " N"]:
    """Return an even number of equally spaced angles; the first half of them is D_1.

    >>> angles(4) / np.pi
    array([0. , 0.5, 1. , 1.5])
    """
    if whole("the even number of points", points, 4) % 2:
        raise TasklabError(f"two half rings need an even number of points, not {points}.")
    return 2 * np.pi * np.arange(points) / points


def kappa0(u: ndarray) -> ndarray:
    """Return the arc-cosine kernel of order 0, 2 E[1(w·x > 0) 1(w·x' > 0)], for x·x' = u."""
    return 1 - np.arccos(np.clip(u, -1, 1)) / np.pi


def kappa1(u: ndarray) -> ndarray:
    """Return the arc-cosine kernel of order 1, 2 E[relu(w·x) relu(w·x')], for x·x' = u."""
    return u * kappa0(u) + np.sqrt(np.clip(1 - u**2, 0, None)) / np.pi


def ntk(u: ndarray) -> ndarray:
    """Return the tangent kernel u kappa0(u) + kappa1(u) of the network for unit x·x' = u.

    The first term comes from the hidden weights, the second from the output weights.

    >>> ntk(np.array([1.0, 0.0, -1.0])).round(4)
    array([2.    , 0.3183, 0.    ])
    """
    return u * kappa0(u) + kappa1(u)


def ring_kernel(a: Float[ndarray, " N"]) -> Float[ndarray, "N N"]:
    """Return the kernel of the network on the ring: circulant for equally spaced angles."""
    return ntk(np.cos(a[:, None] - a[None, :]))


def block_kernel(a: Float[ndarray, " N"]) -> Float[ndarray, "N N"]:
    """Return the same kernel where both points lie in the same half ring, and 0 elsewhere."""
    first = np.arange(len(a)) < len(a) // 2
    return ring_kernel(a) * (first[:, None] == first[None, :])


def eigenfunctions(kernel: Float[ndarray, "N N"], count: int) -> Float[ndarray, "N count"]:
    """Return the eigenvectors of the largest eigenvalues, scaled to a mean square of 1.

    Any mixture of those with equal eigenvalues would do. A weight on D_1, too small to be seen in
    the values, prefers those on one half, if any exist.
    """
    first = np.arange(len(kernel)) < len(kernel) // 2
    _, vectors = np.linalg.eigh(kernel + np.diag(1e-7 * first))
    return vectors[:, ::-1][:, :count] * np.sqrt(len(kernel))


def fit(
    kernel: Float[ndarray, "N N"], inside: ndarray, y: Float[ndarray, " n"]
) -> Float[ndarray, " N"]:
    """Return on the whole ring the function of least norm that is `y` inside a task's support.

    Training the linearized network from zero on that task converges to it.

    Args:
        kernel: On all points.
        inside: Numbers of the n points of the task.
        y: Targets at the n points.
    """
    return kernel[:, inside] @ np.linalg.solve(kernel[np.ix_(inside, inside)], y)


class Sum(NamedTuple):
    """Two tasks learnt apart and added."""

    targets: Float[ndarray, " N"]  #: f_1* on D_1 and f_2* on D_2, in one array
    fits: Float[ndarray, "2 N"]  #: Each task's fit on the whole ring, in rows
    alone: Float[ndarray, " 2"]  #: Relative error of each fit on its own task
    #: Relative error of the sum on each task: the root mean square of the other fit there, over
    #: that of the task's own function.
    added: Float[ndarray, " 2"]


def add_tasks(kernel: Float[ndarray, "N N"]) -> Sum:
    """Learn f_1* = cos 2a on D_1 and f_2* = sin 2a on D_2 from their own points, and add the fits.

    With the ring kernel and many points the fits are known on the other half:

        f_1(a) = cos 2a + 2 B sin a    on D_2,    B = -(3 pi / 7) / (1 + pi coth(pi √3/2) / √3),
        f_2(a) = sin 2a                on D_1,

    (B is the first harmonic that makes the norm least), so the errors of the sum are 100 % on D_1
    and 105 % on D_2. With the block kernel they are 0.
    """
    a = angles(len(kernel))
    first = np.arange(len(a)) < len(a) // 2
    targets = np.where(first, np.cos(2 * a), np.sin(2 * a))
    supports = (first, ~first)
    fits = np.stack([fit(kernel, np.flatnonzero(inside), targets[inside]) for inside in supports])

    def error(values: ndarray, inside: ndarray) -> float:
        missed = np.mean((values - targets)[inside] ** 2)
        return float(np.sqrt(missed / np.mean(targets[inside] ** 2)))

    return Sum(
        targets=targets,
        fits=fits,
        alone=np.array([error(*pair) for pair in zip(fits, supports, strict=True)]),
        added=np.array([error(fits.sum(0), inside) for inside in supports]),
    )


def table(points: int = 200, count: int = 4) -> pd.DataFrame:
    """Compute the example of `tasklab.evidence.figures.ring`, for both kernels.

    Returns:
        Columns `kernel` (of `KERNELS`), `metric`, `subset`, `x`, `value`. By metric:
        `eigenfunction`, `x` an angle in degrees, `subset` its number from 1; `target`, `fit`
        (`subset` the task, 1 or 2) and `sum`, likewise over the angle; `alone` and `added`,
        relative errors in % for each task.
    """
    a, count = angles(points), whole("count", count, 1)
    parts = []

    def note(kernel: str, metric: str, subset: str, x: ndarray | float, value: ndarray | float):
        columns = {"x": np.atleast_1d(x), "value": np.atleast_1d(value)}
        part = pd.DataFrame(columns)
        parts.append(part.assign(kernel=kernel, metric=metric, subset=subset))

    for name, kernel in zip(KERNELS, (ring_kernel(a), block_kernel(a)), strict=True):
        degrees, added = np.degrees(a), add_tasks(kernel)
        for i, values in enumerate(eigenfunctions(kernel, count).T, 1):
            note(name, "eigenfunction", str(i), degrees, values)
        note(name, "target", "", degrees, added.targets)
        note(name, "sum", "", degrees, added.fits.sum(0))
        for task in (0, 1):
            note(name, "fit", str(task + 1), degrees, added.fits[task])
            note(name, "alone", str(task + 1), np.nan, 100 * added.alone[task])
            note(name, "added", str(task + 1), np.nan, 100 * added.added[task])
    return pd.concat(parts, ignore_index=True)[["kernel", "metric", "subset", "x", "value"]]


class Network(NamedTuple):
    """The network at a finite width, ready for `tasklab.analyses.kernels.gram`."""

    params: dict[str, Float[Tensor, ...]]
    head: Head

    def __call__(self, params: Params, x: Float[Tensor, "B 2"]) -> Float[Tensor, "B 1"]:
        """Return sqrt(2/m) sum_j v_j relu(w_j · x)."""
        hidden = torch.relu(x @ params["w"].T)
        return (hidden @ params["v"])[:, None] * (2 / len(params["v"])) ** 0.5


def network(width: int, seed: int = 0) -> Network:
    """Return the network with random weights; its kernel tends to `ring_kernel` as 1/√width."""
    draw, width = torch.Generator().manual_seed(seed), whole("width", width, 1)
    w = torch.randn(width, 2, generator=draw, dtype=torch.float64)
    v = torch.randn(width, generator=draw, dtype=torch.float64)
    head = Head(torch.ones(1, 1, dtype=torch.float64), normalise=False)
    return Network({"w": w, "v": v}, head)
