"""Theorem 5.1 of *On the Emergence of Cross-Task Linearity*, measured: curvature and distance.

The theorem bounds how far a scalar function f of the parameters, a loss in appendix C.2, is from
linear between two models that were fine-tuned from the same theta_0:

    delta = |f(a theta_i + (1 - a) theta_j) - a f(theta_i) - (1 - a) f(theta_j)|
         <= a (1 - a) / 2  lambda_max  |theta_i - theta_j|^2  +  higher orders,

lambda_max the norm of the Hessian H of f at theta_0. Two steps lead to the bound, and `pairs` keeps
them apart: with d = theta_i - theta_j, the second order is a (1 - a) / 2 |d' H d| (*second_order*),
which the norm replaces by the worst direction's (*bound*).

Appendix C.2 regresses delta on the bound (R^2 0.903), on lambda_max alone (0.782) and on the
distance alone (0.839). With one checkpoint and one loss lambda_max is constant and explains no
variance, so several must have been pooled there; the text does not name them. `explained_variance`
takes any number of such groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy  # its parts load where they are used, for that takes a second
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from tasklab.analyses.finite import as_coefficient, finite, finite_array
from tasklab.analyses.statistics import REPEATS, drawn_pairs, models_of, pearson, rank_correlation
from tasklab.errors import TasklabError, real
from tasklab.isolation import isolated
from tasklab.models.encoder import math_attention
from tasklab.models.heads import Head
from tasklab.taskvector import TaskVector
from tasklab.tuning.tangent import Model, Params

Scalar = Callable[[Params], Tensor]
KRYLOV = 20  # vectors that the eigenvalue method holds; SciPy's own default
PREDICTORS = ("bound", "curvature", "distance", "second_order")


def loss(encoder: Model, head: Head, x: Tensor, y: Int[Tensor, " B"]) -> Scalar:
    """Return the mean cross-entropy of a fixed batch as a function of the parameters.

    Logits are summed up in float64: a delta is a small difference of losses.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        head: The task's classifier.
        x: Preprocessed images (B, 3, H, W).
        y: Their classes (B,), int64.
    """
    return lambda params: F.cross_entropy(head(encoder(params, x)).double(), y)


def hessian_product(
    f: Scalar, params: Params, names: Collection[str] | None = None
) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    """Return the function v -> H v, with H the Hessian of f at the parameters.

    The gradient is recorded once, every product is a backward pass through that record, which holds
    its memory. Attention takes the math kernel, since fused ones have no second derivative.

    Args:
        f: Parameters -> a scalar.
        params: Parameters by name.
        names: Parameters that vary; by default all. Others have no row in H.
    """
    names = list(params if names is None else names)
    absent = [name for name in names if name not in params]
    if absent:
        raise TasklabError(f"the parameters lack {', '.join(absent[:5])}: check the names.")
    with torch.enable_grad(), math_attention():
        leaves = {name: params[name].detach().requires_grad_() for name in names}
        value = f({**params, **leaves})
        if value.numel() != 1 or not value.requires_grad:
            raise TasklabError("a Hessian needs a scalar that depends on the parameters.")
        inputs = tuple(leaves.values())
        grads = torch.autograd.grad(value, inputs, create_graph=True, materialize_grads=True)
    curved = {name: g for name, g in zip(names, grads, strict=True) if g.requires_grad}

    def product(vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        given = {name: vector[name].to(g) for name, g in curved.items() if name in vector}
        products = torch.autograd.grad(
            [curved[name] for name in given],
            inputs,
            list(given.values()),
            retain_graph=True,
            materialize_grads=True,
        )
        return dict(zip(names, products, strict=True))

    return product


class Curvature(NamedTuple):
    """The eigenvalue of a Hessian that is largest in size."""

    value: float
    #: |H v - value v| / |value| for the unit vector v that was found: an eigenvalue of H lies
    #: within this share of `value`.
    residual: float
    products: int  #: Hessian-vector products that it took

    @property
    def size(self) -> float:
        """The Hessian's norm, lambda_max of theorem 5.1."""
        return abs(self.value)


@isolated
def largest_curvature(
    f: Scalar,
    params: Params,
    *,
    names: Collection[str] | None = None,
    tol: float = 1e-3,
    max_iter: int = 20,
    seed: int = 0,
) -> Curvature:
    """Return the eigenvalue of the Hessian of f that is largest in absolute value.

    SciPy's Lanczos method (`scipy.sparse.linalg.eigsh`) on `hessian_product`. It works in float64
    and holds 20 vectors of the parameters' size; products are in the parameters' own type.

    Args:
        f: Parameters -> a scalar.
        params: Parameters by name.
        names: Parameters that vary, e.g. those that were fine-tuned; by default all.
        tol: Relative accuracy. The eigenvalue's error is about the square of the residual.
        max_iter: Restarts of the method, of about 20 products each.
        seed: Of the start vector.
    """
    product = hessian_product(f, params, names)
    names = list(params if names is None else names)
    shapes = [params[name].shape for name in names]
    sizes = [shape.numel() for shape in shapes]
    count = 0

    def matvec(v: np.ndarray) -> np.ndarray:
        nonlocal count
        count += 1
        parts = torch.from_numpy(np.ascontiguousarray(v, dtype=np.float64).ravel()).split(sizes)
        rows = (part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        image = product(dict(zip(names, rows, strict=True)))
        flat = torch.cat([image[name].double().flatten().cpu() for name in names]).numpy()
        if not np.isfinite(flat).all():
            raise TasklabError("the Hessian is not finite here: look at the loss first.")
        return flat

    n = sum(sizes)
    start = np.random.default_rng(seed).standard_normal(n)
    if n <= KRYLOV:  # too few for the method, and few enough for the whole matrix
        values, vectors = np.linalg.eigh(np.stack([matvec(row) for row in np.eye(n)]))
        top = np.abs(values).argmax()
        value, vector = values[top], vectors[:, top]
    elif not (image := matvec(start)).any():
        value, vector = 0.0, start
    else:
        sparse = scipy.sparse.linalg
        operator = sparse.LinearOperator((n, n), matvec=matvec, dtype=np.float64)
        asked = {"which": "LM", "tol": tol, "maxiter": max_iter, "ncv": KRYLOV, "v0": image}
        try:
            values, vectors = sparse.eigsh(operator, k=1, **asked)
        except sparse.ArpackNoConvergence as error:
            raise TasklabError(
                f"the Hessian's largest eigenvalue did not settle in {count} products: raise "
                f"max_iter (now {max_iter}) or tol (now {tol:g})."
            ) from error
        value, vector = values[0], vectors[:, 0]
    residual = np.linalg.norm(matvec(vector) - value * vector) / abs(value) if value else 0.0
    return Curvature(float(value), float(residual), count)


@isolated
def interpolation_gap(f: Scalar, one: Params, two: Params, alpha: float = 0.5) -> float:
    """Return delta = |f(alpha one + (1 - alpha) two) - alpha f(one) - (1 - alpha) f(two)|.

    Args:
        f: Parameters -> a number.
        one: Parameters of the first model.
        two: Parameters of the second model, of the same names.
        alpha: Weight of the first model, from 0 to 1.
    """
    with torch.no_grad():
        return _gap(f, TaskVector.between(two, one), two, float(f(one)), float(f(two)), alpha)


def _gap(f: Scalar, d: TaskVector, two: Params, at_one: float, at_two: float, alpha: float):
    gap = abs(float(f(d.apply(two, alpha))) - alpha * at_one - (1 - alpha) * at_two)
    return finite(gap, f"losses between two models, at {alpha:g},")


def bound(curvature: float, distance: float, alpha: float = 0.5) -> float:
    """Return alpha (1 - alpha) / 2 lambda_max |theta_i - theta_j|^2 (theorem 5.1).

    Args:
        curvature: lambda_max, the largest eigenvalue of the Hessian.
        distance: The squared distance.
        alpha: Weight of one of both models, from 0 to 1.

    >>> bound(8.0, 0.5)
    0.5
    """
    if not 0 <= as_coefficient(alpha, "alpha") <= 1:
        raise TasklabError(f"the theorem interpolates: alpha must be from 0 to 1, not {alpha}.")
    return alpha * (1 - alpha) / 2 * real("curvature", curvature) * real("distance", distance)


def pairs(
    f: Scalar,
    theta0: Params,
    vectors: Mapping[str, TaskVector],
    alpha: float = 0.5,
    *,
    curvature: Curvature | None = None,
    names: Collection[str] | None = None,
) -> pd.DataFrame:
    """Return theorem 5.1's two sides for every pair of models fine-tuned from theta_0.

    Tables of several theta_0 or losses are stacked for `explained_variance`, with a column group.

    Args:
        f: Parameters -> a scalar.
        theta0: Pre-trained parameters by name.
        vectors: Task vectors by name of the model.
        alpha: Weight of the first model of a pair.
        curvature: Of f at theta_0, by default `largest_curvature` over `names`.
        names: Parameters that may differ from theta_0; by default all.

    Returns:
        Columns one, other (the models), alpha, value (delta), curvature (lambda_max), distance
        (squared), bound, and second_order, alpha (1 - alpha) / 2 |d' H d|.
    """
    moved = {name for vector in vectors.values() for name in vector}
    if outside := sorted(moved - set(theta0 if names is None else names)):
        raise TasklabError(f"the vectors move {outside[0]}, which is not among the names.")
    curvature = curvature or largest_curvature(f, theta0, names=names)
    product = hessian_product(f, theta0, names)
    with torch.no_grad():
        ends = {name: float(f(vector.apply(theta0))) for name, vector in vectors.items()}
    rows = []
    for one, other in itertools.combinations(vectors, 2):
        d = vectors[one] - vectors[other]
        with torch.no_grad():
            delta = _gap(f, d, vectors[other].apply(theta0), ends[one], ends[other], alpha)
        curved = {name: h.to(d[name]) for name, h in product(d).items() if name in d}
        distance, along = d.dot(d), abs(d.dot(TaskVector(curved)))
        sides = (bound(curvature.size, distance, alpha), bound(along, 1.0, alpha))
        rows.append((one, other, alpha, delta, curvature.size, distance, *sides))
    columns = ["one", "other", "alpha", "value", "curvature", "distance", "bound", "second_order"]
    return pd.DataFrame(rows, columns=columns)


def explained_variance(df: pd.DataFrame) -> pd.DataFrame:
    """Return the share of delta that each predictor explains in a linear regression (appendix C.2).

    Pairs share models, so it is models that are drawn anew for the 95 % interval, within their
    group; a pair counts as often as both its models were drawn. Groups are taken as given.

    Args:
        df: Result of `pairs`; with a column group, the same name in two groups is two models.

    Returns:
        One row per predictor of `PREDICTORS` that the table has: predictor, value (R^2), low, high,
        slope, intercept, rank (Spearman's correlation, which no single large pair decides),
        n_pairs, n_models, n_groups. All but the counts are NaN for a predictor that is constant.
    """
    models = models_of(df)
    if len(models) < 4:
        raise TasklabError("an R^2 needs at least four models.")
    weights = drawn_pairs(df, REPEATS, np.random.default_rng(0))
    y, rows = finite_array(df["value"], "the column 'value'"), []
    for name in (name for name in PREDICTORS if name in df):
        x = finite_array(df[name], f"the column {name!r}")
        fit = dict.fromkeys(("value", "low", "high", "slope", "intercept", "rank"), np.nan)
        if not (_constant(x) or _constant(y)):
            line, draws = scipy.stats.linregress(x, y), pearson(x, y, weights) ** 2
            low, high = np.nanquantile(draws, (0.025, 0.975))
            fit = {"value": line.rvalue**2, "low": low, "high": high, "slope": line.slope,
                   "intercept": line.intercept, "rank": rank_correlation(x, y)}  # fmt: skip
        rows.append({"predictor": name, **fit, "n_pairs": len(df)})
    return pd.DataFrame(rows).assign(n_models=len(models), n_groups=models["group"].nunique())


def _constant(x: np.ndarray) -> bool:
    return bool(np.ptp(x) <= 1e-9 * np.abs(x).max())
