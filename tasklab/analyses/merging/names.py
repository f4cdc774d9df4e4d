"""Names of networks' tensors: select the parameters, and match the names of two networks."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from tasklab.storage.lazy import Renamed, like

_STATE = re.compile(r"(?:^|\.)(?:running_(?:mean|var)|num_batches_tracked)$")
_MASK = re.compile(r"(?:^|\.)(?:weight|bias)_mask$")  # of pruning
#: What training code puts in front of names
_WRAPPERS = re.compile(r"^((model|network|net|module|_orig_mod|_forward_module)\.)+")
# And within names, where no module of a network is called so
_INNER = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_fpw_module|_checkpoint_wrapped_module|"
    r"_forward_module)\."
)


def merges(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter.

    Whole numbers, floats of 8 bits, masks of pruning, running statistics and counters are none.
    """
    floating = tensor.is_floating_point() and tensor.element_size() > 1
    return floating and not is_statistic(name) and not _MASK.search(name)


def is_statistic(name: str) -> bool:
    """Return whether a name is that of a running statistic or a counter."""
    return bool(_STATE.search(name))


def single(tensor: Tensor) -> Tensor:
    """Return a tensor in single precision at least."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def aligned(first: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return tensors by another network's names, if the names differ by a common prefix.

    Both may have prefixes of wrappers (`module.`, `model.`), and words of torch.compile and FSDP
    anywhere. A tied parameter that one of the two files leaves out is read from its twin. Integers
    and statistics, which are not merged, may be missing or added.

    >>> x = torch.ones(1)
    >>> list(aligned({"a.bias": x, "w": x}, {"module.a.bias": x, "module.w": x}))
    ['a.bias', 'w']
    """
    here, there = set(first), set(other)
    if here == there or not here:
        return other
    mine, theirs = getattr(first, "tied", {}), getattr(other, "tied", {})
    known = {name: name for name in other if name in here or not _twin(other, name, mine)}
    known |= {name: of for name, of in theirs.items() if name in here - there}
    if set(known) == here:
        return Renamed({name: (other, of) for name, of in known.items()})
    ours, stored = _plain(first), _plain(other)
    fronts = _fronts(*({name for name, of in plain.items() if merges(of, like(held, of))}
                       for plain, held in ((ours, first), (stored, other))))  # fmt: skip
    if fronts is None:
        return other
    here_front, there_front = fronts
    turned = {of: there_front + name.removeprefix(here_front) for name, of in ours.items()}
    return Renamed({n: (other, stored[one]) for n, one in turned.items() if one in stored})


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return stored names by those without the words of wrappers within them."""
    plain = {_INNER.sub("", name): name for name in tensors}
    return plain if len(plain) == len(tensors) else {name: name for name in tensors}


def _fronts(here: Collection[str], there: Collection[str]) -> tuple[str, str] | None:
    """Return the prefix of each side without which both have the same names, or `None`."""
    if here == there:
        return "", ""
    if not here or not there:
        return None
    short = min(here, key=len)
    for name in there:
        for long, end, more, less in ((name, short, there, here), (short, name, here, there)):
            front = long.removesuffix(end)
            if long.endswith(f".{end}") and {front + one for one in less} == more:
                return ("", front) if more is there else (front, "")
    ours, theirs = _front(here), _front(there)
    if {name.removeprefix(ours) for name in here} == {x.removeprefix(theirs) for x in there}:
        return ours, theirs
    return None


def _front(names: Collection[str]) -> str:
    """Return the wrappers' prefix that all names share."""
    common = os.path.commonprefix([*names])
    return match[0] if (match := _WRAPPERS.match(common)) else ""


def _twin(tensors: Mapping[str, Tensor], name: str, tied: Mapping[str, str]) -> bool:
    return (of := tied.get(name)) in tensors and torch.equal(tensors[name], tensors[str(of)])
