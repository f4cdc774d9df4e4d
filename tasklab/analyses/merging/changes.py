"""Changes of networks outside the table of models; check that they start from one base."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tasklab.analyses.merging import adapters
from tasklab.analyses.merging.names import is_statistic, merges, single
from tasklab.errors import TasklabError, abridged, shown
from tasklab.progress import LATER, bar
from tasklab.storage.lazy import Lazy, like

_log = logging.getLogger(__name__)
_FAR = 0.8  # length of a change over the base's: independent networks are about sqrt(2) apart
_ALIKE = 0.9  # cosine of changes that come from a start of their own


class Change(Lazy):
    """theta - theta_0 in single precision at least, a parameter at a time.

    Args:
        theta0: Parameters of the base; `None` stands for zeros.
        theta: Parameters of the network, or its adapter.
        names: Names of the parameters of the change.
    """

    def __init__(
        self, theta0: Mapping[str, Tensor] | None, theta: Mapping[str, Tensor], names: Sequence[str]
    ) -> None:
        self.theta0, self.theta, self.names = theta0, theta, dict.fromkeys(names)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        if isinstance(self.theta, adapters.Adapter):
            return self.theta.change(name)
        made = single(self.theta[name].detach().cpu())
        start = None if self.theta0 is None else self.theta0[name].detach().cpu()
        made = made.clone() if start is None else made - single(start)
        return made.contiguous()

    def like(self, name: str) -> Tensor:
        """Return a tensor without numbers, of the same shape and type."""
        return single(like(self.theta, name))


def equal(one: Tensor, other: Tensor) -> bool:
    """Return whether all numbers of two tensors of one shape are equal, in any types."""
    x, y = (each.detach().cpu() for each in (one, other))
    return bool(((x == y) if x.dtype == y.dtype and x.element_size() > 1 else _same(x, y)).all())


def _same(x: Tensor, y: Tensor) -> Tensor:
    x, y = (one.float() if one.is_floating_point() and one.element_size() == 1 else one
            for one in (x, y))  # fmt: skip
    return x == y


def check_kept(
    first: Mapping[str, Tensor], each: Sequence[Mapping[str, Tensor]], kept: Sequence[str]
) -> None:
    """Check that unmerged tensors of all networks equal the base's.

    Args:
        first: The base's tensors by name.
        each: The networks', or their adapters.
        kept: Names that are not merged; counters and running statistics may differ.

    Raises:
        TasklabError: If a network changes a tensor of whole or complex numbers or of 8 bits, as
            quantised ones, or a mask of pruning.
    """
    chosen = [
        name
        for name in kept
        if not is_statistic(name)
        and (
            like(first, name).is_complex()
            or like(first, name).is_floating_point()
            or like(first, name).dim() > 1
        )
    ]
    for number, other in enumerate(each, 1):
        if isinstance(other, adapters.Adapter):
            odd = [name for name in kept if name in other.changed]
            if statistics := [name for name in odd if is_statistic(name)]:
                raise TasklabError(
                    f"the adapter of network {number} saves {abridged(statistics)}, and a merge "
                    "leaves running statistics as in the base: merge it into its base by peft "
                    "(merge_and_unload), give the whole network, and then set them again."
                )
        else:
            held = [name for name in chosen if name in other]
            odd = [name for name in held if not equal(first[name], other[name])]
            odd += [n for n in first if n not in kept and not merges(n, like(other, n))]
        if odd:
            raise TasklabError(
                f"network {number} changes {abridged(odd)}, of whole or complex numbers, 8 bits or "
                "a mask: only floating-point parameters are merged. Give the weights from before "
                "they were quantised or pruned."
            )


def related(
    theta0: Mapping[str, Tensor],
    each: Sequence[Mapping[str, Tensor]],
    names: Sequence[str],
    unrelated: bool,
) -> list[str]:
    """Check that all networks were fine-tuned from the base, and return the names to merge.

    Args:
        theta0: Parameters of the base by name.
        each: Parameters of the networks.
        names: Names of the merged parameters.
        unrelated: Whether the networks may start from other weights.

    Returns:
        The names without those of masks, infinite in all networks alike.

    Raises:
        TasklabError: If a network is no change of the base, or all have changed from another one,
            or a parameter has NaN or infinity.
    """
    many, changes = len(each), [Change(theta0, theta, names) for theta in each]
    masks: set[str] = set()
    gram, start = torch.zeros(many, many, dtype=torch.float64), 0.0
    with bar(len(names), "compare with the base", unit="tensor", soon=LATER) as shown_:
        for name in names:
            parts = [change[name].double().reshape(-1) for change in changes]
            odd = [i for i, part in enumerate(parts, 1) if not bool(part.isfinite().all())]
            if odd and all(equal(theta0[name], theta[name]) for theta in each):
                masks.add(name)
                continue
            if odd:
                raise TasklabError(
                    f"{shown(name)} of network {odd[0]}, or of the base, is not finite (NaN or "
                    "infinity): give weights from before training diverged."
                )
            for i, j in itertools.combinations_with_replacement(range(many), 2):
                gram[j, i] += parts[j] @ parts[i]
            start += float(single(theta0[name].detach().cpu()).double().square().sum())
            shown_.update()
    if not unrelated:
        _check_related(gram, start)
    return [name for name in names if name not in masks]


def _check_related(gram: Tensor, start: float) -> None:
    """Raise unless changes are small, different, and not all in one direction.

    Args:
        gram: Products of the changes of T networks (T, T), below and on the diagonal.
        start: Square norm of the base.
    """
    many, lengths = len(gram), gram.diagonal().sqrt()
    for number, length in enumerate(lengths.tolist(), 1):
        if length > _FAR * math.sqrt(start):
            raise TasklabError(
                f"network {number} is no change of the base: it is {length / math.sqrt(start):.2f} "
                "times the base's length away. Give the network that it was fine-tuned from, or in "
                "Python unrelated=True."
            )
    for number, length in enumerate(lengths.tolist(), 1):
        if not length:
            _log.warning("network %d has the base's parameters: its change is 0", number)
    for i, j in itertools.combinations(range(many), 2):
        if lengths[i] and gram[j, i] == gram[i, i] == gram[j, j]:
            raise TasklabError(f"networks {i + 1} and {j + 1} are equal: give each network once.")
    cosines = [
        float(gram[i, j] / (lengths[i] * lengths[j]))
        for i in range(many)
        for j in range(i)
        if lengths[i] and lengths[j]
    ]
    if cosines and min(cosines) > _ALIKE:
        raise TasklabError(
            f"all networks have changed in one direction (cosines of {min(cosines):.3f} and more): "
            "they were probably fine-tuned from another base. Give that one, or in Python "
            "unrelated=True."
        )
