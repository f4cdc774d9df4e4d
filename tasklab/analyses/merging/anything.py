"""Merge any networks of one architecture: state dicts, modules, or files of safetensors.

    merged = tasklab.merge(base, [a, b, c], "ties", keep=0.2, alpha=1.0)        # tensors by name
    tasklab.merge("base/", ["a/", "b/"], "tsv_m", out="merged.safetensors")     # a tensor at a time

A rule treats a parameter by its name and shape:

- *matrix* (two axes, of a linear layer): rules of matrices apply (TSV-M, Iso-C, WUDI, ...).
- *table* (two axes, of embeddings, positions, biases of attention, told by names, and of a module
  by `nn.Embedding`): those rules take the mean.
- *other* (norms, biases, kernels of convolutions): those rules take the mean.
- *state* (whole numbers, masks, running statistics): the base's stay, whatever the rule. A network
  may lack them, or have others.

All other rules (sums, TIES, DARE, ...) treat matrices, tables and others alike. `matrices` and
`tables` override this by name.

Parameters that share memory in the base are merged once, and tied again; so is an embedding whose
copy, such as an output layer, is equal in all networks. Files are read one parameter at a time; a
rule's sums over all parameters stay in memory.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Size, Tensor, nn

from tasklab.analyses.finite import as_coefficients, is_several
from tasklab.analyses.merging import adapters, defaults, registry, spaces, vectors
from tasklab.analyses.merging.changes import Change, check_kept, equal, related
from tasklab.analyses.merging.names import aligned, merges, single
from tasklab.errors import TasklabError, abridged, choose, path, real, shown
from tasklab.isolation import isolated
from tasklab.progress import LATER, bar
from tasklab.storage import atomic, forms, shards
from tasklab.storage.files import Files, opened
from tasklab.storage.lazy import Lazy, like
from tasklab.storage.streams import write_stream
from tasklab.storage.tensors import explained
from tasklab.taskvector import TaskVector

Network: TypeAlias = Mapping[str, Tensor] | nn.Module | Path | str
_log = logging.getLogger(__name__)


@isolated
def merge(
    base: Network | None,
    models: Sequence[Network],
    method: str = "arithmetic",
    *,
    alpha: float | Sequence[float] | None = None,
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
        base: Network before fine-tuning: a state dict, a module, or a file or folder of
            safetensors. `None` for `average`, which needs none.
        models: The fine-tuned networks, each in any of these forms, or a folder of an adapter of
            peft (LoRA). Of adapters only the changed matrices are merged.
        method: A rule of `tasklab list merges` that needs no images.
        alpha: Coefficient of the merged change; for `average` 1, for `arithmetic` also one of each
            network. It must be given where more than one network is not averaged: nothing measured
            supports a value for an unknown network.
        out: File of safetensors to write, a parameter at a time; by default tensors are returned.
        matrices: Pattern of names that are matrices, although they look like tables of embeddings.
        tables: Pattern of names that are no matrices, although they have two axes.
        rank: Write the merged change to the folder `out` as an adapter of this rank; its error is
            logged.
        space: `knots` or `core`: where sums, TIES, DARE, TSV-M and Iso-C work (`spaces`).
        unrelated: Also merge networks that do not look fine-tuned from the base.
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
    method = registry.named(method)
    rule = _rule(method, options)
    target = _target(out, rank)
    models = _listed(models)
    if base is None and (method != "average" or rank is not None):
        raise TasklabError(f"{method} merges changes: give the base; only average needs none.")
    theta0 = None if base is None else _read(base)
    turned = adapters.turned_in(base) if isinstance(base, nn.Module) else None
    each = [_read(model, theta0, turned) for model in models]
    if target is not None:
        _check_apart(target, [base, *models])
    alpha = _coefficient(method, alpha, len(each))
    first = theta0 if theta0 is not None else each[0]
    each = [aligned(first, one) for one in each]
    of_type = _embeddings(base) if isinstance(base, nn.Module) else set[str]()
    names, twins = _parameters(first, each, of_type)
    of_type |= {of for one, of in twins.items() if _is_table(one, like(first, one), of_type)}
    if all(isinstance(one, adapters.Adapter) for one in each):
        changed = {name for one in each for name in one.changed}  # type: ignore[attr-defined]
        names = [name for name in names if name in changed]
    kept = [name for name in first if not merges(name, like(first, name))]
    check_kept(first, each, kept)
    if theta0 is not None:
        names = related(theta0, each, names, unrelated)
    changes = [TaskVector.lazy(Change(theta0, theta, names)) for theta in each]
    if kept:
        _log.info("%d whole numbers and statistics stay those of the base", len(kept))
    with vectors.told(matrices, tables, of_type):
        if space is not None:
            choose(f"rule in the space {space}", method, spaces.RULES)
            products = [getattr(one, "factors", lambda _: None) for one in each]
            rule = functools.partial(spaces.merge, space, rule, products=products)
        tau = rule(changes, alpha=alpha, **options)
        if rank is not None and target is not None:
            start = str(base) if isinstance(base, str | Path) else None
            across = {name for name, of in (turned or {}).items() if of}
            across |= {n for one in each if isinstance(one, adapters.Adapter) for n in one.turned}
            adapters.factored(tau, target, rank=rank, start=start, turned=across)
            return target
        made = _made(first, theta0, tau, twins)
        if target is None:
            return dict(made)
        shapes = {name: like(first, name) for name in first}
        with explained(target.parent, "write to", "out"), atomic.replacing(target) as draft:
            write_stream(draft, shapes, made)
    return target


def _rule(method: str, options: Mapping[str, Any]) -> Callable[..., TaskVector]:
    """Return the function of a rule that needs no images."""
    chosen = registry.check(method, options)
    if chosen.needs:
        raise TasklabError(
            f"{method} reads images of the tasks, which an unknown network does not tell how to: "
            "choose a rule that needs none, such as ties, tsv_m or iso_c."
        )
    return chosen.function


def _listed(models: Sequence[Network]) -> list[Network]:
    if isinstance(models, str | Path | Mapping | nn.Module):
        raise TasklabError("give the networks as a list: merge(base, [a, b]).")
    if not (listed := list(models)):
        raise TasklabError("there are no networks to merge: merge(base, [a, b]).")
    return listed


def _target(out: Path | str | None, rank: int | None) -> Path | None:
    """Return where a merge is written, if anywhere: a new file, or of a rank a new folder."""
    target = None if out is None else path("out", out)
    if rank is not None and target is None:
        raise TasklabError("an adapter of a rank is written to a folder: give out.")
    if target is not None and rank is not None:
        atomic.check_new_folder("out", target)
    elif target is not None:
        atomic.check_suffix("merged networks", target, ".safetensors")
        if target.is_dir() or not target.parent.is_dir():
            raise TasklabError(f"out is a file in a folder that is there, not {str(target)!r}.")
    return target


def is_plain(place: Path) -> bool:
    """Return whether a file or folder holds a network's safetensors, or an adapter: no vector."""
    if place.is_dir():
        return adapters.is_adapter(place) or (
            bool(found := shards.in_folder(place)) and all(map(is_plain, found))
        )
    if place.suffix != ".safetensors" or not place.is_file():
        return False
    with opened(place) as tensors:
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
                    merged = single(start.cpu()) + merged
                merged = merged.to(start.dtype)
                if not bool(merged.isfinite().all()) and not torch.equal(merged, start.cpu()):
                    raise TasklabError(f"the merged {shown(name)} is not finite.")
            else:
                merged = first[name].detach().clone()
            if of in twins.values():
                done[of] = merged
            shown_.update()
            yield name, merged


def _read(
    network: Network,
    base: Mapping[str, Tensor] | None = None,
    turned: Mapping[str, bool] | None = None,
) -> Mapping[str, Tensor]:
    if isinstance(network, TaskVector):
        raise _no_network("a TaskVector")
    if isinstance(network, nn.Module):
        held = network.state_dict()
        network = {n: x for n, x in held.items() if not n.endswith("_extra_state")}
    if isinstance(network, Mapping):
        _check_state_dict({} if isinstance(network, Lazy) else network)
        forms.check(network, (forms.FACTORS, forms.FLAT))
        return network
    place = path("a network", network)
    if not place.exists():
        raise TasklabError(f"there is no file or folder {str(place)!r}.")
    if not place.is_dir():
        path("a network", network, "file")
    if place.name in adapters.FILES and adapters.is_adapter(place.parent):
        place = place.parent
    if place.is_file() and place.suffix != ".safetensors":
        raise TasklabError(
            f"{str(place)!r} is no file of safetensors; of another one, give the state dict: "
            "torch.load(file, weights_only=True)."
        )
    if adapters.is_adapter(place):
        return adapters.opened(place, base, turned)
    found = Files(place)
    adapters.check_no_adapter(place, found)
    forms.check(found, (forms.FACTORS, forms.FLAT))
    if not is_plain(place):
        raise _no_network(repr(str(place)))
    return found


def _check_state_dict(held: Mapping[Any, Any]) -> None:
    """Raise unless a state dict has dense tensors by name."""
    if odd := [n for n in held if not isinstance(n, str)]:
        raise TasklabError(f"a state dict has names, and {shown(odd[0])} is none.")
    if odd := [n for n, x in held.items() if isinstance(x, Mapping)]:
        raise TasklabError(
            f"{abridged(odd)} of a network is a dictionary: give the state dict in it, "
            f"checkpoint[{odd[0]!r}]."
        )
    if odd := [n for n, x in held.items() if not isinstance(x, Tensor)]:
        kind = type(held[odd[0]]).__name__
        raise TasklabError(
            f"{abridged(odd)} of a state dict is no tensor but {kind}: give tensors by name."
        )
    if odd := [n for n, x in held.items() if not _is_dense(x)]:
        raise TasklabError(
            f"{abridged(odd)} of a state dict has no numbers (device meta, a lazy layer) or is "
            "sparse or nested: load the weights, and make them dense."
        )


def _no_network(what: str) -> TasklabError:
    return TasklabError(
        f"{what} holds a change, no weights: give the network, or merge task vectors by "
        "tasklab.analyses.merging.merge."
    )


def _coefficient(
    method: str, alpha: float | Sequence[float] | None, count: int
) -> float | tuple[float, ...]:
    if is_several(alpha):
        if method != "arithmetic":
            raise TasklabError(
                f"alpha of {method} is one number: arithmetic has one of each network."
            )
        return as_coefficients(alpha, "alpha")
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


def _is_dense(tensor: Tensor) -> bool:
    if nn.parameter.is_lazy(tensor) or tensor.is_nested:
        return False
    return not tensor.is_meta and tensor.layout == torch.strided


def _embeddings(network: nn.Module) -> set[str]:
    kinds = (nn.Embedding, nn.EmbeddingBag)
    modules = network.named_modules(remove_duplicate=False)
    return {f"{name}.weight".removeprefix(".") for name, one in modules if isinstance(one, kinds)}


def _is_table(name: str, tensor: Tensor, of_type: Collection[str]) -> bool:
    return tensor.dim() == 2 and (name in of_type or not vectors.is_matrix(name, tensor))


def _check_architecture(
    first: Mapping[str, Tensor], other: Mapping[str, Tensor], number: int
) -> None:
    """Raise unless a network has the parameters of the first one, in the same shapes."""
    lacking = [n for n in first if n not in other and merges(n, like(first, n))]
    added = [name for name in other if name not in first]
    if lacking or added:
        what = f"lacks {abridged(lacking)}" if lacking else f"has {abridged(added)} beside"
        raise TasklabError(
            f"network {number} {what}: networks must have the same parameters. Take what only "
            "one has, such as a task's own head, out of its state dict."
        )
    for name in filter(other.__contains__, first):
        one, two = like(first, name), like(other, name)
        if one.shape != two.shape:
            raise TasklabError(
                f"{shown(name)} has shape {tuple(one.shape)} in the base and "
                f"{tuple(two.shape)} in network {number}: they are of different architectures."
            )


def _parameters(
    first: Mapping[str, Tensor],
    each: Sequence[Mapping[str, Tensor]],
    of_type: Collection[str],
) -> tuple[list[str], dict[str, str]]:
    """Return the names that are merged, and tied names with those that stand for them."""
    for number, other in enumerate(each, 1):
        _check_architecture(first, other, number)
    names, twins, memory = [], dict[str, str](), dict[tuple[int, Size, tuple[int, ...]], str]()
    for name in first:
        held = like(first, name)
        if not merges(name, held):
            continue
        tied = None
        if not held.is_meta and held.numel():
            tied = memory.setdefault((held.data_ptr(), held.shape, held.stride()), name)
        if tied in (None, name):
            names.append(name)
        elif apart := [i for i, x in enumerate(each, 1) if not equal(x[name], x[str(tied)])]:
            _log.warning(
                "%s and %s share memory in the base and differ in network %d: each is merged, and "
                "a network that ties them keeps only the one that it loads last",
                *(shown(name), shown(tied), apart[0]),
            )
            names.append(name)
        else:
            twins[name] = str(tied)
    for table in [n for n in names if _is_table(n, like(first, n), of_type)]:
        shape = like(first, table).shape
        for name in [n for n in names if n != table and like(first, n).shape == shape]:
            if all(equal(one[name], one[table]) for one in (first, *each)):  # tied, saved twice
                twins[name] = table
                names.remove(name)
    if not names:
        raise TasklabError(
            "the networks have no parameters to merge; whole and complex numbers, 8-bit floats and "
            "statistics are none. Give weights from before they were quantised."
        )
    return names, twins


def _check_apart(target: Path, inputs: Sequence[object]) -> None:
    """Raise if a result would replace an input, or lie among an input's files."""
    for one in inputs:
        if isinstance(one, str | Path):
            place = Path(one)
            among = place.is_dir() and not adapters.is_adapter(place)
            for mine in (target, target.parent)[: 1 + among]:
                if mine.exists() and mine.samefile(place):
                    where = "is" if mine is target else "lies in"
                    raise TasklabError(f"{target} {where} an input, {place}: choose another out.")
