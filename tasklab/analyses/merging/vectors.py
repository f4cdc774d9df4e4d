"""Task vectors of one model side by side, and rules that go through them tensor by tensor.

This module decides for all rules which parameters are matrices: those of two axes that a layer
multiplies with, as stored. The q, k and v of open_clip are one matrix. A projection `proj`,
stored as inputs x outputs, is transposed for rules that distinguish both. Embeddings, tables of
attention biases, kernels of convolutions and parameters of one axis are no matrices: as in the
code published with the singular vector methods, which decomposes the embedding of positions too.

Letters: T tasks, O outputs, I inputs.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar

from torch import Size, Tensor

from tasklab.analyses.finite import as_coefficient
from tasklab.errors import TasklabError, abridged, shown
from tasklab.progress import LATER, bar
from tasklab.storage.lazy import Lazy
from tasklab.storage.placement import decomposes, placed
from tasklab.taskvector import TaskVector, shared_base

Vectors = Sequence[TaskVector] | Mapping[str, TaskVector]
Rule = Callable[[str, list[Tensor]], Tensor]
_NO_MAP = re.compile(
    r"embed|(?:^|[._])embs?(?:\.\d+)?(?:\.weight)?$|(?:^|\.)(?:wte|wpe|shared)\.weight$|"
    r"attention_bias|bias_table|rel_pos"
)
_Pattern = re.Pattern[str] | None
_log = logging.getLogger(__name__)
_Kinds = tuple[_Pattern, _Pattern, Collection[str]]
# Own patterns of what is a matrix, and what is none, and names of tables (`told`)
_KINDS: ContextVar[_Kinds] = ContextVar("kinds", default=(None, None, ()))
_AS_NEEDED: ContextVar[bool] = ContextVar("as needed", default=False)
_TURNED = re.compile(r"(?:^|\.)(?:text_)?proj(?:ection)?$")


def listed(vectors: Vectors, least: int = 1) -> list[TaskVector]:
    """Return vectors of one model as a list, of single precision at least, or raise.

    A parameter that a vector does not name is 0 in it, as in every sum of task vectors: that of an
    attention-only run beside a full one. Vectors of several devices, of which not all fitted on
    one, are merged on the CPU.
    """
    if isinstance(vectors, TaskVector) or not isinstance(vectors, Mapping | Sequence):
        raise TasklabError(f"a merge takes a list of task vectors, not {type(vectors).__name__}.")
    named = vectors if isinstance(vectors, Mapping) else dict(enumerate(vectors, 1))
    for name, vector in named.items():
        if not isinstance(vector, TaskVector):
            raise TasklabError(
                f"task vector {shown(name)} is no TaskVector but {type(vector).__name__}."
            )
    if len(named) < least:
        have = f"{len(named)} task vector{'s' if len(named) != 1 else ''}"
        raise TasklabError(f"{have} cannot be merged: give at least {least}.")
    starts = {vector.base: name for name, vector in named.items() if vector.base is not None}
    if len({base.weights for base in starts}) > 1:
        (here, one), (there, two) = list(starts.items())[:2]
        raise TasklabError(
            f"task vector {shown(one)} starts from {here.model} ({here.init}, weights "
            f"{here.weights[:12]}) and {shown(two)} from {there.model} ({there.init}, weights "
            f"{there.weights[:12]}): merge vectors of one start."
        )
    if not all(named.values()):
        raise TasklabError("the task vectors have no parameters.")
    shapes: dict[str, tuple[object, Size]] = {}  # whose they are, and what
    for name, vector in named.items():
        if shapes and not shapes.keys() & vector.keys():
            raise TasklabError(
                f"task vector {shown(name)} has {abridged([next(iter(vector))])}, which "
                f"{shown(next(iter(named)))} lacks, and no parameter of it: they are of different "
                "models."
            )
        for parameter in vector:
            tensor = vector.like(parameter)
            whose, shape = shapes.setdefault(parameter, (name, tensor.shape))
            if shape != tensor.shape:
                raise TasklabError(
                    f"{abridged([parameter])} has shape {tuple(shape)} in task vector "
                    f"{shown(whose)} and {tuple(tensor.shape)} in {shown(name)}: they are of "
                    "different models."
                )
    several = len({vector.device for vector in named.values()}) > 1
    return [
        _whole(_single(placed(vector, "cpu") if several else vector), shapes)
        for vector in named.values()
    ]


def _whole(vector: TaskVector, shapes: Mapping[str, tuple[object, Size]]) -> TaskVector:
    absent = [name for name in shapes if name not in vector]
    if not absent:
        return vector
    like = next(iter(vector.values()))
    zeros = {name: like.new_zeros(shapes[name][1]) for name in absent}
    filled = {name: zeros[name] if name in zeros else vector[name] for name in shapes}
    return TaskVector(filled, vector.base)


def _single(vector: TaskVector) -> TaskVector:
    """Return a vector in single precision at least: halves underflow in merges."""
    if all(vector.like(name).element_size() >= 4 for name in vector):
        return vector
    return TaskVector({name: tensor.float() for name, tensor in vector.items()}, vector.base)


def by_tensor(vectors: Sequence[TaskVector], rule: Rule, alpha: float = 1.0) -> TaskVector:
    """Return alpha times a rule's result, parameter by parameter.

    Args:
        vectors: Task vectors of one model.
        rule: Takes a parameter's name and its T tensors; returns one.
        alpha: Coefficient of the result.
    """
    alpha = as_coefficient(alpha, "alpha")
    made, first = {}, vectors[0]
    if any(isinstance(vector.held, Lazy) for vector in vectors) and _AS_NEEDED.get():
        return TaskVector.lazy(_Merged(vectors, rule, alpha))
    with bar(len(first), "merge", unit="tensor", soon=LATER) as shown:
        for name in first:
            merged = rule(name, [vector[name] for vector in vectors]).to(first[name])
            made[name] = merged if alpha == 1 else merged * alpha
            shown.update()
    return TaskVector(made, shared_base(vectors))


class _Merged(Lazy):
    """A merge of vectors that are not held, made a parameter at a time."""

    def __init__(self, vectors: Sequence[TaskVector], rule: Rule, alpha: float) -> None:
        self.vectors, self.rule, self.alpha = vectors, rule, alpha
        self.names = dict.fromkeys(vectors[0])

    def __getitem__(self, name: str) -> Tensor:
        merged = self.rule(name, [vector[name] for vector in self.vectors]).to(
            self.like(name).dtype
        )
        return merged if self.alpha == 1 else merged * self.alpha

    def like(self, name: str) -> Tensor:
        """Return a tensor without numbers, of the same shape and type."""
        return self.vectors[0].like(name).to("meta")


@contextlib.contextmanager
def told(
    matrices: str | None = None, tables: str | None = None, known: Collection[str] = ()
) -> Iterator[None]:
    """Merge networks that no table lists: parameters one at a time, and kinds by own patterns.

    Args:
        matrices: Pattern of names of two axes that count as matrices.
        tables: Pattern of names that are none.
        known: Names of tables that look like matrices.
    """
    patterns = []
    for what, pattern in (("matrices", matrices), ("tables", tables)):
        try:
            patterns.append(None if pattern is None else re.compile(pattern))
        except (re.error, TypeError):
            raise TasklabError(
                f"{what} must be a pattern of names, not {shown(pattern)}."
            ) from None
    kinds, lazy = _KINDS.set((patterns[0], patterns[1], known)), _AS_NEEDED.set(True)
    try:
        yield
    finally:
        _KINDS.reset(kinds)
        _AS_NEEDED.reset(lazy)


def by_matrix(vectors: Sequence[TaskVector], rule: Rule, alpha: float = 1.0) -> TaskVector:
    """Return alpha times a rule's result for matrices, and the mean of all other parameters.

    Args:
        vectors: Task vectors of one model.
        rule: Takes a matrix' name and its T tensors (O, I); returns one.
        alpha: Coefficient of the result.
    """

    def one(name: str, tensors: list[Tensor]) -> Tensor:
        if not is_matrix(name, tensors[0]):
            return mean(tensors)
        return turned(name, rule(name, [turned(name, tensor) for tensor in tensors]))

    return by_tensor(vectors, one, alpha)


def decomposed(vectors: Sequence[TaskVector], rule: Rule, alpha: float = 1.0) -> TaskVector:
    """Return `by_matrix` of a rule that decomposes in float64, where that is quick.

    Args:
        vectors: Task vectors of one model, by their tasks or in the order of the tasks.
        rule: A name and the matrices of all tasks -> the merged matrix.
        alpha: Coefficient of the merge.
    """
    place = decomposes(vectors[0].device)
    return by_matrix(vectors, lambda name, tensors: rule(name, placed(tensors, place)), alpha)


def is_matrix(name: str, tensor: Tensor) -> bool:
    """Return whether a parameter is a matrix (see above).

    >>> import torch
    >>> is_matrix("resblocks.0.mlp.c_fc.weight", torch.ones(8, 2))
    True
    >>> is_matrix("positional_embedding", torch.ones(8, 2)), is_matrix("ln.bias", torch.ones(8))
    (False, False)
    >>> is_matrix("attn.relative_position_bias_table", torch.ones(8, 2))
    False
    """
    if tensor.dim() != 2 or not tensor.numel():
        return False
    yes, no, tables = _KINDS.get()
    if no is not None and no.search(name):
        return False
    is_table = name in tables or bool(_NO_MAP.search(name))
    return not is_table or (yes is not None and bool(yes.search(name)))


def is_narrow(name: str, matrices: Sequence[Tensor]) -> bool:
    """Return whether a matrix has fewer directions than tasks, and log it if so."""
    few = min(matrices[0].shape)
    if few < len(matrices):
        _log.info("%s has %d directions, for %d tasks: their mean", name, few, len(matrices))
    return few < len(matrices)


def turned(name: str, tensor: Tensor) -> Tensor:
    """Return a matrix as outputs x inputs, or, given so, as it is stored."""
    return tensor.T if _TURNED.search(name) else tensor


def total(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors, added up in place."""
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result += tensor
    return result


def mean(tensors: Sequence[Tensor]) -> Tensor:
    """Return the mean of tensors."""
    return total(tensors).div_(len(tensors))
