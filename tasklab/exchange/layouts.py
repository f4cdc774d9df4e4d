"""Names of parameters: from the layouts that checkpoints are published in to ours.

| layout | recognised by |
|---|---|
| transformers' CLIP vision models | `embeddings.class_embedding` |
| transformers' ViTs, of timm's names here | `patch_embeddings.projection.weight` |
| timm's CLIP vision models | `norm_pre.weight` |
| transformers' BERTs | `embeddings.word_embeddings.weight` |
| open_clip models, their image towers, and our own names | the encoder's names behind a prefix |
| linearized encoders of the papers' code | `params.0`, ..., and `params0.0`, ... |

Ours are open_clip's names within the image tower. The lists of the last layout are accepted only
where all their shapes, one after another, are the encoder's in a known order.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Size, Tensor

from tasklab.architectures import vit_from_transformers
from tasklab.errors import TasklabError, shown
from tasklab.exchange import naming
from tasklab.models import bert
from tasklab.models.weights import abridged
from tasklab.storage import state_dicts

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, Size]

TRANSFORMERS = "transformers' CLIP vision model"
_ANCHOR = "embeddings.class_embedding"
_VIT = "embeddings.patch_embeddings.projection.weight"
_BERT = "embeddings.word_embeddings.weight"
_PARTS = (  # of names, of either tower: in open_clip -> in transformers
    ("transformer.resblocks.", "encoder.layers."),
    ("class_embedding", "embeddings.class_embedding"),
    ("positional_embedding", "embeddings.position_embedding.weight"),
    ("token_embedding.", "embeddings.token_embedding."),
    ("conv1.", "embeddings.patch_embedding."),
    ("ln_pre.", "pre_layrnorm."),
    ("ln_post.", "post_layernorm."),
    ("ln_final.", "final_layer_norm."),
    (".ln_1.", ".layer_norm1."),
    (".ln_2.", ".layer_norm2."),
    (".attn.", ".self_attn."),
    (".mlp.c_fc.", ".mlp.fc1."),
    (".mlp.c_proj.", ".mlp.fc2."),
)
_TIMM_ANCHOR = "norm_pre.weight"
_TIMM = (  # of names: in timm's CLIP -> in open_clip
    (r"patch_embed\.proj\.", "conv1."), ("cls_token$", "class_embedding"),
    ("pos_embed$", "positional_embedding"), (r"norm_pre\.", "ln_pre."), (r"norm\.", "ln_post."),
    (r"blocks\.", "transformer.resblocks."), (r"norm([12])\.", r"ln_\2."),
    (r"attn\.qkv\.", "attn.in_proj_"), (r"attn\.proj\.", "attn.out_proj."),
    (r"mlp\.fc1\.", "mlp.c_fc."), (r"mlp\.fc2\.", "mlp.c_proj."),
)  # fmt: skip
_PROJECTION = "visual_projection.weight"
BESIDE = {  # the towers
    "logit_scale": "logit_scale",
    "text_projection": "text_projection.weight",
    "proj": _PROJECTION,
}
LINEAR = ("proj", "text_projection")  # layers there, with the transposed weight
_BUFFER = "embeddings.position_ids"  # in older versions
# The classifier of the pre-training task, as timm's models and torchvision's have it.
_CLASSIFIER = re.compile(r"(head|head\.fc|head_dist|fc|classifier)\.(weight|bias)")
_LIST = re.compile(r"(?P<prefix>.*?)(?P<which>params0?)\.(?P<index>[0-9]{1,6})")
# Within a block, open_clip made the attention before its normalisation, and since 2022 after it.
_BLOCK_ORDERS = (("ln_1", "attn", "ln_2", "mlp"), ("attn", "ln_1", "mlp", "ln_2"))


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """The encoder's tensors in a checkpoint."""

    layout: str  #: In which layout it was, in words
    theta: dict[str, Tensor]  #: Parameters under our names; some may be missing or too many
    #: Those it was linearized around, if it is a linearized encoder.
    theta0: dict[str, Tensor] | None = None
    left: int = 0  #: How many tensors belong to something else, e.g. a text tower.
    prefix: str = ""  #: What stands before the encoder's names
    missing: tuple[str, ...] = ()  #: Names that it lacks, as this layout has them
    #: Whether the layout has the projection to the features that are compared with texts;
    #: transformers' `CLIPVisionModel` has none.
    projected: bool = True


def recognise(
    tensors: Tensors, own: Shapes, theta0: Tensors | Callable[[], Tensors] | None = None
) -> Weights:
    """Return a checkpoint's parameters under our names.

    Args:
        tensors: Tensors of a checkpoint by name.
        own: Shapes of the encoder's parameters by our names, in the encoder's order.
        theta0: The pre-trained parameters, or their loader; they decide between two ways to name a
            list.
    """
    tensors = naming.unwrapped(tensors)
    adapters = naming.adapters(tensors)
    if any("lora_" in name for name in adapters):
        raise naming.refusal(adapters)
    found = _recognised(tensors, own, theta0)
    if inside := naming.adapters(name for name in found.theta if name not in own):
        raise naming.refusal(inside)
    return found


def classifier(tensors: Tensors, named: Weights, own: Shapes) -> dict[str, Tensor]:
    """Return weight (C, D) and bias (C,) of the only linear classifier beside an encoder, else {}.

    Args:
        tensors: All tensors of the file.
        named: The encoder's among them.
        own: Names and shapes of the encoder's own parameters, which are no classifier.
    """
    plain = naming.unwrapped(tensors)
    places = dict.fromkeys((named.prefix, named.prefix.partition(".")[0] + ".", ""))
    for place in places:
        found: dict[str, dict[str, Tensor]] = {}
        for name, x in plain.items():
            match = _CLASSIFIER.fullmatch(name.removeprefix(place))
            if match and name.startswith(place) and name.removeprefix(place) not in own:
                found.setdefault(match[1], {})[match[2]] = x
        kept = [one for one in found.values() if "weight" in one and one["weight"].ndim == 2]
        if kept:
            return kept[0] if len(kept) == 1 else {}
    return {}


def _recognised(
    tensors: Tensors, own: Shapes, theta0: Tensors | Callable[[], Tensors] | None
) -> Weights:
    if any(name == _ANCHOR or name.endswith(f".{_ANCHOR}") for name in tensors):
        return _from_transformers(tensors, own)
    lists = _lists(tensors)
    if lists is not None:
        return _from_lists(*lists, own, theta0, left=len(tensors) - 2 * len(lists[0]))
    vits = [name.removesuffix(_VIT) for name in tensors if name.endswith(_VIT)]
    if "cls_token" in own and len(vits) == 1:
        return _from_vit(tensors, own, vits[0])
    berts = [name.removesuffix(_BERT) for name in tensors if name.endswith(_BERT)]
    if "blocks.0.norm1.weight" in own and len(berts) == 1:
        return _from_bert(tensors, own, berts[0])
    timm = [name.removesuffix(_TIMM_ANCHOR) for name in tensors if name.endswith(_TIMM_ANCHOR)]
    if "class_embedding" in own and len(timm) == 1:
        return _from_timm(tensors, own, timm[0])
    prefixes = _prefixes(tensors, own)
    if len(prefixes) > 1 and _alike(tensors, own, prefixes):
        prefixes = [next(filter(None, prefixes))]
    if len(prefixes) == 1:
        return _from_open_clip(tensors, own, prefixes[0])
    if not prefixes and (adapters := naming.adapters(tensors)):
        raise naming.refusal(adapters)
    where = f" ({', '.join(shown(one) for one in prefixes[:4])})" if any(prefixes) else ""
    what = f"{len(prefixes)} encoders{where}, of which one must be saved alone"
    if not prefixes:
        what = f"no {next(iter(own))!r} under any prefix"
    count, size = (sum(x.numel() for x in some) for some in (tensors.values(), own.values()))
    few = f" They have {count:,} numbers, and the encoder {size:,}." if 2 * count < size else ""
    raise TasklabError(f"it has {what}, among {len(tensors)} tensors: {abridged(tensors, 4)}.{few}")


def _prefixes(tensors: Tensors, own: Shapes) -> list[str]:
    """Return the prefixes of an encoder's names, once for each encoder.

    The names of a ResNet's blocks end in the encoder's own, so a prefix counts if at least half as
    many names have it as any other. Without the first parameter, half of all names are needed.
    """
    first = next(iter(own))
    anchors = [n.removesuffix(first) for n in tensors if n == first or n.endswith(f".{first}")]
    counts = {one: sum(f"{one}{name}" in tensors for name in own) for one in anchors}
    if not counts:
        places = ((name, (0, *(x.end() for x in re.finditer(r"\.", name)))) for name in tensors)
        ends = (name[:at] for name, starts in places for at in starts if name[at:] in own)
        counts = collections.Counter(ends)
        counts = {one: n for one, n in counts.items() if 2 * n >= min(len(own), len(tensors))}
        counts = dict(list(counts.items())[:1]) if len(counts) == 1 else {}
    return [one for one, count in counts.items() if 2 * count >= max(counts.values())]


def _alike(tensors: Tensors, own: Shapes, prefixes: Sequence[str]) -> bool:
    """Return whether encoders behind several prefixes are copies, as tied weights are saved.

    Weights averaged over training are another model's, also where they are equal so far.
    """
    if any(map(state_dicts.averaged, prefixes)):
        return False
    nothing = torch.empty(0)
    first, *others = ([tensors.get(f"{one}{name}", nothing) for name in own] for one in prefixes)
    return all(all(map(torch.equal, first, other)) for other in others)


def _from_vit(tensors: Tensors, own: Shapes, prefix: str) -> Weights:
    inside = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
    theta = vit_from_transformers(inside)
    read = sum(3 if ".attn.qkv." in name else 1 for name in theta)
    missing = tuple(name for name in own if name not in theta)
    left = len(tensors) - read
    return Weights("transformers' ViT", theta, left=left, prefix=prefix, missing=missing)


def _from_bert(tensors: Tensors, own: Shapes, prefix: str) -> Weights:
    inside = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
    theta = bert.from_transformers(inside)
    missing = tuple(name for name in own if name not in theta)
    about: dict[str, Any] = {"left": len(tensors) - len(inside), "missing": missing}
    return Weights("transformers' BERT", theta, prefix=prefix, **about)


def _from_open_clip(
    tensors: Tensors, own: Shapes, prefix: str, layout: str = "names as in open_clip"
) -> Weights:
    inside = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
    theta = {n: x for n, x in inside.items() if n in own or not _CLASSIFIER.fullmatch(n)}
    layout = f"{layout}{f' behind {shown(prefix)}' if prefix else ''}"
    # a tower that was trained with another head has none; beside a text tower it is cut off
    projected = "proj" in theta or any(n.endswith("text_projection") for n in tensors)
    missing = tuple(f"{prefix}{n}" for n in own if n not in theta and (projected or n != "proj"))
    about: dict[str, Any] = {"left": len(tensors) - len(theta), "missing": missing}
    return Weights(layout, theta, prefix=prefix, projected=projected, **about)


def _from_timm(tensors: Tensors, own: Shapes, prefix: str) -> Weights:
    """Return the image tower of a CLIP that timm made: its head is the projection, transposed."""
    theta: dict[str, Tensor] = {}
    for name, x in tensors.items():
        for pattern, ours in _TIMM:
            name = re.sub(rf"(^|\.){pattern}", rf"\1{ours}", name)
        # the class token and the positions have more axes there, in front
        axes = own.get(name.removeprefix(prefix), x.shape)
        theta[name] = x.reshape(x.shape[3 - len(axes) :]) if x.ndim == 3 else x
    head, bias = (tensors.get(f"{prefix}head.{part}") for part in ("weight", "bias"))
    if head is not None and head.mT.shape == own.get("proj") and (bias is None or not bias.any()):
        theta[f"{prefix}proj"] = head.mT
    return _from_open_clip(theta, own, prefix, "timm's CLIP")


def _from_transformers(tensors: Tensors, own: Shapes) -> Weights:
    anchors = [name for name in tensors if name.endswith(_ANCHOR)]
    if len(anchors) > 1:
        raise TasklabError(f"it has {len(anchors)} encoders: {abridged(anchors, 4)}.")
    prefix = anchors[0].removesuffix(_ANCHOR)
    inside = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
    theta: dict[str, Tensor] = {}
    missing = []
    read = {_BUFFER}
    for name in own:
        theirs = in_transformers(name)
        read.update(theirs)
        absent = [f"{prefix}{one}" for one in theirs if one not in inside]
        missing += absent if name != "proj" else []
        if not absent:
            theta[name] = _joined({one: inside[one] for one in theirs})
    theta.pop("proj", None)
    projections = [n for n in tensors if n == _PROJECTION or n.endswith(f".{_PROJECTION}")]
    whole = any("text_model." in name for name in tensors)  # CLIPModel has a projection
    if projections:
        stored = tensors[projections[0]]
        theta["proj"] = stored.mT if stored.ndim == 2 else stored  # a linear layer there
    elif whole and "proj" in own:
        missing.append(_PROJECTION)
    for name, tensor in inside.items():  # what no parameter of ours is called there
        if name not in read and name != _PROJECTION and not name.endswith(f".{_PROJECTION}"):
            theta[f"{name} of open_clip" if name in own else name] = tensor
    left = len(tensors) - len(inside) - sum(not name.startswith(prefix) for name in projections)
    about: dict[str, Any] = {"missing": tuple(missing), "projected": bool(projections) or whole}
    return Weights(TRANSFORMERS, theta, left=left, prefix=prefix, **about)


def text_tower(tensors: Tensors, named: Weights, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the parts of the text tower that a file has, under open_clip's names.

    Args:
        tensors: All tensors of the file.
        named: The image encoder's among them, which show the layout.
        names: Names of the model's own text tower; empty without one.
    """
    tensors, theirs = naming.unwrapped(tensors), named.layout == TRANSFORMERS
    inside, outside = ("vision_model.", "text_model.") if theirs else ("visual.", "")
    if not names or not named.prefix.endswith(inside):
        return {}
    before, found = named.prefix.removesuffix(inside), {}
    if not theirs and f"{before}text.token_embedding.weight" in tensors:
        outside = "text."  # open_clip's CustomTextCLIP
    for name in names:
        where = "" if name == "logit_scale" or theirs and name in BESIDE else outside
        parts = [f"{where}{one}" for one in (in_transformers(name) if theirs else [name])]
        if all(f"{before}{one}" in tensors for one in parts):
            tensor = _joined({one: tensors[f"{before}{one}"] for one in parts})
            found[name] = tensor.mT if theirs and name in LINEAR else tensor
    return found


def in_transformers(name: str) -> list[str]:
    """Return transformers' names, q, k and v apart, of a parameter of open_clip's towers."""
    if name in BESIDE:
        return [BESIDE[name]]
    for ours, theirs in _PARTS:
        name = name.replace(ours, theirs)
    if "self_attn.in_proj_" not in name:
        return [name]
    return [name.replace("in_proj_", f"{one}_proj.") for one in "qkv"]


def _joined(parts: Tensors) -> Tensor:
    shapes = [tuple(x.shape) for x in parts.values()]
    if len(shapes) == 1:
        return next(iter(parts.values()))
    if len(set(shapes)) > 1 or not shapes[0]:
        raise TasklabError(f"{', '.join(parts)} have the shapes {shapes}: no part of one model.")
    return torch.cat(list(parts.values()))


def _lists(tensors: Tensors) -> tuple[list[Tensor], list[Tensor]] | None:
    lists: dict[str, dict[int, Tensor]] = {"params": {}, "params0": {}}
    prefixes = set()
    for name, tensor in tensors.items():
        if match := _LIST.fullmatch(name):
            lists[match["which"]][int(match["index"])] = tensor
            prefixes.add(match["prefix"])
    theta, theta0 = lists["params"], lists["params0"]
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
    theta: list[Tensor],
    theta0: list[Tensor],
    own: Shapes,
    known: Tensors | Callable[[], Tensors] | None,
    left: int,
) -> Weights:
    ways = list(_ways([x.shape for x in theta0], own))
    if len(ways) > 1 and known is not None:  # the names under which theta_0 is the known one
        known = known() if callable(known) else known
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
    block = re.compile(rf"(.*\.resblocks\.\d+)\.({'|'.join(parts)})\..*")
    found = {name: block.fullmatch(name) for name in names}
    first: dict[str, int] = {}
    for index, (name, match) in enumerate(found.items()):
        first.setdefault(match[1] if match else name, index)

    def place(name: str) -> tuple[int, int]:
        match = found[name]
        return (first[match[1]], parts.index(match[2])) if match else (first[name], 0)

    return sorted(names, key=place)


def _distance(tensors: Sequence[Tensor], names: Sequence[str], known: Tensors) -> float:
    pairs = [(known[n], x) for n, x in zip(names, tensors, strict=False) if n in known]
    return sum(float((x.float() - start.float()).square().sum()) for start, x in pairs)
