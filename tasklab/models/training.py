"""Forward passes for a backward pass, in fewer operations.

With a dozen tokens and narrow heads most of an attention's time goes to copies, above all in
bfloat16. The same features and gradients come from fewer:

- queries, keys and values are views of one product, and attention is written
  out, softmax(scale q k^T) v, in the precision of the pass;
- patches that do not overlap are embedded by a product instead of a convolution.

Encoders of many tokens keep the fused kernel of attention. Of all networks, products with weights
are made by the library that is faster at them (`products`), on a CPU.

Sums are taken in another order. All else, and linearized models (`tasklab.tuning.forward_mode`),
run as they were written.

Letters: B images, L tokens, D width, H heads, d width of a head, p side of a patch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tasklab.models import products
from tasklab.models.encoder import Encoder
from tasklab.models.inference import like, quick_products, with_module, with_parts


def passes(encoder: Encoder) -> Encoder:
    """Return an encoder for passes with a derivative: the same function of the same parameters."""
    written, changed = encoder.module, encoder.module
    if encoder.math:
        changed = _with_attention(written)
        changed = changed if changed is written else _with_patches(changed)
    if products.for_weights(encoder.params):
        changed = quick_products(_with_fused(changed))
    return encoder if changed is written else with_module(encoder, changed)


def written_out(encoder: Encoder) -> Encoder:
    """Return an encoder whose attention is computed as products of its weights."""
    return dataclasses.replace(encoder, module=_with_attention(encoder.module))


def _with_attention(module: nn.Module) -> nn.Module:
    if type(module) is nn.MultiheadAttention and _usual(module):
        return like(module, _Attention)
    if getattr(module, "fused_attn", False):  # timm's switch
        return like(module, fused_attn=False)
    return with_parts(module, _with_attention)


def _with_fused(module: nn.Module) -> nn.Module:
    if type(module) is nn.MultiheadAttention and _usual(module):
        return like(module, _Attention, fused=True)
    return with_parts(module, _with_fused)


def _with_patches(module: nn.Module) -> nn.Module:
    if type(module) is nn.Conv2d and _tiles(module):
        return like(module, _Patches)
    return with_parts(module, _with_patches)


def _usual(attention: nn.MultiheadAttention) -> bool:
    return (
        attention.in_proj_weight is not None
        and attention.bias_k is None
        and attention.batch_first
        and not attention.add_zero_attn
        and not attention.dropout
    )


def _tiles(conv: nn.Conv2d) -> bool:
    alone = conv.groups == 1 and conv.padding in ((0, 0), "valid") and conv.dilation == (1, 1)
    return alone and conv.stride == conv.kernel_size


class _Attention(nn.MultiheadAttention):
    """Self-attention, written out. It is PyTorch's by another class: parameters are its own."""

    fused = False  # whether the part without weights is PyTorch's kernel

    def forward(
        self, query: Float[Tensor, "B L D"], key: Tensor, value: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return the mixed values (B, L, D), and no weights."""
        masked = any(options.get(mask) is not None for mask in ("attn_mask", "key_padding_mask"))
        if masked or options.get("need_weights", True) or not query is key is value:
            return super().forward(query, key, value, **options)
        qkv = products.linear(query, self.in_proj_weight, self.in_proj_bias)
        qkv = qkv.view(*query.shape[:2], 3, self.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, L, d)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.softmax((q * q.shape[-1] ** -0.5) @ k.mT, -1) @ v
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None


class _Patches(nn.Conv2d):
    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Return the embedded patches; pixels beyond the last whole patch are left out."""
        (p, q), (height, width) = self.kernel_size, x.shape[2:]
        x = x[..., : height - height % p, : width - width % q]
        tiles = x.unflatten(3, (-1, q)).unflatten(2, (-1, p)).permute(0, 2, 4, 1, 3, 5).flatten(3)
        made = products.linear(tiles, self.weight.flatten(1), self.bias)
        return made.permute(0, 3, 1, 2)
