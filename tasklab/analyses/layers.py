"""Task vectors layer by layer: angles, sizes, and effects on the inputs of a layer.

*Fine-Tuning Linear Layers Only* argues from one linear layer. There, for data x of the task i,

    f(x; theta_0 + sum_t tau_t) = f(x; theta_0 + tau_i) + sum_{t != i} tau_t x,

so weights are disentangled where the last sum vanishes (proposition 1, equation 3). The paper shows
angles between task vectors (figure 5), but does not measure that sum. Here it is measured at every
projection W of every block, as a root mean square over images and tokens. That takes no more than
the second moments of the input x of each projection,

    C_t = E[x x'],      E|tau x|^2 = tr(tau C_t tau') = <C_t, tau' tau>,

which one pass over the images of a task gives. They then answer for any vector, method and seed.
x is the layer's input in the *pre-trained* model, and biases are left out, as in the
proposition. In a deep network the sum is a prediction only; `interference` sets it against the
change of the features.

Letters: T tasks, D features, I inputs and O outputs of a projection.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.analyses.evaluation import Evaluator, Vectors
from tasklab.analyses.finite import as_coefficient, check_vectors, finite
from tasklab.analyses.projections import PROJECTIONS, Moments, Piece, all_pieces, is_root, pieces
from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.storage.placement import placed
from tasklab.taskvector import TaskVector

ALL = "all"  # in the column `projection`: all parameters, also biases and normalisation


@isolated
def cosines(vectors: Vectors, projections: Sequence[str] | None = None) -> pd.DataFrame:
    """Return the cosine of every pair of task vectors, whole and by block and projection.

        cos(tau_s, tau_t) = <tau_s, tau_t> / (|tau_s| |tau_t|)      (linear layers, figure 5)

    Args:
        projections: Those to separate, all of which must be there; `()` for none. By default
            those that the vectors have, at least the four of attention.

    Returns:
        Columns task, other (each pair once), block, projection, value. Block is missing where all
        blocks count, and projection is `ALL` where all parameters count. A zero vector's cosine
        is 0.
    """
    check_vectors(vectors)
    tasks, named = list(vectors), _named(vectors)
    grams: dict[tuple, Tensor] = {}
    for piece in pieces(named, projections):
        rows = torch.stack([_part(vector, piece, named).flatten() for vector in vectors.values()])
        _add(grams, piece, rows @ rows.T)
    records = []
    for (block, projection), gram in grams.items():
        norms = gram.diagonal().sqrt()
        cosine = _ratio(gram, norms[:, None] * norms)
        for i, task in enumerate(tasks):
            for j, other in enumerate(tasks[i + 1 :], i + 1):
                records.append((task, other, block, projection, float(cosine[i, j])))
    return _frame(records, "task", "other", "block", "projection", "value")


@isolated
def norms(
    vectors: Vectors, theta0: Mapping[str, Tensor], projections: Sequence[str] = PROJECTIONS
) -> pd.DataFrame:
    """Return |tau| / |theta_0|, whole and by block and projection: where fine-tuning acts.

    Args:
        vectors: Task vectors of one model, by their tasks or in the order of the tasks.
        theta0: theta_0 by the name of each parameter.
        projections: Names of the projections to separate.

    Returns:
        Columns task, block, projection, value; the groups are those of `cosines`.
    """
    check_vectors(vectors)
    every = (*vectors.values(), theta0)
    sums: dict[tuple, Tensor] = {}
    for piece in pieces(theta0, projections):
        squares = torch.stack([_part(each, piece, theta0).square().sum() for each in every])
        finite(squares, f"squared norms of {piece.name}")
        _add(sums, piece, squares)
    records = [
        (task, *group, float(value))
        for group, squares in sums.items()
        for task, value in zip(vectors, _ratio(squares[:-1], squares[-1]).sqrt(), strict=True)
    ]
    return _frame(records, "task", "block", "projection", "value")


@isolated
def alignment(
    vectors: Vectors, moments: Mapping[str, Moments], theta0: Mapping[str, Tensor]
) -> pd.DataFrame:
    """Measure the effect of task vectors on each task's data (linear layers, proposition 1).

    For data x of task t at a projection W, |.| the root mean square over images and tokens:

    | part | numerator |
    |---|---|
    | `own` | the task's own vector, |tau_t x| |
    | `each` | another task's vector, |tau_s x|, mean over s != t |
    | `others` | all others together, |sum_{s != t} tau_s x|: the proposition's sum |

    | metric | divided by |
    |---|---|
    | `relative` | |W x|: the layer's output before fine-tuning |
    | `random` | |tau|_F |x| / sqrt(I): the output of a random matrix of the same norm |

    T - 1 times `each` bounds `others`; for directions at right angles, `others` is sqrt(T - 1)
    times `each`. `random` knows no size, only direction: it is the root mean square cosine of
    tau's rows and x, over that of random rows. The proposition wants it to be near 0 for other
    tasks; at 1 they are as little orthogonal to the data as random matrices.

    Args:
        vectors: Task vectors of one model, by their tasks or in the order of the tasks.
        moments: Second moments of the inputs of each projection, by task.
        theta0: theta_0 by the name of each parameter.

    Returns:
        Columns task, part, block, projection, metric, value, for the projections that have
        moments and that some vector changes.
    """
    check_vectors(vectors)
    tasks, named = list(vectors), _named(vectors)
    if len(tasks) < 2:
        raise TasklabError("alignment with other tasks' vectors needs at least two tasks.")
    if lacking := [task for task in tasks if task not in moments]:
        raise TasklabError(f"there are no second moments of {', '.join(lacking)}.")
    read = named.keys() & moments[tasks[0]].keys()
    records = []
    for piece in all_pieces(theta0):
        if piece.projection and piece.name in read:
            W = theta0[piece.name][piece.rows]
            C = [moments[task][piece.name].to(W) for task in tasks]
            for moment in C:
                finite(moment, f"second moments at {piece.name}")
            taus = [_part(vector, piece, theta0).to(W) for vector in vectors.values()]
            for (part, metric), values in _aligned(C, taus, W).items():
                place = (part, piece.block, piece.projection, metric)
                records += [(t, *place, float(v)) for t, v in zip(tasks, values, strict=True)]
    if not records:
        raise TasklabError("the vectors change no projection that has second moments.")
    return _frame(records, "task", "part", "block", "projection", "metric", "value")


def _aligned(
    C: Sequence[Tensor], taus: Sequence[Float[Tensor, "O I"]], W: Float[Tensor, "O I"]
) -> dict[tuple[str, str], Float[Tensor, " T"]]:
    """Return the numbers of `alignment` at one projection: (part, metric) -> value of each task."""
    total, count = torch.stack(list(taus)).sum(0), len(taus)
    each = torch.stack([_size(C, tau) for tau in taus], 1)  # rows: data, columns: vectors
    others = torch.cat([_size(C[i : i + 1], total - tau) for i, tau in enumerate(taus)])
    base = _size(C, W)
    traces = [m.square().sum() if is_root(m) else m.trace() for m in C]
    x = torch.stack([trace / W.shape[1] for trace in traces]).sqrt()  # |x| / sqrt(I)
    norm = torch.stack([tau.norm() for tau in taus])
    scales = {
        "relative": (base[:, None].expand(count, count), base),
        "random": (x[:, None] * norm, x * torch.stack([(total - tau).norm() for tau in taus])),
    }
    shares = {}
    for metric, (scale, scale_of_others) in scales.items():
        pairs = _ratio(each, scale)
        shares["own", metric] = pairs.diagonal()
        rest = pairs.masked_fill(torch.eye(count, dtype=torch.bool, device=W.device), 0)
        shares["each", metric] = rest.sum(1) / (count - 1)
        shares["others", metric] = _ratio(others, scale_of_others)
    return shares


@isolated
def interference(
    evaluator: Evaluator,
    vectors: Vectors,
    aligned: pd.DataFrame,
    *,
    linear: bool,
    alpha: float = 1.0,
    split: str = "test",
) -> pd.DataFrame:
    """Compare the effect of other vectors on a task's features with the prediction of `alignment`.

    For the images x of task t, |.| the Euclidean norm, E the mean over images, and the features
    f_0 = f(x; theta_0), f_t = f(x; theta_0 + alpha tau_t), f_all = f(x; theta_0 + alpha sum tau_s):

    | metric | meaning | unit |
    |---|---|---|
    | `predicted` | alpha times `relative` of `others`, mean over projections | |
    | `predicted_ratio` | the same over that of `own` | |
    | `change` | E|f_all - f_t| / E|f_0| | |
    | `change_ratio` | E|f_all - f_t| / E|f_t - f_0| | |
    | `alone` | accuracy of f_t | % |
    | `together` | accuracy of f_all | % |
    | `lost` | `alone` - `together` | percentage points |

    Weights are disentangled on the task where both changes are 0 (property 3).

    Args:
        evaluator: The model with its heads and images.
        vectors: Task vectors of one model, by their tasks or in the order of the tasks.
        aligned: Result of `alignment`.
        linear: Whether to edit the linearized model.
        alpha: Coefficient of the vector.
        split: `"train"`, `"val"` or `"test"`.

    Returns:
        Columns task, alpha, metric, value, n (images).
    """
    check_vectors(vectors)
    as_coefficient(alpha, "alpha")
    total = TaskVector.sum(vectors.values())
    sizes = aligned[aligned["metric"] == "relative"].groupby(["task", "part"])["value"].mean()
    records = []
    for task, vector in vectors.items():
        if task not in sizes:
            raise TasklabError(f"there is no alignment of {task}: compute it for these vectors.")
        f0, alone, together = _edited(evaluator, (vector, total), task, split, linear, alpha)
        moved, own = (_mean_norm(together - alone), _mean_norm(alone - f0))
        if own == 0:
            raise TasklabError(f"the task vector of {task} changes none of its features.")
        accuracies = [evaluator.accuracy(f, task, split, alpha=alpha) for f in (alone, together)]
        values = {
            "predicted": alpha * sizes[task, "others"],
            "predicted_ratio": sizes[task, "others"] / sizes[task, "own"],
            "change": moved / _mean_norm(f0),
            "change_ratio": moved / own,
            "alone": accuracies[0],
            "together": accuracies[1],
            "lost": accuracies[0] - accuracies[1],
        }
        n = evaluator.count(task, split)
        records += [(task, alpha, metric, float(value), n) for metric, value in values.items()]
    return pd.DataFrame(records, columns=["task", "alpha", "metric", "value", "n"])


def _edited(
    evaluator: Evaluator,
    vectors: Iterable[TaskVector],
    task: str,
    split: str,
    linear: bool,
    alpha: float,
) -> list[Tensor]:
    theta0 = evaluator.clip.encoder.params
    if linear:
        tangents = [evaluator.tangent_features(vector, task, split) for vector in vectors]
        return [tangents[0].f0, *(features.at(alpha) for features in tangents)]
    models = itertools.chain([theta0], (vector.apply(theta0, alpha) for vector in vectors))
    return [evaluator.features(params, task, split) for params in models]  # one at a time


def _mean_norm(features: Float[Tensor, "N D"]) -> float:
    return float(features.double().norm(dim=-1).mean())


def _size(C: Sequence[Tensor], A: Float[Tensor, "O I"]) -> Float[Tensor, " T"]:
    """Return the root mean square of |A x| over the data behind each second moment or root."""
    product = None if all(map(is_root, C)) else A.T @ A
    squares = [
        ((moment @ A.T).square() if is_root(moment) else moment * product).sum(dtype=torch.float64)
        for moment in C
    ]
    return torch.stack(squares).clamp_min(0).sqrt()  # rounding may give less than 0


def _part(params: Mapping[str, Tensor], piece: Piece, named: Mapping[str, Tensor]) -> Tensor:
    """Return a piece's numbers in float64, on `named`'s device; 0, in its shape, if absent."""
    tensor, like = params.get(piece.name), named[piece.name]
    if tensor is None:
        return torch.zeros_like(like, dtype=torch.float64)[piece.rows]
    return placed(tensor.detach()[piece.rows], like.device).double()


def _named(vectors: Vectors) -> dict[str, Tensor]:
    return {name: tensor for vector in vectors.values() for name, tensor in vector.items()}


def _add(sums: dict[tuple, Tensor], piece: Piece, more: Tensor) -> None:
    for block in {None, piece.block}:
        for group in ((block, projection or ALL) for projection in {None, piece.projection}):
            sums[group] = sums.get(group, 0) + more


def _ratio(one: Tensor, two: Tensor) -> Tensor:
    return torch.where(one == 0, torch.zeros_like(one), one / two)


def _frame(records: list[tuple], *columns: str) -> pd.DataFrame:
    df = pd.DataFrame(records, columns=list(columns))
    return df.astype({"block": "Int64"})
