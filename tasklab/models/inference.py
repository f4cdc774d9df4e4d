"""Forward passes alone, without derivatives, in fewer and larger matrix products.

An encoder computes what its library wrote, which has to serve training too. Where no derivative is
wanted, the same features come from less work:

- queries, keys and values of all tokens of all images are one product; with the library's order of
  axes it is one for each image;
- the fused attention kernel reads them where they lie (it has no forward-mode derivative, which is
  why encoders of few tokens otherwise take another one);
- products are made by the library that is faster at them (`products`), what attention and MLP give
  is summed up in place, and so is the activation computed; QuickGELU(x) = x sigmoid(1.702 x) is
  SiLU(1.702 x) / 1.702, the last factor carried by the product behind it;
- of the last block only the class token is computed, if nothing else of it is read: a twelfth of a
  ViT-B, a sixth of a `mini`. Its query q meets the tokens x through (W_K^T q) x and W_V sum_l p_l
  x_l, so that no key and no value is made;
- the embedding of patches is linear in its weight: for many edits of one model on the same images
  it is made once for each vector (`from_patches`).

Weights, images and equations are those of the encoder. Sums are taken in another order, so that
features differ by float32 rounding (up to 1e-6 of the largest), and predictions where two classes
tie. What is not known (`passes`) runs as its library wrote it.

Letters: B images, L tokens, D width.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tasklab.models.encoder import Encoder
from tasklab.models.products import add_product, linear

Embed = Callable[[Tensor, Tensor], Tensor]  # weight, images (B, 3, H, W) -> patches (B, D, h, w)


class Passes(Encoder):
    """An encoder for passes without derivatives: the same function, computed with less work."""

    @torch.inference_mode()
    def __call__(self, params: Mapping[str, Tensor], x: Tensor) -> Float[Tensor, "B D"]:
        """Return features (B, D), as the encoder does."""
        return super().__call__(params, x)

    @property
    def math(self) -> bool:
        """Whether attention takes the math kernel, which only derivatives need."""
        return False


def from_patches(encoder: Encoder) -> tuple[Encoder, str, Embed] | None:
    """Return an encoder that takes embedded patches, or `None` if there is no such place in it.

    The embedding is linear in its weight: conv(x; W + sum_t a_t W_t) is a sum of convolutions that
    do not change from one coefficient to the next.

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

    Known are open_clip's and timm's vision transformers; any other is returned as it is.

    Args:
        tokens: Whether what blocks give is read, so that the last one has to give all tokens.
    """
    if type(encoder) is not Encoder:
        return encoder
    library = type(encoder.module).__module__.partition(".")[0]
    make = {"open_clip": _open_clip, "timm": _timm}.get(library)
    tower = make(encoder.module, tokens) if make else None
    return encoder if tower is None else _with(encoder, tower)


def _with(encoder: Encoder, tower: nn.Module) -> Passes:
    fields = {field.name: getattr(encoder, field.name) for field in dataclasses.fields(Encoder)}
    return Passes(**{**fields, "module": tower})


def _open_clip(tower: nn.Module, tokens: bool) -> nn.Module | None:
    """Return open_clip's tower with `_Block`s, or `None` if there is more in it."""
    from open_clip.transformer import QuickGELU, ResidualAttentionBlock, VisionTransformer

    def plain(block: nn.Module) -> bool:
        if type(block) is not ResidualAttentionBlock:
            return False
        attention = block.attn
        return (
            attention.in_proj_weight is not None
            and attention.in_proj_bias is not None
            and attention.bias_k is None
            and attention.batch_first
            and not attention.add_zero_attn
            and not attention.dropout
            and isinstance(block.ls_1, nn.Identity)
            and isinstance(block.ls_2, nn.Identity)
            and isinstance(block.mlp.gelu, nn.GELU | QuickGELU)
        )

    if not isinstance(tower, VisionTransformer) or not all(map(plain, tower.transformer.resblocks)):
        return None
    alone = not tokens and tower.pool_type == "tok" and tower.attn_pool is None
    blocks = nn.ModuleList(_quick(tower.transformer.resblocks, _OpenClip, alone))
    return like(tower, transformer=like(tower.transformer, resblocks=blocks))


def _timm(tower: nn.Module, tokens: bool) -> nn.Module | None:
    """Return timm's tower with `_Block`s, or `None` if there is more in it."""
    from timm.layers import Attention, Mlp
    from timm.models.vision_transformer import Block, VisionTransformer

    def plain(block: nn.Module) -> bool:
        if type(block) is not Block or type(block.attn) is not Attention:
            return False
        attention, mlp = block.attn, block.mlp
        usual = [attention.q_norm, attention.k_norm, getattr(attention, "norm", nn.Identity())]
        usual += [block.ls1, block.ls2, block.drop_path1, block.drop_path2]
        return (
            type(mlp) is Mlp
            and isinstance(mlp.act, nn.GELU)
            and all(isinstance(part, nn.Identity) for part in (*usual, mlp.norm))
            and getattr(attention, "gate", None) is None
            and all(
                isinstance(part, nn.Linear) and part.bias is not None
                for part in (attention.qkv, attention.proj, mlp.fc1, mlp.fc2)
            )
        )

    if type(tower) is not VisionTransformer or not all(map(plain, tower.blocks)):
        return None
    alone = not tokens and tower.global_pool == "token" and tower.attn_pool is None
    return like(tower, blocks=nn.Sequential(*_quick(tower.blocks, _TimmBlock, alone)))


def _quick(blocks: Iterable[nn.Module], kind: type[_Block], alone: bool) -> list[nn.Module]:
    *others, last = blocks
    return [*(like(one, kind, alone=False) for one in others), like(last, kind, alone=alone)]


def like(module: nn.Module, kind: type[nn.Module] | None = None, **changed: Any) -> Any:
    """Return a module with the same parameters and parts, but for its class and some attributes."""
    other = copy.copy(module)
    other._modules = dict(module._modules)  # a copy of a module shares the table of its parts
    other.__class__ = kind or type(module)
    for name, value in changed.items():
        setattr(other, name, value)
    return other.eval()


class _Parts(NamedTuple):
    """What a block computes with, under one name in all libraries."""

    before: nn.Module
    weight: Tensor  # of queries, keys and values, (3 D, D)
    bias: Tensor
    heads: int
    out: nn.Module
    between: nn.Module
    up: nn.Module
    activation: nn.Module
    down: nn.Module


class _Block(nn.Module):
    """x + attention(x), and that plus its MLP; `alone` gives the first token only, (B, 1, D).

    It is a library's block by another class: parts and parameters are its own.
    """

    alone: bool

    def forward(self, x: Float[Tensor, "B L D"], **masks: None) -> Tensor:
        """Return the tokens after the block; there are no masks in an image tower."""
        parts = self.parts()
        mixed = (_first if self.alone else _all)(parts, parts.before(x))
        total = ((x[:, :1] if self.alone else x) + parts.out.bias).contiguous()
        add_product(total, mixed, parts.out.weight)
        up, down, normed = parts.up, parts.down, parts.between(total)
        hidden, scale = linear(normed, up.weight, up.bias), 1.0
        if isinstance(parts.activation, nn.GELU):
            torch.ops.aten.gelu_(hidden, approximate=parts.activation.approximate)
        else:
            scale = 1.702
            F.silu(hidden.mul_(scale), inplace=True)
        return add_product(total.add_(down.bias), hidden, down.weight, 1 / scale)


class _OpenClip(_Block):
    def parts(self) -> _Parts:
        one, two = self.attn, self.mlp
        qkv = one.in_proj_weight, one.in_proj_bias, one.num_heads
        return _Parts(self.ln_1, *qkv, one.out_proj, self.ln_2, two.c_fc, two.gelu, two.c_proj)


class _TimmBlock(_Block):
    def parts(self) -> _Parts:
        one, two = self.attn, self.mlp
        qkv = one.qkv.weight, one.qkv.bias, one.num_heads
        return _Parts(self.norm1, *qkv, one.proj, self.norm2, two.fc1, two.act, two.fc2)


def _all(parts: _Parts, x: Float[Tensor, "B L D"]) -> Tensor:
    rows = linear(x, parts.weight, parts.bias).unflatten(-1, (3, parts.heads, -1))
    mixed = F.scaled_dot_product_attention(*rows.permute(2, 0, 3, 1, 4))
    return mixed.transpose(1, 2).flatten(2)


def _first(parts: _Parts, x: Float[Tensor, "B L D"]) -> Tensor:
    """Return the attention output of the first token (B, 1, D).

    Keys and values are linear in the tokens: q (W_K x_l + b_K) is (W_K^T q) x_l and a number that
    all tokens share, which the softmax does not see; sum_l p_l (W_V x_l + b_V) is
    W_V sum_l p_l x_l + b_V, since p sums to one.
    """
    size, _, width = x.shape
    bias = parts.bias.view(3, parts.heads, 1, -1)
    weight = parts.weight.view(3, parts.heads, -1, width)
    first = x[:, 0].expand(parts.heads, -1, -1)  # one product for each head
    q = torch.baddbmm(bias[0], first, weight[0].mT)
    asked = torch.bmm(q, weight[1]).transpose(0, 1)
    shares = torch.bmm(asked, x.mT).mul_(q.shape[-1] ** -0.5).softmax(-1)
    mixed = torch.bmm(shares, x).transpose(0, 1)
    return torch.baddbmm(bias[2], mixed, weight[2].mT).transpose(0, 1).reshape(size, 1, width)
