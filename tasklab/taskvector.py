"""Task vectors: changes by fine-tuning, immutable and keyed by parameter names.

With tau = theta - theta_0, a model is edited by theta_0 + sum_i alpha_i tau_i (`merged`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from tasklab import storage
from tasklab.errors import TasklabError, shown
from tasklab.errors.advice import Advised
from tasklab.storage import seals
from tasklab.storage.lazy import Lazy
from tasklab.storage.placement import device_of
from tasklab.sums import (
    check_apart,
    check_finite,
    check_present,
    check_shapes,
    check_types,
    coefficient,
    merged,
    number,
    whole,
)


class Base(NamedTuple):
    """The weights theta_0 that a task vector starts from."""

    model: str
    init: str
    weights: str  #: `Encoder.weights_hash`
    #: How the vector was fine-tuned, of a sum of several methods `a+b`; empty if not known.
    method: str = ""


class TaskVector(Advised, Mapping[str, Tensor]):
    """The vector tau = theta - theta_0, one tensor per parameter that differs.

    It is made of tensors, arrays or lists. Tensors are not copied: writing to one changes
    the vector. A parameter that it does not name has the value 0 in it. Vectors add, subtract and
    scale to new ones, by numbers of Python, numpy and torch; the built-in `sum` works.

    Where the weights that a vector starts from are known, `base` has them: `save` writes them down,
    `load` reads them, and sums and multiples of vectors of one base keep it.

    >>> a, b = TaskVector({"w": torch.ones(2)}), TaskVector({"b": torch.ones(1)})
    >>> (a / 2 - b)["w"].tolist(), (a / 2 - b)["b"].tolist()
    ([0.5, 0.5], [-1.0])
    """

    _advice = MappingProxyType(
        {
            "cpu cuda": 'vector.to("{name}")',
            "cos cosine_similarity": "vector.cosine(other)",
            "inner": "vector.dot(other), or vector @ other",
            "tensors params state_dict numel shape flatten numpy": "it is a mapping: dict(vector)",
            "apply_to": "vector.apply(lab.clip.encoder.params)",
            "from_models from_checkpoints from_state_dict from_pretrained": (
                "TaskVector.between(theta, theta0), or lab.vector(path) of a checkpoint"
            ),
        }
    )
    __slots__ = ("_digest", "_tensors", "base", "label")
    __array_ufunc__ = None  # numpy's numbers leave products to this class

    def __init__(self, tensors: Mapping[str, Any], base: Base | None = None) -> None:
        named = isinstance(tensors, Mapping)
        if not named or (odd := [x for x in tensors if not isinstance(x, str)]):
            what = shown(odd[0] if named else tensors)
            raise TasklabError(f"a TaskVector is made of tensors by parameters' names, not {what}.")
        found = {name: _tensor(name, tensor) for name, tensor in tensors.items()}
        self._tensors: Mapping[str, Tensor] = MappingProxyType(found)
        self._checked()
        self.base, self.label = base, ""  # `label`: its task and seed, for `repr`
        self._digest = (0, "")

    def fingerprint(self) -> str:
        """Return the SHA-256 of its names, shapes and numbers."""
        if not self._known():
            self._digest = self._stamp(), seals.sha256(self)
        return self._digest[1]

    def _known(self) -> str:
        """Return the fingerprint; empty if not computed since a tensor was written to."""
        stamp, digest = self._digest
        return digest if digest and stamp == self._stamp() else ""

    def _stamp(self) -> int:
        return 0 if isinstance(self._tensors, Lazy) else seals.stamp(self._tensors)

    @classmethod
    def between(
        cls,
        theta0: Mapping[str, Tensor],
        theta: Mapping[str, Tensor],
        names: Iterable[str] | None = None,
        base: Base | None = None,
    ) -> TaskVector:
        """Return theta - theta_0, without the counters and masks that a state dict has.

        The `names` are by default all floating-point ones, which both must then have. A state dict
        is the network's own memory: `theta0` must be a copy from before fine-tuning.

        Args:
            theta0: theta_0 by the name of each parameter.
            theta: The fine-tuned parameters by name.
            names: Only these parameters.
            base: The weights that the vector starts from, if known.
        """
        if odd := next((x for x in (theta0, theta) if not isinstance(x, Mapping)), None):
            raise TasklabError(
                f"weights are a state dict, as of model.state_dict(), not {shown(odd)}."
            )
        given = names is not None
        names = sorted(theta0.keys() | theta.keys()) if names is None else list(names)
        for side, params in (("pre-trained", theta0), ("fine-tuned", theta)):
            check_present(names, params, f"the {side} parameters")
        if not given:
            names = [n for n in names if not (whole(theta0[n]) and whole(theta[n]))]
        check_shapes(names, theta0, theta)
        for params in (theta0, theta):
            check_types({name: params[name] for name in names})
        check_apart(names, theta0, theta)
        pairs = {name: (theta[name].detach(), theta0[name].detach()) for name in names}
        return cls(
            {name: one.to(start.device) - start for name, (one, start) in pairs.items()}, base
        )

    @classmethod
    def zeros_like(cls, params: Mapping[str, Tensor]) -> TaskVector:
        """Return the zero vector over the names and shapes of `params`."""
        return cls({name: torch.zeros_like(tensor) for name, tensor in params.items()})

    @classmethod
    def sum(cls, vectors: Iterable[TaskVector]) -> TaskVector:
        """Return the sum of the vectors; without vectors, the empty vector."""
        return sum(vectors, cls({}))

    @classmethod
    def load(cls, path: Path | str) -> TaskVector:
        """Return the vector of a file of `save`, `tasklab merge` or `tasklab export`."""
        tensors, base = storage.vectors.load(path, Base._fields, tuple(Base._field_defaults))
        return cls(tensors, None if base is None else Base(**base))

    def save(self, path: Path | str) -> Path:
        """Write vector, base and checksum to a safetensors file in one step; return its path."""
        known = None if self.base is None else self.base._asdict()
        return storage.vectors.save(path, self, known)

    @classmethod
    def of_file(
        cls, tensors: Mapping[str, Tensor], file: Path | None, base: Base | None = None
    ) -> TaskVector:
        """Return a vector of a file's tensors, checked for NaN and infinity once a process.

        The `file` is `None` if it is not written yet.

        Args:
            tensors: The file's tensors by name.
            file: The file.
            base: The weights that the vector starts from, if known.
        """
        made = cls._trusted({name: tensor.detach() for name, tensor in tensors.items()}, base)
        if file is None:
            made._checked()
        else:
            storage.checksums.once(file, "finite", lambda _: made._checked())
        return made

    @classmethod
    def lazy(cls, tensors: Lazy) -> TaskVector:
        """Return a vector whose tensors are made on access, unchecked."""
        return cls._trusted(tensors, None)

    @classmethod
    def _trusted(
        cls, tensors: Mapping[str, Tensor], base: Base | None, digest: str = ""
    ) -> TaskVector:
        made = object.__new__(cls)
        made._tensors = tensors if isinstance(tensors, Lazy) else MappingProxyType(tensors)
        made.base, made.label, made._digest = base, "", (made._stamp() if digest else 0, digest)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return self._trusted, (dict(self), self.base, self._known())

    def _checked(self) -> str:
        check_types(self._tensors)
        check_finite(self._tensors, "the task vector")
        return "finite"

    def on_disk(self, path: Path) -> TaskVector:
        """Return this vector with tensors that are read from a file on access, and held nowhere."""
        return self._trusted(storage.files.Files(path, self), self.base, self._known())

    def starting_from(self, base: Base | None) -> TaskVector:
        """Return this vector, known to start from some weights."""
        return self._trusted(self._tensors, base, self._known())

    @property
    def method(self) -> str:
        """How it was fine-tuned; empty if that is not known."""
        return "" if self.base is None else self.base.method

    @property
    def held(self) -> Mapping[str, Tensor]:
        """Its tensors: a dictionary, or on the disk."""
        return self._tensors

    def like(self, name: str) -> Tensor:
        """Return a tensor of a parameter's shape and type; without numbers if none are held."""
        held = self._tensors
        return held.like(name) if isinstance(held, Lazy) else held[name]

    @property
    def device(self) -> torch.device:
        """Where its tensors are; the CPU for the empty vector."""
        return device_of(self)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        known = filter(None, (self.label, self.method, self.base.model if self.base else ""))
        numbers = f"{len(self)} tensors, {sum(x.numel() for x in self.values()):,} numbers"
        long = "no values" if self.device.type == "meta" else f"norm {self.norm():.4g}"
        return f"TaskVector({', '.join([*known, numbers, long])})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskVector):
            return NotImplemented
        names = self.keys() == other.keys()
        return names and all(torch.equal(self[n], other[n].to(self[n].device)) for n in self)

    __hash__ = None  # type: ignore[assignment]  # as Python has it of what has no hash

    def __add__(self, other: object) -> TaskVector:
        if number(other) == 0:  # `sum` starts from it
            return self
        if not isinstance(other, TaskVector):
            return NotImplemented
        self, other = _beside(self, other)
        shared = self.keys() & other.keys()
        check_shapes(shared, self, other)
        both = {name: self[name] + other[name] for name in shared}
        return TaskVector({**self, **other, **both}, shared_base([self, other]))

    __radd__ = __add__

    def __sub__(self, other: object) -> TaskVector:
        return self + (-other) if isinstance(other, TaskVector) else NotImplemented

    def __neg__(self) -> TaskVector:
        return TaskVector({name: -tensor for name, tensor in self.items()}, self.base)

    def __mul__(self, scale: object, by: Callable = operator.mul) -> TaskVector:
        if number(scale) is None:
            return NotImplemented
        scale = coefficient(scale)
        return TaskVector({name: by(tensor, scale) for name, tensor in self.items()}, self.base)

    __rmul__ = __mul__

    def __truediv__(self, scale: object) -> TaskVector:
        if number(scale) == 0:
            raise TasklabError("a task vector cannot be divided by 0.")
        return self.__mul__(scale, operator.truediv)

    def __matmul__(self, other: object) -> float:
        return self.dot(other) if isinstance(other, TaskVector) else NotImplemented

    def dot(self, other: TaskVector) -> float:
        """Return the inner product, summed in float64; `a @ b` is the same."""
        shared = sorted(self.keys() & other.keys())
        check_shapes(shared, self, other)
        self, other = _beside(self, other)
        parts = [(self[n].double() * other[n].double()).sum() for n in shared]
        return math.fsum(torch.stack(parts).tolist()) if parts else 0.0

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
        """Return theta_0 + alpha tau, in the device and type of theta_0.

        For several alpha the models come one after another.
        """
        if not isinstance(theta0, Mapping):
            raise TasklabError(
                f"a vector is added to parameters by name, not {type(theta0).__name__}: "
                "vector.apply(lab.clip.encoder.params)."
            )
        if number(alpha) is None and isinstance(alpha, Iterable) and not isinstance(alpha, str):
            return (self.apply(theta0, one) for one in list(alpha))
        return merged([self], [alpha], theta0)

    def to(self, device: torch.device | str) -> TaskVector:
        """Return the vector on a device, uncopied if it is on it."""
        device = torch.device(device)
        if all(tensor.device == device for tensor in self.values()):
            return self
        moved = {name: tensor.to(device) for name, tensor in self.items()}
        return self._trusted(moved, self.base, self._known())


def shared_base(vectors: Iterable[TaskVector]) -> Base | None:
    """Return the base of all non-zero vectors; `None` without a common one.

    >>> base, one = Base("mini", "pretrained", "0f"), {"w": torch.ones(1)}
    >>> shared_base([TaskVector(one, base), TaskVector({})])
    Base(model='mini', init='pretrained', weights='0f', method='')
    >>> shared_base([TaskVector(one, base), TaskVector(one)])
    """
    found = {vector.base for vector in vectors if vector}
    bases = {base._replace(method="") for base in found if base is not None}
    if len(bases) != 1 or None in found:
        return None
    methods = {base.method for base in found if base is not None}
    told = {name for method in methods for name in method.split("+")}
    return bases.pop()._replace(method="+".join(sorted(told)) if "" not in told else "")


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        value = value.detach()
        return value if value.layout == torch.strided else value.to_dense()
    try:
        if isinstance(value, np.ndarray):  # in an order of bytes and numbers that torch has
            value = np.require(value, value.dtype.newbyteorder("="), "CW")
        made = torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TasklabError(f"{shown(name)} must be a tensor, not {shown(value)}.") from None
    return made if made.is_floating_point() else made.float()


def _beside(one: TaskVector, other: TaskVector) -> tuple[TaskVector, TaskVector]:
    device = other.device if one.device.type == "cpu" else one.device
    return one.to(device), other.to(device)
