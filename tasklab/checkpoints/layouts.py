"""Names of parameters: from the layouts that checkpoints are published in to ours.

| layout | recognised by |
|---|---|
| transformers' CLIP vision models | `embeddings.class_embedding` |
| open_clip models, their image towers, and our own names | the encoder's names behind a prefix |
| linearized encoders of the papers' code | `params.0`, ..., and `params0.0`, ... |

Ours are open_clip's names within the image tower. The last layout has no names at all: two lists,
theta and theta_0, in the order in which the modules of that time were made. A list is accepted only
where the shapes of all its tensors, one after another, are those of the encoder in a known order.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Size, Tensor

from tasklab.errors import TasklabError

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, Size]

_ANCHOR = "embeddings.class_embedding"
_TRANSFORMERS = (  # in transformers -> in open_clip
    (r"embeddings\.class_embedding", r"class_embedding"),
    (r"embeddings\.patch_embedding\.weight", r"conv1.weight"),
    (r"embeddings\.position_embedding\.weight", r"positional_embedding"),
    (r"pre_layrnorm\.(weight|bias)", r"ln_pre.\1"),
    (r"post_layernorm\.(weight|bias)", r"ln_post.\1"),
    (r"encoder\.layers\.(\d+)\.layer_norm([12])\.(\w+)", r"transformer.resblocks.\1.ln_\2.\3"),
    (
        r"encoder\.layers\.(\d+)\.self_attn\.out_proj\.(\w+)",
        r"transformer.resblocks.\1.attn.out_proj.\2",
    ),
    (r"encoder\.layers\.(\d+)\.mlp\.fc1\.(\w+)", r"transformer.resblocks.\1.mlp.c_fc.\2"),
    (r"encoder\.layers\.(\d+)\.mlp\.fc2\.(\w+)", r"transformer.resblocks.\1.mlp.c_proj.\2"),
)
_QKV = re.compile(r"encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(weight|bias)")
_PROJECTION = "visual_projection.weight"
_LIST = re.compile(r"(?P<prefix>.*?)(?P<which>params0?)\.(?P<index>\d+)")
# Within a block, open_clip made the attention before its normalisation, and since 2022 after it.
_BLOCK_ORDERS = (("ln_1", "attn", "ln_2", "mlp"), ("attn", "ln_1", "mlp", "ln_2"))


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """What a checkpoint holds of an encoder.

    Attributes:
        layout: In which layout it was, in words.
        theta: Parameters under our names; some may be missing or too many.
        theta0: Those it was linearized around, if it is a linearized encoder.
        left: How many tensors belong to something else, e.g. a text tower.
    """

    layout: str
    theta: dict[str, Tensor]
    theta0: dict[str, Tensor] | None = None
    left: int = 0


def recognise(tensors: Tensors, own: Shapes, theta0: Tensors | None = None) -> Weights:
    """Return a checkpoint's parameters under our names.

    Args:
        tensors: By the names of the checkpoint.
        own: Shapes of the encoder's parameters by our names, in the encoder's order.
        theta0: The pre-trained parameters; they tell apart two ways to name a list.

    Raises:
        TasklabError: If the layout is none of those above.
    """
    if any(name == _ANCHOR or name.endswith(f".{_ANCHOR}") for name in tensors):
        return _from_transformers(tensors)
    lists = _lists(tensors)
    if lists is not None:
        return _from_lists(*lists, own, theta0, left=len(tensors) - 2 * len(lists[0]))
    first = next(iter(own))
    prefixes = [n.removesuffix(first) for n in tensors if n == first or n.endswith(f".{first}")]
    if len(prefixes) == 1:
        prefix = prefixes[0]
        theta = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
        layout = f"names as in open_clip behind {prefix!r}" if prefix else "names as in open_clip"
        return Weights(layout, theta, left=len(tensors) - len(theta))
    if any("lora_" in name for name in tensors):
        raise TasklabError("it holds low-rank adapters alone: merge them into their model first.")
    what = f"{len(prefixes)} encoders" if prefixes else f"no {first!r} under any prefix"
    some = ", ".join(list(tensors)[:4])
    raise TasklabError(f"it has {what}, among {len(tensors)} tensors such as {some}.")


def _from_transformers(tensors: Tensors) -> Weights:
    anchors = [name for name in tensors if name.endswith(_ANCHOR)]
    if len(anchors) > 1:
        raise TasklabError(f"it has {len(anchors)} encoders: {', '.join(anchors[:4])}.")
    prefix = anchors[0].removesuffix(_ANCHOR)
    theta: dict[str, Tensor] = {}
    parts: dict[tuple[str, str], dict[str, Tensor]] = {}
    left = 0
    for name, tensor in tensors.items():
        own = name.removeprefix(prefix) if name.startswith(prefix) else None
        if name == _PROJECTION or name.endswith(f".{_PROJECTION}"):
            theta["proj"] = tensor.T  # a linear layer there, a matrix on the right here
        elif own is None:
            left += 1
        elif match := _QKV.fullmatch(own):
            parts.setdefault((match[1], match[3]), {})[match[2]] = tensor
        elif own != "embeddings.position_ids":  # a buffer, in older versions
            theta[_renamed(own)] = tensor
    for (block, kind), found in parts.items():
        if len(found) == 3:
            joined = torch.cat([found[one] for one in "qkv"])
            theta[f"transformer.resblocks.{block}.attn.in_proj_{kind}"] = joined
    return Weights("transformers' CLIP vision model", theta, left=left)


def _renamed(name: str) -> str:
    for pattern, ours in _TRANSFORMERS:
        if match := re.fullmatch(pattern, name):
            return match.expand(ours)
    return name


def _lists(tensors: Tensors) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return the lists theta and theta_0, or `None` if there are none.

    Raises:
        TasklabError: If numbers are missing, or the lists do not fit each other.
    """
    found: dict[str, dict[int, Tensor]] = {"params": {}, "params0": {}}
    prefixes = set()
    for name, tensor in tensors.items():
        if match := _LIST.fullmatch(name):
            found[match["which"]][int(match["index"])] = tensor
            prefixes.add(match["prefix"])
    theta, theta0 = found["params"], found["params0"]
    if not theta0:
        return None
    whole = set(theta) == set(theta0) == set(range(len(theta0))) and len(prefixes) == 1
    if not whole or any(theta[i].shape != theta0[i].shape for i in theta):
        raise TasklabError(
            f"its lists params ({len(theta)}) and params0 ({len(theta0)}) of a linearized encoder "
            "do not belong together: it is not whole."
        )
    return [theta[i] for i in range(len(theta))], [theta0[i] for i in range(len(theta))]


def _from_lists(
    theta: list[Tensor], theta0: list[Tensor], own: Shapes, known: Tensors | None, left: int
) -> Weights:
    ways = list(_ways([x.shape for x in theta0], own))
    if len(ways) > 1 and known is not None:  # the names under which theta_0 is the known one
        far = [_distance(theta0[start:], names, known) for start, names in ways]
        ways = [ways[far.index(min(far))]]
    if len(ways) != 1:
        shapes = "fit the encoder in several orders" if ways else "do not fit the encoder"
        raise TasklabError(
            f"it has lists of {len(theta)} parameters without names (a linearized encoder), whose "
            f"shapes {shapes}, which has {len(own)}."
        )
    start, names = ways[0]
    count = len(names)
    return Weights(
        "linearized encoder: lists params and params0",
        dict(zip(names, theta[start : start + count], strict=True)),
        dict(zip(names, theta0[start : start + count], strict=True)),
        left + 2 * (len(theta) - count),
    )


def _ways(shapes: Sequence[Size], own: Shapes) -> Iterator[tuple[int, list[str]]]:
    """Yield where a known order of the encoder's parameters has the list's shapes."""
    orders = [list(own)]
    for parts in _BLOCK_ORDERS:
        order = _reordered(list(own), parts)
        if order not in orders:
            orders.append(order)
    for names in orders:
        expected = [own[name] for name in names]
        for start in range(len(shapes) - len(names) + 1):
            if shapes[start] == expected[0] and shapes[start : start + len(names)] == expected:
                yield start, names


def _reordered(names: list[str], parts: Sequence[str]) -> list[str]:
    """Return names with the parts of each block in the given order."""
    block = re.compile(rf"(.*\.resblocks\.\d+)\.({'|'.join(parts)})\..*")
    place = {}
    for index, name in enumerate(names):
        match = block.fullmatch(name)
        first = (
            next(i for i, other in enumerate(names) if other.startswith(f"{match[1]}."))
            if match
            else index
        )
        place[name] = (first, parts.index(match[2]) if match else 0, index)
    return sorted(names, key=place.__getitem__)


def _distance(tensors: Sequence[Tensor], names: Sequence[str], known: Tensors) -> float:
    pairs = zip(names, tensors, strict=False)
    return sum(float((x.float() - known[name].float()).square().sum()) for name, x in pairs)
