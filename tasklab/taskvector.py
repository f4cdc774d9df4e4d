"""Task vectors: what fine-tuning changed, as an immutable vector keyed by parameter names.

With tau = theta - theta_0, a model is edited by theta_0 + sum_i alpha_i tau_i (`merged`).
"""

from __future__ import annotations

import hashlib
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from tasklab.errors import TasklabError, shown
from tasklab.errors import path as checked_path
from tasklab.storage.tensors import OnDisk, load_checkpoint, save_checkpoint

_FORMAT = {"format": "tasklab task vector", "version": 1}
_LARGEST = 1e30  # of a coefficient: float32 ends at 3e38
_COMPUTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # float8 has no sums


class Base(NamedTuple):
    """The weights theta_0 that a task vector starts from.

    Attributes:
        model: Short name of the model.
        init: `"pretrained"` or `"random"`.
        weights: `Encoder.weights_hash`.
    """

    model: str
    init: str
    weights: str


class TaskVector(Mapping[str, Tensor]):
    """The vector tau = theta - theta_0, one tensor per parameter that differs.

    A parameter that a vector does not name has the value 0 in it. Vectors add, subtract and scale
    to new vectors, by numbers of Python, numpy and torch; the built-in `sum` works. Tensors are not
    copied: do not write into them.

    Where the weights that a vector starts from are known, `base` has them: `save` writes them down,
    `load` reads them, and sums and multiples of vectors of one base keep it.

    Args:
        tensors: Change of each parameter, in the parameter's shape.
        base: What it starts from; `None` if that is not known.

    Attributes:
        base: Likewise.

    Raises:
        TasklabError: If a tensor is not of floating-point numbers of 16 to 64 bits, or has one that
            is not finite; it names the parameters.

    >>> a, b = TaskVector({"w": torch.ones(2)}), TaskVector({"b": torch.ones(1)})
    >>> (a / 2 - b)["w"].tolist(), (a / 2 - b)["b"].tolist()
    ([0.5, 0.5], [-1.0])
    """

    __slots__ = ("_digest", "_tensors", "base")
    __array_ufunc__ = None  # numpy's numbers leave products to this class

    def __init__(self, tensors: Mapping[str, Tensor], base: Base | None = None) -> None:
        self._tensors = MappingProxyType({name: t.detach() for name, t in tensors.items()})
        _check_types(self._tensors)
        _finite(self._tensors, "the task vector")
        self.base = base
        self._digest = ""  # made when it is asked for; a vector does not change

    def fingerprint(self) -> str:
        """Return the SHA-256 of its names, shapes and numbers."""
        if not self._digest:
            digest = hashlib.sha256()
            for name in sorted(self):
                tensor = self[name].float().cpu().contiguous()
                digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
                digest.update(tensor.view(-1).view(torch.uint8).numpy())
            self._digest = digest.hexdigest()
        return self._digest

    @classmethod
    def between(
        cls,
        theta0: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        names: Iterable[str] | None = None,
        base: Base | None = None,
    ) -> TaskVector:
        """Return theta - theta_0, without the counters and masks that a state dict has.

        Args:
            theta0: Pre-trained parameters.
            theta: Fine-tuned parameters.
            names: Parameters to compare; by default all floating-point ones, and both must then
                have the same names.
            base: Of which model theta_0 is, where that is known.

        Raises:
            TasklabError: If a name is missing on one side, or shapes differ; it names them.
        """
        given = names is not None
        names = list(names) if given else sorted(theta0.keys() | theta.keys())
        for side, params in (("pre-trained", theta0), ("fine-tuned", theta)):
            _present(names, params, f"the {side} parameters")
        if not given:
            names = [n for n in names if not (_whole(theta0[n]) and _whole(theta[n]))]
        _same_shapes(names, theta0, theta)
        for params in (theta0, theta):
            _check_types({name: params[name] for name in names})
        return cls({name: theta[name].detach() - theta0[name].detach() for name in names}, base)

    @classmethod
    def zeros_like(cls, params: Mapping[str, Tensor]) -> TaskVector:
        """Return the zero vector over the names and shapes of `params`."""
        return cls({name: torch.zeros_like(tensor) for name, tensor in params.items()})

    @classmethod
    def sum(cls, vectors: Iterable[TaskVector]) -> TaskVector:
        """Return the sum of the vectors, which for none of them is the empty vector."""
        return sum(vectors, cls({}))

    @classmethod
    def load(cls, path: Path | str) -> TaskVector:
        """Return the vector that `save` wrote.

        Raises:
            TasklabError: If there is no such file, or it is not what was written.
        """
        path = checked_path("the file of a task vector", path, "file")
        tensors, meta = load_checkpoint(path) or ({}, {})
        base = _base_in(meta)
        if meta != _FORMAT:
            raise TasklabError(
                f"{str(path)!r} is damaged, or no file that TaskVector.save wrote; `tasklab import`"
                " reads checkpoints."
            )
        if wrong := [name for name, x in tensors.items() if not x.is_floating_point()]:
            raise TasklabError(f"{_listed(wrong)} in {str(path)!r} are no floating-point numbers.")
        return cls(tensors, base)

    def save(self, path: Path | str) -> Path:
        """Write vector, base and checksum to a safetensors file, in one step, and return its path.

        Raises:
            TasklabError: If it cannot be written; a file that was there before is still there.
        """
        path = checked_path("the file of a task vector", path)
        known = {} if self.base is None else {"base": self.base._asdict()}
        save_checkpoint(path, self, _FORMAT | known)
        return path

    def on_disk(self, path: Path) -> TaskVector:
        """Return this vector, each tensor read when it is asked for: no memory holds it.

        Args:
            path: The safetensors file that its tensors were read from, under the same names.
        """
        same = object.__new__(TaskVector)
        same._tensors, same._digest, same.base = OnDisk(path, self), self._digest, self.base
        return same

    def starting_from(self, base: Base | None) -> TaskVector:
        """Return this vector, known to start from some weights."""
        same = object.__new__(TaskVector)
        same._tensors, same._digest, same.base = self._tensors, self._digest, base
        return same

    def __getitem__(self, name: str) -> Tensor:
        """Return the change of one parameter, in its shape."""
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of named parameters."""
        return len(self._tensors)

    def __repr__(self) -> str:
        """Return the size, not the numbers."""
        count = sum(tensor.numel() for tensor in self.values())
        return f"TaskVector({len(self)} tensors, {count:,} numbers, norm {self.norm():.4g})"

    def __eq__(self, other: object) -> bool:
        """Whether names and numbers are the same, bit for bit."""
        if not isinstance(other, TaskVector):
            return NotImplemented
        return self.keys() == other.keys() and all(torch.equal(self[n], other[n]) for n in self)

    __hash__ = None

    def __add__(self, other: object) -> TaskVector:
        """Return the sum; a name that one side lacks counts as 0 there."""
        if _number(other) == 0:  # `sum` starts from it
            return self
        if not isinstance(other, TaskVector):
            return NotImplemented
        shared = self.keys() & other.keys()
        _same_shapes(shared, self, other)
        both = {name: self[name] + other[name] for name in shared}
        return TaskVector({**self, **other, **both}, shared_base([self, other]))

    __radd__ = __add__

    def __sub__(self, other: object) -> TaskVector:
        """Return the difference."""
        return self + (-other) if isinstance(other, TaskVector) else NotImplemented

    def __neg__(self) -> TaskVector:
        """Return the negation."""
        return TaskVector({name: -tensor for name, tensor in self.items()}, self.base)

    def __mul__(self, scale: object) -> TaskVector:
        """Return the vector times a number."""
        if (scale := _number(scale)) is None:
            return NotImplemented
        scale = _coefficient(scale)
        return TaskVector({name: tensor * scale for name, tensor in self.items()}, self.base)

    __rmul__ = __mul__

    def __truediv__(self, scale: object) -> TaskVector:
        """Return the vector divided by a number."""
        if (scale := _number(scale)) is None:
            return NotImplemented
        if scale == 0:
            raise TasklabError("a task vector cannot be divided by 0.")
        scale = _coefficient(scale)
        return TaskVector({name: tensor / scale for name, tensor in self.items()}, self.base)

    def dot(self, other: TaskVector) -> float:
        """Return the inner product, summed in float64."""
        shared = sorted(self.keys() & other.keys())
        _same_shapes(shared, self, other)
        return math.fsum(float((self[n].double() * other[n].double()).sum()) for n in shared)

    def norm(self) -> float:
        """Return the Euclidean norm."""
        return math.sqrt(self.dot(self))

    def cosine(self, other: TaskVector) -> float:
        """Return the cosine of the angle between the vectors; 0 if one of them is 0."""
        scale = self.norm() * other.norm()
        return self.dot(other) / scale if scale else 0.0

    @overload
    def apply(self, theta0: Mapping[str, Tensor], alpha: float = 1.0) -> dict[str, Tensor]: ...

    @overload
    def apply(
        self, theta0: Mapping[str, Tensor], alpha: Sequence[float]
    ) -> Iterator[dict[str, Tensor]]: ...

    def apply(self, theta0, alpha=1.0):
        """Return theta_0 + alpha tau, with the parameters that tau does not name as they are.

        Args:
            theta0: Parameters; they keep their device and type.
            alpha: Scale of the vector; for several scales the models come one after another.

        Raises:
            TasklabError: If tau names a parameter that theta_0 lacks, or one of another shape, or
                a number that is not finite would come out.
        """
        if _number(alpha) is None and isinstance(alpha, Iterable) and not isinstance(alpha, str):
            return (self.apply(theta0, one) for one in list(alpha))
        return merged([self], [alpha], theta0)

    def to(self, device: torch.device | str) -> TaskVector:
        """Return the vector on a device."""
        return TaskVector({name: tensor.to(device) for name, tensor in self.items()}, self.base)


def shared_base(vectors: Iterable[TaskVector]) -> Base | None:
    """Return the base of all vectors that change anything; `None` if they have no common one.

    >>> base, one = Base("mini", "pretrained", "0f"), {"w": torch.ones(1)}
    >>> shared_base([TaskVector(one, base), TaskVector({})])
    Base(model='mini', init='pretrained', weights='0f')
    >>> shared_base([TaskVector(one, base), TaskVector(one)])
    """
    bases = {vector.base for vector in vectors if vector}
    return bases.pop() if len(bases) == 1 else None


def merged(
    terms: Sequence[Mapping[str, Tensor]],
    weights: Iterable[float],
    theta0: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return theta_0 + sum_i w_i tau_i of task vectors, or sum_i w_i theta_i of whole models.

    All merging of weights is done here: tensor by tensor, in the order of the terms.

    Args:
        terms: Task vectors; without `theta0` models, with the same parameters each. Counters and
            masks of models (no floating-point numbers) stay those of the first one.
        weights: w_i, the coefficient of each term.
        theta0: What the vectors are added to. What none of them names stays the same tensor.

    Raises:
        TasklabError: If names or shapes are not those of one model, there is nothing to merge,
            masks differ, or a number that is not finite would come out.

    >>> merged([{"w": torch.tensor(1.0)}, {"w": torch.tensor(3.0)}], [0.5, 0.5])
    {'w': tensor(2.)}
    """
    weights = [_coefficient(weight) for weight in weights]
    if len(weights) != len(terms):
        raise TasklabError(f"{len(terms)} terms cannot have {len(weights)} weights.")
    start = theta0
    if start is None:
        if not terms:
            raise TasklabError("there is nothing to merge: give at least one model.")
        start = terms[0]
        if any(term.keys() != start.keys() for term in terms):
            raise TasklabError("models with different parameters cannot be merged.")
    whole = isinstance(start, TaskVector)  # has weights alone, and may be on the disk
    fixed = set() if whole else {name for name, x in start.items() if x.dtype not in _COMPUTED}
    for term in terms:
        check_fits(term, start)
        if theta0 is not None:
            _check_types({n: start[n] for n in fixed if n in term})
            _check_types({} if isinstance(term, TaskVector) else term)
        elif odd := [n for n in fixed if start[n].numel() > 1 and (term[n] != start[n]).any()]:
            raise TasklabError(f"{_listed(sorted(odd))} differ, and are no weights to be averaged.")
    total: dict[str, Tensor] = {}  # of what some term names
    for term, weight in zip(terms, weights, strict=True):
        for name, tensor in term.items():
            if name in fixed:
                continue
            if name in total:
                total[name].add_(tensor.to(total[name]), alpha=weight)
            elif theta0 is None:
                total[name] = tensor * weight
            else:
                total[name] = torch.add(theta0[name], tensor.to(theta0[name]), alpha=weight)
    _finite(total, f"the model merged with {_listed([f'{weight:g}' for weight in weights])}")
    return {name: total[name] if name in total else start[name] for name in start}


def check_fits(vector: Mapping[str, Tensor], theta: Mapping[str, Tensor]) -> None:
    """Raise a `TasklabError` if a vector names a parameter that theta lacks, or of another shape.

    Args:
        vector: What is added.
        theta: Parameters that it is added to.
    """
    _present(vector, theta, "the parameters to edit")
    _same_shapes(vector, theta, vector)


def _base_in(meta: dict[str, Any]) -> Base | None:
    """Take the base out of what a file tells, where it has one as `save` writes it."""
    base = meta.get("base")
    if not isinstance(base, dict) or sorted(base) != sorted(Base._fields):
        return None
    if not all(isinstance(text, str) for text in base.values()):
        return None
    return Base(**meta.pop("base"))


def _coefficient(value: object) -> float:
    """Return a coefficient, or raise if it is no finite number that weights can be scaled by."""
    try:
        if abs(number := float(value if isinstance(value, str) else _number(value))) <= _LARGEST:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise TasklabError(
        f"a coefficient must be a finite number, of at most {_LARGEST:g}, not {shown(value)}."
    )


def _number(value: object) -> numbers.Real | None:
    """Return a real number, also out of an array or tensor without axes; `None` for all else."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, numbers.Real) else None


def _whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _check_types(tensors: Mapping[str, Tensor]) -> None:
    """Raise a `TasklabError` for tensors that cannot be scaled and added."""
    kinds = {name: x.dtype for name, x in tensors.items() if x.dtype not in _COMPUTED}
    if kinds:
        wrong = [f"{name} ({str(kind).removeprefix('torch.')})" for name, kind in kinds.items()]
        raise TasklabError(
            f"{_listed(wrong)}: task vectors are of floating-point numbers of 16 to 64 bits. Leave "
            "counters and masks out; convert 8-bit numbers by .float()."
        )


def _finite(tensors: Mapping[str, Tensor], subject: str) -> None:
    """Raise if a number is not finite, which a sum shows in one pass; only then look closer."""

    def total(tensor: Tensor) -> float:
        return float(tensor.detach().sum(dtype=torch.promote_types(tensor.dtype, torch.float32)))

    odd = [name for name, tensor in tensors.items() if not math.isfinite(total(tensor))]
    if broken := [name for name in odd if not tensors[name].isfinite().all()]:
        raise TasklabError(f"{subject} is not finite: NaN or infinity in {_listed(broken)}.")


def _present(names: Iterable[str], params: Mapping[str, Tensor], side: str) -> None:
    if missing := [name for name in names if name not in params]:
        raise TasklabError(f"{side} lack {_listed(missing)}: is it a vector of another model?")


def _same_shapes(
    names: Iterable[str], one: Mapping[str, Tensor], two: Mapping[str, Tensor]
) -> None:
    if wrong := [
        f"{name} {tuple(one[name].shape)} and {tuple(two[name].shape)}"
        for name in sorted(names)
        if one[name].shape != two[name].shape
    ]:
        raise TasklabError(f"shapes differ: {_listed(wrong)}.")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
