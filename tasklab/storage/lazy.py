"""Tensors by name that are made or read on access."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Lazy(Mapping[str, "Tensor"], abc.ABC):
    """Tensors by name, each made or read on access, so that none is held."""

    names: Collection[str]  #: Of the tensors, in their order

    @abc.abstractmethod
    def like(self, name: str) -> Tensor:
        """Return a tensor without numbers, of the same shape and type."""

    def __contains__(self, name: object) -> bool:  # a mapping's own would make the tensor
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Renamed(Lazy):
    """Tensors of other mappings under names of its own.

    Args:
        of: By name the mapping that has the tensor, and its name there.
    """

    def __init__(self, of: Mapping[str, tuple[Mapping[str, Tensor], str]]) -> None:
        self.names = self._of = of

    def __getitem__(self, name: str) -> Tensor:
        held, stored = self._of[name]
        return held[stored]

    def like(self, name: str) -> Tensor:
        """Return a tensor without numbers, of the same shape and type."""
        held, stored = self._of[name]
        return like(held, stored).to("meta")


def like(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a tensor of the same shape and type; of tensors that are not held, without numbers.

    Args:
        tensors: Tensors by name.
        name: Of one of them.
    """
    return tensors.like(name) if isinstance(tensors, Lazy) else tensors[name]
