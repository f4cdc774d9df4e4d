"""The projections of a network's blocks, and second moments of the data that they read.

A projection is a matrix of a block: `q`, `k`, `v`, `output` (of attention), `MLP input`,
`MLP output`. open_clip keeps q, k and v as the thirds of one matrix; they are split here.

The second moments of the input x of a projection, C = E[x x'] over images and tokens, give the mean
size of any matrix's product with the data:

    E|A x|^2 = tr(A C A') = <C, A' A>.

With fewer inputs than an input has entries, as in a rehearsal of a large model, a root F is smaller
(F'F = C): its rows are the inputs divided by the square root of their number.

Letters: I inputs of a projection, R rows of a root, R < I.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tasklab.analyses.finite import finite
from tasklab.errors import TasklabError, choose
from tasklab.isolation import isolated
from tasklab.models.loading import Encoder, math_attention
from tasklab.storage.placement import placed
from tasklab.tuning import memory
from tasklab.tuning.methods import BLOCK, PARTS

ATTENTION = ("q", "k", "v", "output")  # what the paper trains, section 3
PROJECTIONS = (*ATTENTION, "MLP input", "MLP output")
_KINDS = {
    "q, k, v weights": ("q", "k", "v"),
    "attention output weights": ("output",),
    "MLP input weights": ("MLP input",),
    "MLP output weights": ("MLP output",),
}
Moments = Mapping[str, Tensor]  # name of a weight -> second moment (I, I) of its input, or a root


class Piece(NamedTuple):
    """Some rows of a parameter."""

    name: str
    block: int | None  #: Its block's place, from 0; `None` outside the blocks
    #: One of `PROJECTIONS`, or `None` for a bias, a normalisation, an embedding.
    projection: str | None
    rows: slice = slice(None)  #: The rows: a third where q, k and v are one matrix, else all


def pieces(
    params: Mapping[str, Tensor], projections: Sequence[str] | None = PROJECTIONS
) -> list[Piece]:
    """Cut parameters into projections, by name.

    Args:
        projections: Those to separate from the rest; every block must have each. `None` takes
            all that the model has, at least the four of attention.

    Returns:
        The pieces; together they are all parameters.
    """
    asked = PROJECTIONS if projections is None else tuple(projections)
    kept = [
        piece if piece.projection in asked else piece._replace(projection=None)
        for piece in all_pieces(params)
    ]
    blocks = sorted({piece.block for piece in kept if piece.block is not None})
    for kind in ATTENTION if projections is None else asked:
        choose("projection", kind, PROJECTIONS)
        places = [p.block for p in kept if p.projection == kind and p.block is not None]
        if not places or sorted(places) != blocks:
            raise TasklabError(
                f"projection {kind!r} must be there once in each of {len(blocks)} blocks, and is "
                f"in blocks {places}. Projections are found by the names in "
                "`tuning.methods`; leave out those that the model or the task vectors do not "
                "have."
            )
    return kept


def all_pieces(params: Mapping[str, Tensor]) -> list[Piece]:
    """Return all parameters, grouped by the projections of each block."""
    prefixes = {name: m.group() for name in params if (m := re.search("^.*" + BLOCK, name))}
    numbers = {p: number for number, p in enumerate(sorted(set(prefixes.values()), key=natural))}
    cuts = []
    for name in sorted(params, key=natural):
        block = numbers.get(prefixes.get(name, ""))
        kinds = next((_KINDS[p] for p in _KINDS if re.search(BLOCK + PARTS[p], name)), (None,))
        if own := re.search(r"\.([qkv])_proj\.weight$", name):
            kinds = (own.group(1),)
        if len(kinds) == 1:
            cuts.append(Piece(name, block, kinds[0]))
            continue
        height, rest = divmod(len(params[name]), len(kinds))
        if rest:
            raise TasklabError(
                f"{name} has {len(params[name])} rows, which cannot be the same number for each of "
                f"{', '.join(kinds)}."
            )
        for i, kind in enumerate(kinds):
            cuts.append(Piece(name, block, kind, slice(i * height, (i + 1) * height)))
    return cuts


@isolated
def second_moments(
    encoder: Encoder,
    images: Tensor,
    *,
    params: Mapping[str, Tensor] | None = None,
    projections: Sequence[str] = PROJECTIONS,
    batch_size: int = 250,
    roots: bool = False,
) -> dict[str, Float[Tensor, "I I"] | Float[Tensor, "R I"]]:
    """Return E[x x'] of the input x of every projection, over images and tokens, in float64.

    Args:
        encoder: The image encoder; one whose projections are linear layers or
            `nn.MultiheadAttention`.
        images: Preprocessed images (N, 3, H, W).
        params: Parameters by name; by default theta_0.
        projections: Projections whose inputs are read; those of the MLP output are the largest.
        batch_size: Images per pass; fewer where memory is short.
        roots: Whether to return a root for a projection with fewer inputs than an input has
            entries.

    Returns:
        One matrix a weight, by its name; q, k and v share theirs where they are one weight.
    """
    if len(images) == 0:
        raise TasklabError("second moments need at least one image.")
    theta = {**encoder.params, **placed(params or {}, encoder.device)}
    names = {piece.name for piece in pieces(theta, projections) if piece.projection}
    weights = {name: theta[name] for name in names}

    def of_batch(batch: Tensor) -> tuple[dict[str, Tensor], Counter[str]]:
        sums: dict[str, Tensor] = {}
        counts: Counter[str] = Counter()

        def add(name: str, x: Tensor) -> None:
            x = x.reshape(-1, x.shape[-1]).double()
            sums[name] = _joined(sums.get(name), x if roots and len(x) < x.shape[1] else x.T @ x)
            counts[name] += len(x)

        with math_attention(), Inputs(weights, add):
            encoder(theta, encoder.preprocess(batch))
        return sums, counts

    sums: dict[str, Tensor] = {}
    counts: Counter[str] = Counter()
    with torch.no_grad():
        for parts, many in memory.Parts(batch_size)(of_batch, images, "second moments"):
            for name, part in parts.items():
                sums[name] = _joined(sums.get(name), part)
            counts.update(many)
    if unseen := sorted(names - sums.keys(), key=natural):
        raise TasklabError(
            f"{unseen[0]} is not used as a linear layer's weight: the inputs of {encoder.name}'s "
            "projections cannot be read."
        )
    moments = {
        name: sums[name] / (math.sqrt(counts[name]) if is_root(sums[name]) else counts[name])
        for name in sorted(sums, key=natural)
    }
    return {name: finite(C, f"second moments at {name}") for name, C in moments.items()}


def is_root(moment: Tensor) -> bool:
    """Return whether a matrix is a root (R, I) of a second moment, and not one itself (I, I)."""
    return len(moment) < moment.shape[1]


def _joined(first: Tensor | None, second: Tensor) -> Tensor:
    if first is None:
        return second
    if is_root(first) and is_root(second) and len(first) + len(second) < first.shape[1]:
        return torch.cat([first, second])
    first, second = (part.T @ part if is_root(part) else part for part in (first, second))
    return first.add_(second)


class Inputs(TorchFunctionMode):
    """Context in which `add(name, x)` is called with the inputs x of some weights.

    The scales of a layer normalisation multiply its normalised input.

    A weight is known by identity. `nn.MultiheadAttention` multiplies its output projection out of
    sight: it is called without it here, and the projection follows.

    Args:
        add: Takes a weight's name and its input (..., I).
    """

    def __init__(self, weights: Mapping[str, Tensor], add: Callable[[str, Tensor], None]) -> None:
        super().__init__()
        self._names = {id(weight): name for name, weight in weights.items()}
        self._add = add

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run `func`, and report the inputs of the weights that it multiplies."""
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return self._attention(*args, **kwargs)
        if func is F.linear:
            self._linear(*args, **kwargs)
        if func is F.layer_norm:
            self._layer_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:  # noqa: A002
        self._report(weight, input)

    def _layer_norm(
        self,
        input: Tensor,  # noqa: A002
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> None:
        if id(weight) in self._names:
            self._report(weight, F.layer_norm(input, normalized_shape, eps=eps))

    def _report(self, weight: Tensor | None, x: Tensor) -> None:
        if id(weight) in self._names:
            self._add(self._names[id(weight)], x)

    def _attention(self, *args: Any, **kwargs: Any) -> Any:
        bound = _ATTENTION.bind(*args, **kwargs)
        values = bound.arguments
        query, weight = values["query"], values["out_proj_weight"]
        separate = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        self._report(values["in_proj_weight"], query)
        for name, x in zip(separate, ("query", "key", "value"), strict=True):
            self._report(values.get(name), values[x])
        if not query is values["key"] is values["value"]:
            raise TasklabError("this is not self-attention: q, k and v read different inputs.")
        bias = values.get("out_proj_bias")
        values["out_proj_weight"] = torch.eye(weight.shape[1]).to(weight)
        values["out_proj_bias"] = None
        heads, attention = F.multi_head_attention_forward(*bound.args, **bound.kwargs)
        self._report(weight, heads)
        return F.linear(heads, weight, bias), attention


_ATTENTION = inspect.signature(F.multi_head_attention_forward)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names by the numbers in them: block 2 before block 10."""
    return [(int(word or 0) if word.isdigit() else -1, word) for word in re.split(r"(\d+)", name)]
