"""The methods: trained parameters, model and penalty of each.

A new method is one entry of `TABLE`, from which lists, help texts and figures follow. Reading it
needs no torch.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from tasklab.errors import TasklabError, choose

if TYPE_CHECKING:
    from torch import Tensor

# Parameters by name. open_clip's q, k and v are one matrix, `in_proj`; versions that split them,
# and towers from timm (`qkv`, `proj`, `fc1`, `fc2`), are covered too.
BLOCK = r"(?:^|\.)(?:resblocks|blocks|layers)\.(\d+)\."
PARTS = {
    "q, k, v weights": r"attn\.(?:in_proj_weight|(?:in_proj|qkv|[qkv]_proj)\.weight)$",
    "attention output weights": r"attn\.(?:out_proj|proj)\.weight$",
    "q, k, v biases": r"attn\.(?:in_proj_bias|(?:in_proj|qkv|[qkv]_proj)\.bias)$",
    "attention output biases": r"attn\.(?:out_proj|proj)\.bias$",
    "MLP input weights": r"mlp\.(?:c_fc|fc1)\.weight$",
    "MLP output weights": r"mlp\.(?:c_proj|fc2)\.weight$",
    "MLP input biases": r"mlp\.(?:c_fc|fc1)\.bias$",
    "MLP output biases": r"mlp\.(?:c_proj|fc2)\.bias$",
}
# The four paradigms of linear layers, table 2: (1) q, k, v and output weights; (2) and their
# biases; (3) the weights of all linear layers of a block; (4) and all their biases.
_WEIGHTS = ("q, k, v weights", "attention output weights")
_BIASES = ("q, k, v biases", "attention output biases")
_MLP_WEIGHTS = ("MLP input weights", "MLP output weights")
_MLP_BIASES = ("MLP input biases", "MLP output biases")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """Settings of a method's authors in place of the recipe that all methods share."""

    #: Kinds of parameters that stay at theta_0: names of positions and of the patch embedding
    frozen: str = r"(?:^|\.)(?:pos(?:itional)?_embed(?:ding)?|conv1|patch_embed)(?:\.|$)"
    clip: float | None = None  #: Largest gradient norm; `None`: gradients are not clipped
    warmup: int = 500  #: Steps of warm-up, of 2,000
    decay: str = "change"  #: What weight decay pulls to zero: `"change"`, theta - theta_0
    lr: float = 1e-5  #: Of published models
    #: Weights of the penalty's parts: normalisations and the class token, and the projection
    blocks: float = 10.0
    projection: float = 0.1
    #: DELTA: the range of the path's coefficient at the end, which grows from [1, 1] with the share
    #: of the run to this power
    path: tuple[float, float] = (1.0, 1.0)
    power: float = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """A way to make a task vector and to edit a model by it."""

    title: str
    text: str  #: What it trains, in the list of the command line
    #: In figures; a palette that is distinguishable with the common forms of colour blindness.
    colour: str
    marker: str  #: In figures
    #: Of `PARTS`, what is trained of every block; empty for all parameters.
    parts: tuple[str, ...] = ()
    tangent: bool = False  #: Whether training and edits are in the tangent model
    #: Post-hoc: the method whose vectors it takes, which then is used in the tangent model.
    vectors: str = ""
    rates: str = ""  #: The method whose learning rate it takes; empty for one of its own
    penalty: str = ""  #: One of `penalties.PENALTIES`, added to the loss; empty for none
    weight: float = 0.0  #: lambda, how much of the penalty is added by default
    others: bool = False  #: Whether the penalty looks at the other tasks' images
    once: bool = False  #: Whether it reads images before the first step only
    #: How much of the distance to the features of a linearized teacher, which trains along, is
    #: added to the loss (`distillation`); 0 for none.
    teacher: float = 0.0
    published: Published | None = None  #: The authors' recipe; `None`: the one that all share
    key: str = ""  #: The method's name in keys of the store, if it had another one before
    #: Matrix products of a step as multiples of a standard one's (`analyses.cost`).
    products: float = 1.0


# Encoder and head together: method `nonlinear` with a head that trains (closed vocabulary, app. G).
JOINT = "full"  # the name that records have; the preset of that name is another thing
TABLE: Mapping[str, Method] = MappingProxyType(
    {
        "nonlinear": Method(
            title="non-linear", text="all weights of the image encoder",
            colour="#D55E00", marker="o",
        ),
        "posthoc": Method(
            title="post-hoc linearized",
            text="not trained: a nonlinear task vector in the tangent model",
            # no other shade of linearized's hue: the dark theme turns shades over
            colour="#CC79A7", marker="s", vectors="nonlinear", tangent=True,
        ),
        "linearized": Method(
            title="linearized", text="the same weights, in the encoder's tangent model",
            colour="#0072B2", marker="D", tangent=True, products=5 / 3,
        ),
        "attention": Method(
            title="attention weights", text="q, k, v and output weights of attention",
            colour="#009E73", marker="^", parts=_WEIGHTS, products=7 / 9,
        ),
        "attention_posthoc": Method(
            title="attention, post-hoc lin.",
            text="not trained: an attention task vector in the tangent model",
            colour="#7FC9AF", marker="P", vectors="attention", tangent=True,
        ),
        "attention_bias": Method(
            title="attention + biases", text="attention's weights and biases",
            colour="#E69F00", marker="v", parts=_WEIGHTS + _BIASES, rates="attention",
        ),
        "attention_mlp": Method(
            title="all linear weights", text="weights of attention and MLP",
            colour="#882255", marker="<", parts=_WEIGHTS + _MLP_WEIGHTS,
        ),
        "attention_mlp_bias": Method(
            title="all linear + biases", text="weights and biases of attention and MLP",
            colour="#000000", marker=">", parts=_WEIGHTS + _BIASES + _MLP_WEIGHTS + _MLP_BIASES,
            rates="attention_mlp",
        ),
        # weights: of the order of the loss, by what vectors without it had in the benchmark
        # before this one (E|J tau|^2 of 160 to 600 on other tasks; squares of 0.3 to 1.1 off the
        # diagonal); `experiments.penalty_strengths` measures others
        "tau_jp": Method(
            title="τJp, linearized",
            text="all weights in the tangent model, with other tasks' images left as they are",
            colour="#56B4E9", marker="h", tangent=True, rates="linearized",
            penalty="tangent_change", weight=1e-3, others=True, products=2.2,
        ),
        "tak": Method(
            title="TAK, linearized",
            text="in the tangent model, with other tasks' Kronecker factors, as published",
            colour="#004D40", marker="$K$", tangent=True, rates="linearized",
            penalty="kronecker", weight=100.0, others=True, once=True, products=5 / 3,
            published=Published(lr=3e-4, projection=0.01),
        ),
        "tak_even": Method(
            title="TAK, equal weights",
            text="all weights in the tangent model, with other tasks' Kronecker factors, evenly",
            colour="#117733", marker="8", tangent=True, rates="linearized",
            # of τJp's strength: a sum over seven tasks in place of a mean, of which factors by
            # layers and tokens find a fifth to an eighth (vectors of mini_xs)
            key="tak", penalty="kronecker", weight=1e-3, others=True, once=True,
            products=5 / 3,
        ),
        "ortho_reg": Method(
            title="OrthoReg", text="all weights, with the columns of each change kept orthonormal",
            colour="#332288", marker="*", rates="nonlinear",
            penalty="orthonormal", weight=0.1,  # at 1 vectors are 5 times as long, and sums fall
        ),
        "delta": Method(
            title="DELTA",
            text="with features near those of a linearized teacher that trains along, as published",
            colour="#B0708A", marker="$T$", rates="nonlinear",
            penalty="kronecker", weight=500.0, once=True, teacher=1.0, products=8 / 3,
            published=Published(path=(0.5, 2.0)),
        ),
        "delta_even": Method(
            title="DELTA, equal weights",
            text="all weights, with relative distance to the features of a linearized teacher",
            colour="#DDCC77", marker="H", rates="nonlinear",
            # the best sum of four vectors of mini_xs on validation images, of seven pairs
            key="delta", penalty="kronecker", weight=1e-3, once=True, teacher=10.0,
            products=11 / 3,
        ),
        # The statements merging-off_diagonal and merging-strengths compare it.
        "off_diagonal": Method(
            title="orthogonal columns", text="all weights, with each change's columns orthogonal",
            colour="#999933", marker="p", rates="nonlinear",
            key="ortho_reg", penalty="off_diagonal", weight=1.0,
        ),
        JOINT: Method(
            title="encoder and head", text="all weights, and a head that trains along",
            colour="#7A4B00", marker="d",
        ),
    }
)  # fmt: skip
POSTHOC = {name: one.vectors for name, one in TABLE.items() if one.vectors}
METHODS = tuple(name for name in TABLE if name not in (*POSTHOC, JOINT))
EDITS = (*METHODS, *POSTHOC, JOINT)
LINEAR = tuple(name for name, one in TABLE.items() if one.tangent)  # edited in the tangent model


def of_sum(names: str) -> str:
    """Return the method whose model a sum of vectors edits.

    Args:
        names: Of the vectors' methods, joined by `+`; empty if they are not known.

    Returns:
        The method if it is one; `linearized` for several that edit the tangent model, else
        `nonlinear`, which all weights of the encoder are edited by.

    Raises:
        TasklabError: If some edit the tangent model, and others the network.
    """
    several = names.split("+")
    if len(several) == 1:
        return names or "nonlinear"
    if len({one in LINEAR for one in several}) > 1:
        tangent = ", ".join(one for one in several if one in LINEAR)
        raise TasklabError(
            f"vectors of {', '.join(several)} make no model together: {tangent} edits the tangent "
            "model, and the others edit the network."
        )
    return "linearized" if several[0] in LINEAR else "nonlinear"


def method(name: str) -> Method:
    """Return a method by its name, or raise a `TasklabError` with the nearest one."""
    choose("method", name, EDITS)
    return TABLE[name]


def penalised(name: str) -> Method:
    """Return a method that has a penalty by its name, or raise a `TasklabError`."""
    if not method(name).penalty:
        able = ", ".join(one for one, entry in TABLE.items() if entry.penalty)
        raise TasklabError(f"method {name!r} has no penalty; those that do are {able}.")
    return TABLE[name]


def matrices(names: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the names of the weights of blocks' linear layers, in the order of `names`."""
    weights = [BLOCK + PARTS[part] for part in _WEIGHTS + _MLP_WEIGHTS]
    return tuple(name for name in names if any(re.search(one, name) for one in weights))


def trainable(params: Mapping[str, Tensor], method: str, arch: str) -> tuple[str, ...]:
    """Return the names of parameters that a method trains, in the order of `params`.

    Args:
        params: Parameters of the encoder by name.
        method: One of `METHODS`.
        arch: Name of the architecture, in messages.

    Raises:
        TasklabError: If the encoder lacks the layers that the method trains, or blocks differ.
    """
    choose("method", method, METHODS)
    parts = TABLE[method].parts
    layers = {"off_diagonal": matrices(params)}
    layers["orthonormal"] = tuple(name for name, x in params.items() if x.dim() == 2)
    if not layers.get(TABLE[method].penalty, True):
        raise TasklabError(
            f"method {method!r} keeps columns of linear layers orthogonal, and {arch} has no block "
            "with such a layer that is known by its name."
        )
    if not parts:
        own = TABLE[method].published
        return tuple(name for name in params if not own or not re.search(own.frozen, name))
    chosen: set[str] = set()
    counts: dict[str, dict[str, int]] = {}  # how many of each part a block has
    for part in parts:
        for name in params:
            if match := re.search(BLOCK + PARTS[part], name):
                chosen.add(name)
                count = counts.setdefault(name[: match.end(1)], {})
                count[part] = count.get(part, 0) + 1
        if not any(part in count for count in counts.values()):
            raise TasklabError(
                f"method {method!r} trains {part}, and {arch} has no parameter whose name matches "
                f"{PARTS[part]!r}. A network without attention, such as ConvNeXt, can only be "
                "fine-tuned by 'nonlinear' or 'linearized'."
            )
    usual = next(iter(counts.values()))
    odd = [block for block, count in counts.items() if count != usual]
    if odd:
        raise TasklabError(f"method {method!r}: blocks of {arch} differ from the first: {odd}.")
    return tuple(name for name in params if name in chosen)
