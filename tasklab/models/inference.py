"""Forward passes alone, without derivatives, in fewer and larger matrix products.

An encoder runs its library's code, which also serves training. Without derivatives the same
features need less work:

- queries, keys and values of all tokens of all images are one product; with the library's order of
  axes it is one for each image;
- the fused attention kernel reads them where they lie (it has no forward-mode derivative, which is
  why encoders of few tokens otherwise take another one);
- products are made by the library that is faster at them (`products`), outputs of attention and MLP
  are added in place, and so is the activation computed; QuickGELU(x) = x sigmoid(1.702 x) is
  SiLU(1.702 x) / 1.702, the last factor carried by the product behind it;
- of the last block only the class token is computed, if nothing else of it is read. Its query q
  meets the tokens x through (W_K^T q) x and W_V sum_l p_l x_l: no key and no value is made;
- the embedding of patches is linear in its weight: for many edits of one model on the same images
  it is made once for each vector (`from_patches`).

Sums are taken in another order, so that features differ by float32 rounding (up to 1e-6 of the
largest). Other modules (`passes`) run as their library wrote them, but for products with weights.

Letters: B images, L tokens, D width.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tasklab.models import products
from tasklab.models.encoder import Encoder
from tasklab.models.products import add_product, linear
from tasklab.models.towers import Block, Kind, tower

Embed = Callable[[Tensor, Tensor], Tensor]  # weight, images (B, 3, H, W) -> patches (B, D, h, w)
_PASSES: WeakKeyDictionary[Encoder, dict[bool, Encoder]] = WeakKeyDictionary()


class Passes(Encoder):
    """An encoder for passes without derivatives: the same function, computed with less work."""

    @torch.inference_mode()
    def __call__(self, params: Mapping[str, Tensor], x: Tensor) -> Float[Tensor, "B D"]:
        """Return features (B, D), as the encoder does."""
        return super().__call__(params, x)

    @property
    def math(self) -> bool:
        """Whether attention uses the math kernel, which only derivatives need."""
        return False


def from_patches(encoder: Encoder) -> tuple[Encoder, str, Embed] | None:
    """Return an encoder that takes embedded patches, or `None` if it embeds no patches.

    Returns:
        The encoder from patches (B, D, h, w) on, the name of the weight W that makes them, and a
        function of W and of images as `preprocess` gives them.
    """
    conv = getattr(encoder.module, "conv1", None) if isinstance(encoder, Passes) else None
    if conv is None or conv.bias is not None:
        return None

    @torch.inference_mode()
    def embed(weight: Tensor, x: Tensor) -> Tensor:
        return F.conv2d(x, weight, stride=conv.stride, padding=conv.padding)

    return _with(encoder, like(encoder.module, conv1=nn.Identity())), "conv1.weight", embed


def passes(encoder: Encoder, *, tokens: bool = False) -> Encoder:
    """Return an encoder for passes without derivatives.

    This covers open_clip's and timm's vision transformers (`towers.tower`) whose blocks have all
    biases and no scales; of any other network only the linear layers change, on a CPU (`products`).
    If outputs of blocks are read, the last one must compute all `tokens`. The result is the same
    object for the same encoder, so that cached facts about it (`blocks.Layers`) stay valid.
    """
    known = _PASSES.setdefault(encoder, {}) if isinstance(encoder, Encoder) else {}
    if tokens not in known:
        made = _passes(encoder, tokens)
        if made is encoder:  # it would keep itself alive
            return encoder
        known[tokens] = made
    return known[tokens]


def _passes(encoder: Encoder, tokens: bool) -> Encoder:
    shape = tower(encoder.module) if type(encoder) is Encoder else None
    if shape is None or not all(map(_plain, shape.blocks)):
        if not isinstance(encoder, Encoder) or not products.for_weights(encoder.params):
            return encoder
        return with_module(encoder, quick_products(encoder.module))
    path, _, _ = str(shape.blocks[0].qkv_w).partition(".0.")  # of the blocks in the network
    first = Block(*(name and name.removeprefix(f"{path}.0.") for name in shape.blocks[0]))
    common, last = {"names": first, "settings": shape.kind}, str(len(shape.blocks) - 1)
    blocks = {
        number: like(block, _Block, alone=number == last and not (tokens or shape.mean), **common)
        for number, block in encoder.module.get_submodule(path).named_children()
    }
    return _with(encoder, _replaced(encoder.module, path, blocks))


def _plain(names: Block[str | None]) -> bool:
    absent = [field for field, name in names._asdict().items() if name is None]
    return absent == ["scale1", "scale2"]


def _replaced(module: nn.Module, path: str, parts: Mapping[str, nn.Module]) -> nn.Module:
    if not path:
        return like(module, **parts)
    first, _, rest = path.partition(".")
    return like(module, **{first: _replaced(getattr(module, first), rest, parts)})


def _with(encoder: Encoder, module: nn.Module) -> Passes:
    fields = {field.name: getattr(encoder, field.name) for field in dataclasses.fields(Encoder)}
    return Passes(**{**fields, "module": module})


def like(module: nn.Module, kind: type[nn.Module] | None = None, **changed: Any) -> Any:
    """Return a module with the same parameters and parts in eval mode.

    Args:
        module: It is not changed.
        kind: Class of the result; by default the module's.
        changed: Attributes of the result.
    """
    other = copy.copy(module)
    other._modules = dict(module._modules)  # a copy of a module shares the table of its parts
    other.__class__ = kind or type(module)
    for name, value in changed.items():
        setattr(other, name, value)
    return other.eval()


def with_module(encoder: Encoder, module: nn.Module) -> Encoder:
    """Return the encoder with another network of the same parameters; all else is its own."""
    other = copy.copy(encoder)
    object.__setattr__(other, "module", module)
    return other


def quick_products(module: nn.Module) -> nn.Module:
    """Return a network whose linear layers take the faster library, with the same parameters."""
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return like(module, _Linear)
    return with_parts(module, quick_products)


def with_parts(module: nn.Module, change: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Return a network with changed parts, or the same one where none changes."""
    parts = {name: (part, change(part)) for name, part in module.named_children()}
    changed = {name: new for name, (old, new) in parts.items() if new is not old}
    return like(module, **changed) if changed else module


class _Linear(nn.Linear):
    def forward(self, input: Float[Tensor, "*T D"]) -> Float[Tensor, "*T E"]:
        return linear(input, self.weight, self.bias)


class _Block(nn.Module):
    """x + attention(x), and that plus its MLP; `alone` gives the first token only, (B, 1, D).

    It has the parts and parameters of a library's block, under `names`.
    """

    alone: bool
    names: Block[str]
    settings: Kind

    def forward(self, x: Float[Tensor, "B L D"], **masks: None) -> Tensor:
        """Return the tokens after the block; an image tower has no masks."""
        w = Block(*(name and attrgetter(name)(self) for name in self.names))
        before, between = (
            attrgetter(name.rpartition(".")[0])(self)
            for name in (self.names.norm1_w, self.names.norm2_w)
        )
        mixed = (_first if self.alone else _all)(w, self.settings.heads, before(x))
        total = ((x[:, :1] if self.alone else x) + w.out_b).contiguous()
        add_product(total, mixed, w.out_w)
        hidden, scale = linear(between(total), w.up_w, w.up_b), 1.0
        if self.settings.activation == "quick":
            scale = 1.702
            F.silu(hidden.mul_(scale), inplace=True)
        else:
            torch.ops.aten.gelu_(hidden, approximate=self.settings.activation)
        return add_product(total.add_(w.down_b), hidden, w.down_w, 1 / scale)


def _all(w: Block[Tensor], heads: int, x: Float[Tensor, "B L D"]) -> Tensor:
    rows = linear(x, w.qkv_w, w.qkv_b).unflatten(-1, (3, heads, -1))
    mixed = F.scaled_dot_product_attention(*rows.permute(2, 0, 3, 1, 4))
    return mixed.transpose(1, 2).flatten(2)


def _first(w: Block[Tensor], heads: int, x: Float[Tensor, "B L D"]) -> Tensor:
    """Return the attention output of the first token (B, 1, D).

    Keys and values are linear in the tokens: q (W_K x_l + b_K) is (W_K^T q) x_l and a number that
    all tokens share, which the softmax does not see; sum_l p_l (W_V x_l + b_V) is
    W_V sum_l p_l x_l + b_V, since p sums to one.
    """
    size, _, width = x.shape
    bias = w.qkv_b.view(3, heads, 1, -1)
    weight = w.qkv_w.view(3, heads, -1, width)
    first = x[:, 0].expand(heads, -1, -1)  # one product for each head
    q = torch.baddbmm(bias[0], first, weight[0].mT)
    asked = torch.bmm(q, weight[1]).transpose(0, 1)
    shares = torch.bmm(asked, x.mT).mul_(q.shape[-1] ** -0.5).softmax(-1)
    mixed = torch.bmm(shares, x).transpose(0, 1)
    return torch.baddbmm(bias[2], mixed, weight[2].mT).transpose(0, 1).reshape(size, 1, width)
