"""Merge any networks of one architecture: state dicts, modules, or files of safetensors.

    merged = tasklab.merge(base, [a, b, c], "ties", keep=0.2, alpha=1.0)        # tensors by name
    tasklab.merge("base/", ["a/", "b/"], "tsv_m", out="merged.safetensors")     # a tensor at a time

What a rule does to a parameter depends on its name and shape:

- *matrix* (two axes, of a linear layer): rules of matrices apply (TSV-M, Iso-C, WUDI, ...).
- *table* (two axes, of embeddings, positions, biases of attention): those rules take the mean.
- *other* (norms, biases, kernels of convolutions): those rules take the mean.
- *state* (whole numbers, masks, running statistics): the base's stay, whatever the rule.

All other rules (sums, TIES, DARE, ...) treat matrices, tables and others alike. `matrices` and
`tables` change what a name is taken for.

Parameters that share memory in the base are merged once, and tied again. Of files nothing is held
but what one parameter needs, and what a rule sums up over all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import safetensors.torch
import torch
from torch import Size, Tensor, nn

from tasklab.analyses.merging import adapters, defaults, registry, spaces, vectors
from tasklab.errors import TasklabError, abridged, choose, path, real, shown
from tasklab.progress import LATER, bar
from tasklab.storage import atomic, checksums
from tasklab.storage.lazy import Lazy
from tasklab.storage.tensors import explained, write_stream
from tasklab.taskvector import TaskVector

Network: TypeAlias = Mapping[str, Tensor] | nn.Module | Path | str
_STATE = re.compile(r"(?:^|\.)(?:running_(?:mean|var)|num_batches_tracked)$")
_FAR = 0.8  # length of a change over the base's: independent networks are about sqrt(2) apart
_ALIKE = 0.9  # cosine of changes that come from a start of their own
_log = logging.getLogger(__name__)


class Files(Lazy):
    """The tensors of a file or folder of safetensors, each read when it is asked for."""

    def __init__(self, place: Path) -> None:
        files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
        if not files:
            raise TasklabError(f"{str(place)!r} has no *.safetensors files.")
        self.place, self._of, self._state = place, dict[str, Path](), dict[Path, Any]()
        for file in files:
            with _opened(file) as tensors:
                names = list(tensors.keys())
            self._state[file] = checksums.state(file)
            if twice := [name for name in names if name in self._of]:
                raise TasklabError(
                    f"{str(place)!r} has {abridged(twice)} in several files: name one of them."
                )
            self._of |= dict.fromkeys(names, file)

    def __getitem__(self, name: str) -> Tensor:
        file = self._of[name]
        if checksums.state(file) != self._state[file]:
            raise TasklabError(f"{file} changed while it was in use.")
        with _opened(file) as tensors:
            return tensors.get_tensor(name)

    def like(self, name: str) -> Tensor:
        """Return a tensor without numbers, of the same shape and type."""
        with _opened(self._of[name]) as tensors:
            part = tensors.get_slice(name)
            dtype = safetensors.torch._getdtype(part.get_dtype())
            return torch.empty(part.get_shape(), dtype=dtype, device="meta")

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


class _Change(Lazy):
    """theta - theta_0 in single precision at least, a parameter at a time."""

    def __init__(
        self, theta0: Mapping[str, Tensor] | None, theta: Mapping[str, Tensor], names: Sequence[str]
    ) -> None:
        self.theta0, self.theta, self.names = theta0, theta, dict.fromkeys(names)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        if isinstance(self.theta, adapters.Adapter):
            return self.theta.change(name)
        made = _single(self.theta[name].detach().cpu())
        start = None if self.theta0 is None else self.theta0[name].detach().cpu()
        made = made.clone() if start is None else made - _single(start)
        return made.contiguous()

    def like(self, name: str) -> Tensor:
        """Return a tensor without numbers, of the same shape and type."""
        return _single(_like(self.theta, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def merge(
    base: Network | None,
    models: Sequence[Network],
    method: str = "arithmetic",
    *,
    alpha: float | None = None,
    out: Path | str | None = None,
    matrices: str | None = None,
    tables: str | None = None,
    rank: int | None = None,
    space: str | None = None,
    unrelated: bool = False,
    **options: Any,
) -> dict[str, Tensor] | Path:
    """Merge networks of one architecture into one.

    Args:
        base: What they were fine-tuned from: a state dict, a module, or a file or folder of
            safetensors. `None` for `average`, which needs none.
        models: The fine-tuned networks, each in any of these forms, or a folder of an adapter of
            peft (LoRA). Of adapters alone only what one of them changes is merged.
        method: A rule of `tasklab list merges` that needs no images.
        alpha: Coefficient of the merged change; for `average` 1. It must be given where more than
            one network is not averaged: nothing measured supports a value for an unknown network.
        out: File of safetensors to write, a parameter at a time; by default tensors are returned.
        matrices: Pattern of names that are matrices, although they look like tables of embeddings.
        tables: Pattern of names that are no matrices, although they have two axes.
        rank: Write the merged change to the folder `out` as an adapter of this rank; what that
            loses is logged.
        space: `knots` or `core`: where sums, TIES, DARE, TSV-M and Iso-C work (`spaces`).
        unrelated: Merge also what does not look like a change of the base.
        **options: Of the rule, e.g. keep=0.3 for `ties`.

    Returns:
        The merged parameters by name, in the base's types, with its whole numbers and statistics;
        or the path of the file.

    Raises:
        TasklabError: If names or shapes do not meet, a rule needs images, a network is no change of
            the base (its change is longer than 0.8 times the base, or all changes have one
            direction), or the file cannot be written.

    >>> base, a, b = ({"w": torch.tensor(x)} for x in ([4.0, 4.0], [5.0, 4.0], [4.0, 6.0]))
    >>> merge(base, [a, b], alpha=0.5)["w"]
    tensor([4.5000, 5.0000])
    >>> merge(None, [a, b], "average")["w"]
    tensor([4.5000, 5.0000])
    """
    chosen = registry.check(method, options)
    if chosen.needs:
        raise TasklabError(
            f"{method} reads images of the tasks, which an unknown network does not tell how to: "
            "choose a rule that needs none, such as ties, tsv_m or iso_c."
        )
    target = None if out is None else path("out", out)
    if rank is not None and target is None:
        raise TasklabError("an adapter of a rank is written to a folder: give out.")
    if target is not None and rank is None:
        atomic.check_suffix("merged networks", target, ".safetensors")
    if isinstance(models, str | Path | Mapping | nn.Module):
        raise TasklabError("give the networks as a list: merge(base, [a, b]).")
    if base is None and (method != "average" or rank is not None):
        raise TasklabError(f"{method} merges changes: give the base; only average needs none.")
    theta0 = None if base is None else _read(base)
    each = [_read(model, theta0) for model in models]
    alpha = _coefficient(method, alpha, len(each))
    first = theta0 if theta0 is not None else each[0]
    names, twins = _parameters(first, each)
    if all(isinstance(one, adapters.Adapter) for one in each):
        changed = {name for one in each for name in one.changed}  # type: ignore[attr-defined]
        names = [name for name in names if name in changed]
    changes = [TaskVector.lazy(_Change(theta0, theta, names)) for theta in each]
    if theta0 is not None and not unrelated:
        _check_related(theta0, changes, names)
    kept = [name for name in first if not _merges(name, _like(first, name))]
    if kept:
        _log.info("%d whole numbers and statistics stay those of the base", len(kept))
    with vectors.told(matrices, tables):
        if space is None:
            tau = chosen.function(changes, alpha=alpha, **options)
        else:
            choose("space", space, spaces.SPACES)
            choose(f"rule in the space {space}", method, spaces.RULES)
            products = [getattr(one, "factors", lambda _: None) for one in each]
            tau = spaces.merge(space, chosen.function, changes, products, alpha=alpha, **options)
        if rank is not None and target is not None:
            start = str(base) if isinstance(base, str | Path) else None
            lost = adapters.factored(tau, target, rank=rank, start=start)
            worst = max(lost, key=lost.__getitem__, default=None)
            if worst is not None:
                _log.info("rank %d loses %.1f %% of %s at most", rank, 100 * lost[worst], worst)
            return target
        made = _made(first, theta0, tau, twins)
        if target is None:
            return dict(made)
        shapes = {name: _like(first, name) for name in first}
        with explained(target.parent, "write to", "out"), atomic.replacing(target) as draft:
            write_stream(draft, shapes, made)
    return target


def is_plain(place: Path) -> bool:
    """Return whether a file or folder holds a network's safetensors, or an adapter: no vector."""
    if place.is_dir():
        return adapters.is_adapter(place) or (
            any(place.glob("*.safetensors")) and all(map(is_plain, place.glob("*.safetensors")))
        )
    if place.suffix != ".safetensors" or not place.is_file():
        return False
    with _opened(place) as tensors:
        return not {"tasklab", "meta", "checksum"} & set(tensors.metadata() or {})


def _made(
    first: Mapping[str, Tensor],
    theta0: Mapping[str, Tensor] | None,
    tau: Mapping[str, Tensor],
    twins: Mapping[str, str],
) -> Iterator[tuple[str, Tensor]]:
    """Yield the merged parameters in the base's order and types."""
    done: dict[str, Tensor] = {}  # what is tied to a later name
    with bar(len(first), "merge", unit="tensor", soon=LATER) as shown_:
        for name in first:
            of = twins.get(name, name)
            if of in done:
                merged = done[of].clone()
            elif of in tau:
                start = first[of].detach()
                merged = tau[of]
                if theta0 is not None:
                    merged = _single(start.cpu()) + merged
                merged = merged.to(start.dtype)
                if not bool(merged.isfinite().all()):
                    raise TasklabError(f"the merged {shown(name)} is not finite.")
            else:
                merged = first[name].detach().clone()
            if of in twins.values():
                done[of] = merged
            shown_.update()
            yield name, merged


def _read(network: Network, base: Mapping[str, Tensor] | None = None) -> Mapping[str, Tensor]:
    if isinstance(network, nn.Module):
        return network.state_dict()
    if isinstance(network, Mapping):
        if odd := [n for n, x in network.items() if not isinstance(x, Tensor)]:
            raise TasklabError(f"{abridged(odd)} of a state dict is no tensor.")
        return network
    place = path("a network", network)
    if not place.exists():
        raise TasklabError(f"there is no file or folder {str(place)!r}.")
    if place.is_file() and place.suffix != ".safetensors":
        raise TasklabError(
            f"{str(place)!r} is no file of safetensors; of another one, give the state dict: "
            "torch.load(file, weights_only=True)."
        )
    if adapters.is_adapter(place):
        if base is None:
            raise TasklabError(f"{str(place)!r} is an adapter: give the base that it changes.")
        return adapters.Adapter(place, Files(place / adapters.WEIGHTS), base)
    return Files(place)


def _coefficient(method: str, alpha: float | None, count: int) -> float:
    if alpha is not None:
        return real("alpha", alpha, -math.inf)
    if method == "average" or count == 1:
        return 1.0
    small = ""
    if defaults.known(method):
        begin = defaults.of(method).alpha(count)
        small = f" In small CLIPs {begin:.2g} was about the best for {count} vectors;"
    raise TasklabError(
        f"give alpha: no recorded setting supports a coefficient of {method} for this network."
        f"{small or ' You can'} try several on held-out data, and average, which needs none."
    )


def _parameters(
    first: Mapping[str, Tensor], each: Sequence[Mapping[str, Tensor]]
) -> tuple[list[str], dict[str, str]]:
    """Return the names that are merged, and tied names with those that stand for them."""
    if not each:
        raise TasklabError("there are no networks to merge: merge(base, [a, b]).")
    for number, other in enumerate(each, 1):
        lacking = [name for name in first if name not in other]
        added = [name for name in other if name not in first]
        if lacking or added:
            what = f"lacks {abridged(lacking)}" if lacking else f"has {abridged(added)} beside"
            raise TasklabError(f"network {number} {what}: networks must have the same parameters.")
        for name in first:
            one, two = _like(first, name), _like(other, name)
            if one.shape != two.shape:
                raise TasklabError(
                    f"{shown(name)} has shape {tuple(one.shape)} in the base and "
                    f"{tuple(two.shape)} in network {number}: they are of different architectures."
                )
    names, twins, memory = [], dict[str, str](), dict[tuple[int, Size, tuple[int, ...]], str]()
    for name in first:
        like = _like(first, name)
        if not _merges(name, like):
            continue
        tied = None
        if not like.is_meta and like.numel():
            tied = memory.setdefault((like.data_ptr(), like.shape, like.stride()), name)
        if tied in (None, name):
            names.append(name)
        else:
            twins[name] = str(tied)
    if not names:
        raise TasklabError("the networks have no parameters to merge.")
    return names, twins


def _merges(name: str, like: Tensor) -> bool:
    return like.is_floating_point() and not _STATE.search(name)


def _check_related(
    theta0: Mapping[str, Tensor], changes: Sequence[TaskVector], names: Sequence[str]
) -> None:
    """Raise if a network is no change of the base, or all have changed from another one."""
    many = len(changes)
    gram, start = torch.zeros(many, many, dtype=torch.float64), 0.0
    with bar(len(names), "compare with the base", unit="tensor", soon=LATER) as shown_:
        for name in names:
            parts = [change[name].double().reshape(-1) for change in changes]
            for i, j in itertools.combinations_with_replacement(range(many), 2):
                gram[j, i] += parts[j] @ parts[i]
            start += float(_single(theta0[name].detach().cpu()).double().square().sum())
            shown_.update()
    lengths = gram.diagonal().sqrt()
    if not bool(lengths.isfinite().all()):
        raise TasklabError("a network has parameters that are not finite.")
    for number, length in enumerate(lengths.tolist(), 1):
        if length > _FAR * math.sqrt(start):
            raise TasklabError(
                f"network {number} is no change of the base: it is {length / math.sqrt(start):.2f} "
                "times the base's length away. Give the network that it was fine-tuned from, or "
                "unrelated=True."
            )
    cosines = [
        float(gram[i, j] / (lengths[i] * lengths[j]))
        for i in range(many)
        for j in range(i)
        if lengths[i] and lengths[j]
    ]
    if cosines and min(cosines) > _ALIKE:
        raise TasklabError(
            f"all networks have changed in one direction (cosines of {min(cosines):.3f} and more): "
            "they were probably fine-tuned from another base. Give that one, or unrelated=True."
        )


def _like(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    return tensors.like(name) if isinstance(tensors, Lazy) else tensors[name]


def _single(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(file, framework="pt") as tensors:
            yield tensors
    except (safetensors.SafetensorError, OSError) as error:
        raise TasklabError(f"{str(file)!r} is not a whole safetensors file ({error}).") from error
