"""Changes by fine-tuning, computed from weights alone; no network is built or run.

    found = inspection.inspect({"cars": "cars/", "pets": "pets/"}, {"base": "base/"})
    found.changes[0].relative                     # |theta - theta_0| / |theta_0|
    found.cosines[0][1]                           # between the two changes

Networks are state dicts, modules, files or folders of safetensors, or adapters of peft, of any
architecture. Of files one parameter is held at a time.

A parameter that is theta_0 rounded to 16 bits or fewer counts as unchanged. For other parameters
that are rounded, the expected norm of the error is (sum of u_i^2 / 12)^(1/2) over all i that
changed, where u_i is the distance of neighbouring numbers of the type at theta_i.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tasklab.analyses.merging import adapters
from tasklab.analyses.merging.anything import Network
from tasklab.analyses.merging.names import single
from tasklab.analyses.weights import KINDS, kind_of, square_norm, stable_rank, steps
from tasklab.errors import TasklabError, abridged, path, shown
from tasklab.isolation import isolated
from tasklab.progress import LATER, bar
from tasklab.storage.files import Files
from tasklab.storage.lazy import Lazy, like

Tensors = Mapping[str, Tensor]
_GRIDS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """Change of the weights between a base and one network."""

    network: str
    base: str | None  #: The nearest base; `None` for a file that holds a change
    norm: float  #: |tau|, over the parameters that both have
    relative: float | None  #: |tau| / |theta_0|
    distances: dict[str, float]  #: |theta - theta_0| / |theta_0| for every base
    kinds: dict[str, dict[str, Any]]  #: By kind: number of tensors, moved ones, norm of the change
    numbers: int  #: Numbers in the parameters
    moved: int  #: Of these, how many changed
    types: dict[str, int]  #: Number of tensors by the type that they are stored in
    grids: dict[str, float]  #: Share of the parameters' numbers that bfloat16 or float16 can hold
    rounding: float | None  #: Expected norm of the rounding error, relative to |tau|
    ranks: dict[str, float]  #: Stable rank of each matrix' change
    only_rounded: tuple[str, ...]  #: Parameters that are theta_0 rounded
    state: tuple[str, ...]  #: Buffers and whole numbers that differ
    missing: tuple[str, ...]  #: Names that only the base has
    added: tuple[str, ...]  #: Names that only the network has
    reshaped: tuple[str, ...]  #: Names of two shapes
    not_finite: tuple[str, ...]  #: Names with NaN or infinity, left out of the rest
    tied: tuple[tuple[str, str], ...]  #: Embeddings with the same numbers, or memory, as another


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """Changes of several networks, and the angles between them."""

    changes: tuple[Change, ...]
    #: Cosines between changes in their order; `None` for different bases or without a change.
    cosines: tuple[tuple[float | None, ...], ...]
    tied: dict[str, tuple[tuple[str, str], ...]]  #: Tied parameters of each base


@isolated
def inspect(
    networks: Mapping[str, Network],
    bases: Mapping[str, Network] | None = None,
    *,
    vectors: Collection[str] = (),
) -> Inspection:
    """Compare fine-tuned networks with their base, tensor by tensor.

    Args:
        networks: By a name of your choice.
        bases: What they may have been fine-tuned from. Each network is compared with the base that
            has the most of its parameters, and of these with the nearest. Without a base, the
            second of two networks is compared with the first.
        vectors: Names of networks that hold a change instead of weights.

    Raises:
        TasklabError: If there is nothing to compare with, a network shares no parameter with any
            base, or an adapter or file cannot be read.

    >>> base, tuned = ({"w": torch.tensor([3.0, x])} for x in (4.0, 8.0))
    >>> (change,) = inspect({"tuned": tuned}, {"base": base}).changes
    >>> change.norm, change.relative, change.moved
    (4.0, 0.8, 1)
    """
    plain = [name for name in networks if name not in vectors]
    starts = {name: _tensors(base) for name, base in (bases or {}).items()}
    if not networks:
        raise TasklabError("name a network to inspect.")
    if plain and not starts:
        if len(networks) != 2 or len(plain) != 2:
            raise TasklabError(
                f"give the base that {shown(plain[0])} was fine-tuned from, or two networks alone, "
                "of which the first counts as the base."
            )
        starts = {plain[0]: _tensors(networks[plain[0]])}
        networks = {plain[1]: networks[plain[1]]}
    tallies = [_tally(name, networks[name], starts, name in vectors) for name in networks]
    many = len(tallies)
    gram = torch.zeros(many, many, dtype=torch.float64)
    names = dict.fromkeys(name for one in tallies for name in one.names)
    with bar(len(names), "inspect", unit="tensor", soon=LATER) as progress:
        for name in names:
            here = {
                i: change for i, one in enumerate(tallies) if (change := one.add(name)) is not None
            }
            for i, j in itertools.combinations(here, 2):
                if here[i].shape == here[j].shape:
                    gram[i, j] += here[i].double().flatten() @ here[j].double().flatten()
            progress.update()
    changes = tuple(one.result() for one in tallies)
    return Inspection(
        changes=changes,
        cosines=tuple(
            tuple(
                _cosine(changes[i], changes[j], float(gram[min(i, j), max(i, j)]), i == j)
                for j in range(many)
            )
            for i in range(many)
        ),
        tied={name: _tied(start) for name, start in starts.items()},
    )


class _Tally:
    """Sums over the parameters of one network."""

    def __init__(
        self, network: str, tensors: Tensors, base: str | None, start: Tensors | None
    ) -> None:
        self.network, self.tensors, self.base, self.start = network, tensors, base, start
        self.names = dict.fromkeys(tensors)
        self.distances: dict[str, float] = {}
        self.kinds = {kind: {"tensors": 0, "moved": 0, "norm": 0.0} for kind in KINDS}
        self.squares, self.start_squares, self.errors = 0.0, 0.0, 0.0
        self.types, self.on_grid = Counter[str](), Counter[str]()
        self.numbers, self.moved, self.ranks = 0, 0, dict[str, float]()
        self.only_rounded, self.state = list[str](), list[str]()
        self.reshaped, self.not_finite = list[str](), list[str]()

    def add(self, name: str) -> Tensor | None:
        """Measure one parameter, and return its change if it moved."""
        if name not in self.names:
            return None
        theta0: Tensor | None = None
        theta = self.tensors[name].detach().cpu()
        if not isinstance(self.tensors, adapters.Adapter):
            self.types[str(theta.dtype).removeprefix("torch.")] += 1
        if self.start is not None:
            if name not in self.start:
                return None
            theta0 = self.start[name].detach().cpu()
        if theta0 is not None and theta.shape != theta0.shape:
            self.reshaped.append(name)
            return None
        kinds = [kind_of(name, x) for x in (theta, theta0) if x is not None]
        kind = "state" if "state" in kinds else kinds[-1]
        self.kinds[kind]["tensors"] += 1
        if kind == "state":
            if theta0 is not None and not bool((theta == theta0).all()):
                self.state.append(name)
                self.kinds[kind]["moved"] += 1
            return None
        if isinstance(self.tensors, adapters.Adapter):
            change = self.tensors.change(name)
        else:
            change = single(theta) if theta0 is None else single(theta) - single(theta0)
        if not bool(change.isfinite().all()):
            self.not_finite.append(name)
            return None
        self.numbers += theta.numel()
        if theta0 is not None:
            self.start_squares += square_norm(theta0)
        if self._is_rounding(name, theta, theta0, change) or not bool(change.any()):
            return None
        self.moved += int((change != 0).sum())
        own, square = self.kinds[kind], square_norm(change)
        own["moved"] += 1
        own["norm"] += square
        self.squares += square
        if kind == "matrix":
            self.ranks[name] = stable_rank(change)
        return change

    def _is_rounding(
        self, name: str, stored: Tensor, theta0: Tensor | None, change: Tensor
    ) -> bool:
        """Count numbers on grids of 16 bits, and return whether rounding to one is all that moved.

        Args:
            name: Of the parameter.
            stored: Its tensor, as the file has it.
            theta0: That of the base; `None` without a base.
            change: Their difference.
        """
        if isinstance(self.tensors, adapters.Adapter):
            return False
        theta, exact = single(stored), list[torch.dtype]()
        for grid, dtype in _GRIDS.items():
            same = int((theta.to(dtype).to(theta.dtype) == theta).sum())
            self.on_grid[grid] += same
            exact += [dtype] if same == theta.numel() else []
        if theta0 is None or not bool(change.any()):
            return False
        on = [stored.dtype] if stored.dtype.itemsize < 4 else exact
        if any(torch.equal(single(theta0).to(kind).to(theta.dtype), theta) for kind in on):
            self.only_rounded.append(name)
            return True
        if on:
            self.errors += float((steps(theta, on[0]).double().square() * (change != 0)).sum())
        return False

    def result(self) -> Change:
        norm, start = math.sqrt(self.squares), self.start or {}
        others = {} if isinstance(self.tensors, adapters.Adapter) else self.tensors
        return Change(
            network=self.network,
            base=self.base,
            norm=norm,
            relative=norm / math.sqrt(self.start_squares) if self.start_squares else None,
            distances=self.distances,
            kinds={
                kind: one | {"norm": math.sqrt(one["norm"])}
                for kind, one in self.kinds.items()
                if one["tensors"]
            },
            numbers=self.numbers,
            moved=self.moved,
            types=dict(self.types),
            grids={grid: count / max(1, self.numbers) for grid, count in self.on_grid.items()},
            rounding=math.sqrt(self.errors / 12) / norm
            if norm and self.start is not None
            else None,
            ranks=self.ranks,
            only_rounded=tuple(self.only_rounded),
            state=tuple(self.state),
            missing=tuple(name for name in start if others and name not in others),
            added=tuple(name for name in others if self.start is not None and name not in start),
            reshaped=tuple(self.reshaped),
            not_finite=tuple(self.not_finite),
            tied=_tied(others),
        )


def _tally(name: str, network: Network, bases: Mapping[str, Tensors], is_vector: bool) -> _Tally:
    if is_vector:
        return _Tally(name, _tensors(network), None, None)
    if isinstance(network, Path | str) and adapters.is_adapter(Path(network)):
        return _of_adapter(name, Path(network), bases)
    tensors = _tensors(network)
    shared = {base: _shared(start, tensors) for base, start in bases.items()}
    most = max(map(len, shared.values()))
    if not most:
        first, start = next(iter(bases.items()))
        raise TasklabError(
            f"{shown(name)} and the base {shown(first)} share no parameter: "
            f"{abridged(tensors, 2)} in one, {abridged(start, 2)} in the other."
        )
    fitting = [base for base, names in shared.items() if len(names) == most]
    distances = (
        {base: _distance(bases[base], tensors, shared[base]) for base in fitting}
        if len(bases) > 1
        else {}
    )
    base = min(fitting, key=lambda one: distances.get(one, 0.0))
    tally = _Tally(name, tensors, base, bases[base])
    tally.distances |= distances
    return tally


def _of_adapter(name: str, place: Path, bases: Mapping[str, Tensors]) -> _Tally:
    files, problem = adapters.tensors(place), None
    for base, start in bases.items():
        try:
            return _Tally(name, adapters.Adapter(place, files, start), base, start)
        except TasklabError as error:
            problem = problem or error
    raise problem or TasklabError(f"{str(place)!r} is an adapter: give the base that it changes.")


def _tensors(network: Network) -> Tensors:
    if isinstance(network, nn.Module):
        return network.state_dict()
    if isinstance(network, Mapping):
        if odd := [name for name, x in network.items() if not isinstance(x, Tensor)]:
            raise TasklabError(f"{abridged(odd)} of a state dict is no tensor.")
        return network
    place = path("a network", network)
    if not place.exists():
        raise TasklabError(f"there is no file or folder {str(place)!r}.")
    if adapters.is_adapter(place):
        raise TasklabError(f"{str(place)!r} is an adapter, no base: give the weights it changes.")
    return Files(place)


def _shared(start: Tensors, tensors: Tensors) -> list[str]:
    """Return the names of parameters that both have in one shape."""
    there = set(start)
    likes = {name: (like(start, name), like(tensors, name)) for name in tensors if name in there}
    return [
        name
        for name, (one, two) in likes.items()
        if one.shape == two.shape and "state" not in (kind_of(name, one), kind_of(name, two))
    ]


def _distance(start: Tensors, tensors: Tensors, names: Iterable[str]) -> float:
    apart, whole = 0.0, 0.0
    for name in names:
        theta0 = single(start[name].detach().cpu())
        square = square_norm(single(tensors[name].detach().cpu()) - theta0)
        if math.isfinite(square):
            apart, whole = apart + square, whole + square_norm(theta0)
    return math.sqrt(apart / whole) if whole else 0.0


def _tied(tensors: Tensors) -> tuple[tuple[str, str], ...]:
    """Return pairs of names with one memory, or of a table with a tensor of the same numbers."""
    lazy, found = isinstance(tensors, Lazy), list[tuple[str, str]]()
    of: dict[tuple[Any, ...], list[str]] = {}
    for name in tensors:
        kind = like(tensors, name)
        if kind.dim() >= 2 and kind.numel() and kind.is_floating_point():
            of.setdefault((kind.shape, kind.dtype), []).append(name)
    for names in of.values():
        kinds = {name: kind_of(name, like(tensors, name)) for name in names}
        tables = [name for name in names if kinds[name] == "table"]
        if len(names) < 2 or (lazy and not tables):
            continue
        held = {} if not lazy else {name: tensors[name] for name in tables}
        for one, two in itertools.combinations(names, 2):
            if "table" in (kinds[one], kinds[two]):
                a, b = held.get(one, None), held.get(two, None)
                a, b = (tensors[one] if a is None else a), (tensors[two] if b is None else b)
                if torch.equal(a, b) and bool(a.min() != a.max()):
                    found.append((one, two))
            elif not lazy and tensors[one].data_ptr() == tensors[two].data_ptr():
                found.append((one, two))
    return tuple(found)


def _cosine(one: Change, two: Change, dot: float, same: bool) -> float | None:
    apart = one.base is not None and two.base is not None and one.base != two.base
    if apart or not one.norm or not two.norm:
        return None
    return 1.0 if same else dot / (one.norm * two.norm)
