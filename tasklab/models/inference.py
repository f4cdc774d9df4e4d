"""Forward passes alone, without derivatives, in fewer and larger matrix products.

An encoder computes what its library wrote, which has to serve training too. Where no derivative is
wanted, the same features come from less work:

- queries, keys and values of all tokens of all images are one product; with the library's order of
  axes it is one for each image;
- the fused attention kernel reads them where they lie (it has no forward-mode derivative, which is
  why encoders of few tokens otherwise take another one);
- what attention and MLP give is summed up where the products are made, and the activation is
  computed in place;
- of the last block only the class token is computed, if nothing else of it is read: a twelfth of a
  ViT-B, a sixth of a `mini`.

Weights, images and equations are those of the encoder. Sums are taken in another order, so that
features differ by float32 rounding (up to 1e-6 of the largest), and predictions where two classes
tie. What is not known (`passes`) runs as its library wrote it.

Letters: B images, L tokens, D width.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tasklab.models.encoder import Encoder


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


def passes(encoder: Encoder, *, tokens: bool = False) -> Encoder:
    """Return an encoder for passes without derivatives.

    Known are open_clip's vision transformers; any other encoder is returned as it is.

    Args:
        encoder: The encoder, which stays as it is; parameters are shared.
        tokens: Whether what blocks give is read, so that the last one has to give all tokens.
    """
    from open_clip.transformer import VisionTransformer  # here, for it takes seconds

    if type(encoder) is not Encoder or not isinstance(encoder.module, VisionTransformer):
        return encoder
    tower = encoder.module
    blocks = [*tower.transformer.resblocks]
    if not all(map(_known, blocks)):
        return encoder
    alone = not tokens and tower.pool_type == "tok" and tower.attn_pool is None
    quick = [_like(block, _Block, alone=alone and block is blocks[-1]) for block in blocks]
    transformer = _like(tower.transformer, resblocks=nn.ModuleList(quick))
    fields = {field.name: getattr(encoder, field.name) for field in dataclasses.fields(Encoder)}
    return Passes(**{**fields, "module": _like(tower, transformer=transformer)})


def _like(module: nn.Module, kind: type[nn.Module] | None = None, **changed: Any) -> Any:
    """Return a module with the same parameters and parts, but for its class and some attributes."""
    other = copy.copy(module)
    other._modules = dict(module._modules)  # a copy of a module shares the table of its parts
    other.__class__ = kind or type(module)
    for name, value in changed.items():
        setattr(other, name, value)
    return other.eval()


def _known(block: nn.Module) -> bool:
    """Whether a block is what `_Block` computes: nothing but its usual parts, with biases."""
    from open_clip.transformer import QuickGELU, ResidualAttentionBlock

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


class _Block(nn.Module):
    """x + attention(x), and that plus its MLP; `alone` gives the first token only, (B, 1, D).

    It is open_clip's `ResidualAttentionBlock` by another class: parts and parameters are its own.
    """

    alone: bool

    def forward(self, x: Float[Tensor, "B L D"], **masks: None) -> Tensor:
        """Return the tokens after the block; there are no masks in an image tower."""
        attention, (size, count, width) = self.attn, x.shape
        weight, bias = attention.in_proj_weight, attention.in_proj_bias
        normed, heads = self.ln_1(x), attention.num_heads
        first = 0
        if self.alone:  # keys and values of all tokens, the query of one
            first, x = width, x[:, :1]
            q = F.linear(normed[:, 0], weight[:width], bias[:width]).view(size, heads, 1, -1)
        rows = F.linear(normed.view(-1, width), weight[first:], bias[first:])
        *own, k, v = rows.view(size, count, -1, heads, width // heads).permute(2, 0, 3, 1, 4)
        q = own[0] if own else q
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, width)
        total = x.reshape(-1, width) + attention.out_proj.bias
        total.addmm_(mixed, attention.out_proj.weight.t())
        hidden = _activated(self.mlp.gelu, self.mlp.c_fc(self.ln_2(total)))
        total.add_(self.mlp.c_proj.bias).addmm_(hidden, self.mlp.c_proj.weight.t())
        return total.view(size, -1, width)


def _activated(activation: nn.Module, x: Tensor) -> Tensor:
    """Return GELU(x), or else x sigmoid(1.702 x), in the place of x."""
    if isinstance(activation, nn.GELU):
        return torch.ops.aten.gelu_(x, approximate=activation.approximate)
    return x.mul(1.702).sigmoid_().mul_(x)
