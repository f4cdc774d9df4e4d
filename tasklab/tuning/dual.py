"""A vision transformer and its tangent side by side, as plain functions of lists of tensors.

A `Pair` is a value and its tangent; `None` is a tangent of zero, so that without tangents the same
functions compute the network alone. Values are recorded for a backward pass where gradients are
enabled, tangents never are:

    d(x W^T + b) = dx W^T + x dW^T + db
    d norm(x)    = w (dx - mean dx - n mean(n dx)) / deviation + n dw + db
    d softmax(s) = p (ds - sum p ds)

The code has no modules, hooks or dual numbers, so `torch.compile` turns a block into few kernels
(`tasklab.tuning.compiled`). Matrix products are in the type that autocast names; norms, softmax and
activations of tangents are at least float32.

`passes` returns an `Encoder` of this kind. It equals its library's up to rounding.

Letters: B images, L tokens, D width, H heads, d width of a head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from tasklab.models.encoder import Encoder
from tasklab.models.towers import Block, Ends, Kind, Tower, tower

Pair = tuple[Tensor, Tensor | None]
Params = Mapping[str, Tensor]
Weights = Block[Tensor | None]
Run = Callable[[Tensor, Tensor | None, Weights, Weights], Pair]  # x, dx, weights, their tangents
Make = Callable[[Kind, torch.dtype], Run]
_NONE: Weights = Block(*[None] * len(Block._fields))


def passes(encoder: Encoder, make: Make | None = None) -> Plain | None:
    """Return an encoder of plain functions, or `None` where its network is another one."""
    if type(encoder) is not Encoder or (shape := tower(encoder.module)) is None:
        return None
    fields = {field.name: getattr(encoder, field.name) for field in dataclasses.fields(Encoder)}
    return Plain(**fields, tower=shape, make=make or block_of)


@dataclasses.dataclass(frozen=True, eq=False)
class Plain(Encoder):
    """An encoder of plain functions."""

    tower: Tower  #: Its shape
    #: Settings and type of products -> the function of a block.
    make: Make = dataclasses.field(repr=False)
    #: Whether the insides of blocks are computed again in the backward pass.
    recompute: bool = False

    def __call__(self, params: Params, x: Tensor) -> Float[Tensor, "B D"]:
        """Return features, as the encoder does."""
        return self.pair(params, {}, x)[0]

    def pair(self, params: Params, tau: Params, x: Tensor) -> Pair:
        """Return f(x; params), recorded if gradients are enabled, and J(x) tau, which never is.

        Args:
            params: The parameters to evaluate at, by name.
            tau: The direction, by the names of some parameters; those that it lacks are 0.
            x: Preprocessed images (B, 3, H, W).

        Returns:
            Features (B, D), and J tau (B, D) or `None` where no parameter of `tau` is of use.
        """
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        shape, params = self.tower, {**self.params, **params}
        with torch.autocast(device, enabled=False):  # types are written out
            ends = _pairs(shape.ends, params, tau)
            x, dx = _embedded(shape, ends, x, dtype)
            blocks = [_apart(names, params, tau) for names in shape.blocks]
            if torch.is_grad_enabled() and any(w.requires_grad for w in _given(blocks[0][0])):
                x = x if x.requires_grad else x.requires_grad_()  # alike for all blocks
            if dx is None and any(_given(tangents) for _, tangents in blocks):
                dx = torch.zeros_like(x)  # likewise
            run = self.make(shape.kind, dtype)
            for weights, tangents in blocks:
                if self.recompute and torch.is_grad_enabled():
                    x, dx = _Recomputed.apply(run, x, dx, tangents, *weights)
                else:
                    x, dx = run(x, dx, weights, tangents)
            return _pooled(shape, ends, (x, dx), dtype)


def block_of(kind: Kind, dtype: torch.dtype) -> Run:
    """Return the function of a block."""

    def block(x: Tensor, dx: Tensor | None, weights: Weights, tangents: Weights) -> Pair:
        w, total = Block(*_paired(weights, tangents)), (x, dx)
        inner = _norm(total, w.norm1_w, w.norm1_b, kind.eps, dtype)
        inner = _linear(inner, w.qkv_w, w.qkv_b, dtype)
        inner = _linear(_attention(inner, kind.heads), w.out_w, w.out_b, dtype)
        total = _plus(total, _scaled(inner, w.scale1))
        inner = _norm(total, w.norm2_w, w.norm2_b, kind.eps, dtype)
        inner = _activated(_linear(inner, w.up_w, w.up_b, dtype), kind.activation)
        inner = _linear(inner, w.down_w, w.down_b, dtype)
        return _plus(total, _scaled(inner, w.scale2))

    return block


class _Recomputed(torch.autograd.Function):
    """A block that stores its input for the backward pass and recomputes its values."""

    @staticmethod
    def forward(
        ctx: Any, run: Run, x: Tensor, dx: Tensor | None, tangents: Weights, *weights: Tensor | None
    ) -> Pair:
        y, dy = run(x, dx, Block(*weights), tangents)
        ctx.run = run
        ctx.save_for_backward(x, *weights)
        if dy is not None:
            ctx.mark_non_differentiable(dy)
        return y, dy

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        _, needs_x, _, _, *needs_weights = ctx.needs_input_grad
        needed = (needs_x, *needs_weights)
        leaves = [
            None if tensor is None else tensor.detach().requires_grad_(need)
            for tensor, need in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad():
            y, _ = ctx.run(leaves[0], None, Block(*leaves[1:]), _NONE)
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        found = iter(torch.autograd.grad(y, wanted, dy))
        first, *others = [next(found) if need else None for need in needed]
        return None, first, None, None, *others


# --- Before and after the blocks -----------------------------------------------------------------


def _embedded(shape: Tower, w: Ends[Any], x: Float[Tensor, "B 3 H W"], dtype: torch.dtype) -> Pair:
    p, q = shape.patch
    height, width = x.shape[2] // p * p, x.shape[3] // q * q
    tiles = x[..., :height, :width].unflatten(3, (-1, q)).unflatten(2, (-1, p))
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, L, 3 p q)
    weight = _each(lambda one: one.flatten(1), w.patch_w)
    stream = _wide(dtype) if shape.wide else dtype
    tokens = _to(_linear((tiles, None), weight, w.patch_b, dtype), stream)
    prefix = [_to(one, stream) for one in (w.class_token, w.registers) if one is not None]
    positions = _to(w.positions, stream)
    if not shape.prefix_positions:
        tokens = _plus(tokens, positions)
    if prefix:
        tokens = _joined([*(_expanded(one, len(x)) for one in prefix), tokens])
    if shape.prefix_positions:
        tokens = _plus(tokens, positions)
    return tokens if w.pre_w is None else _norm(tokens, w.pre_w, w.pre_b, shape.kind.eps, stream)


def _pooled(shape: Tower, w: Ends[Any], x: Pair, dtype: torch.dtype) -> Pair:
    stream = _wide(dtype) if shape.wide else dtype
    prefix = [one[0] for one in (w.class_token, w.registers) if one is not None]
    first = sum(token.numel() // token.shape[-1] for token in prefix)

    def pool(x: Tensor) -> Tensor:
        return x[:, 0 if shape.mean_prefix else first :].mean(1) if shape.mean else x[:, 0]

    def normed(x: Pair) -> Pair:
        return x if w.post_w is None else _norm(x, w.post_w, w.post_b, shape.kind.eps, stream)

    if shape.norm_last or not shape.mean:  # the class token's norm needs no other token
        x = normed(_each(pool, x))
    else:
        x = _each(pool, normed(x))
    if w.projection is None:
        return x
    return _linear(x, _each(lambda one: one.mT, w.projection), None, dtype)


def _expanded(token: Pair, count: int) -> Pair:
    width = token[0].shape[-1]
    return _each(lambda one: one.reshape(1, -1, width).expand(count, -1, -1), token)


# --- Operations on values and tangents -----------------------------------------------------------


def _linear(inputs: Pair, w: Pair, b: Pair | None, dtype: torch.dtype) -> Pair:
    (x, dx), (weight, dweight) = _to(inputs, dtype), _to(w, dtype)
    bias, dbias = _maybe(b, dtype)
    y, dy = F.linear(x, weight, bias), None
    with torch.no_grad():
        if dx is not None:
            dy = F.linear(dx, weight, dbias)
        if dweight is not None:
            more = F.linear(x, dweight, dbias if dx is None else None)
            dy = more if dy is None else dy + more
        elif dx is None and dbias is not None:
            dy = dbias.expand(y.shape)
    return y, dy


def _norm(inputs: Pair, w: Pair, b: Pair | None, eps: float, dtype: torch.dtype) -> Pair:
    """Return w n + b with n = (x - mean) / deviation, computed in float32, in a type."""
    wide = _wide(inputs[0].dtype)
    (x, dx), (weight, dweight), (bias, dbias) = _to(inputs, wide), _to(w, wide), _maybe(b, wide)
    y = F.layer_norm(x, x.shape[-1:], weight, bias, eps).to(dtype)
    if dx is None and dweight is None and dbias is None:
        return y, None
    with torch.no_grad():
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        inverse = torch.rsqrt(variance + eps)
        n, dy = (x - mean) * inverse, torch.zeros_like(x)
        if dx is not None:
            along = (n * dx).mean(-1, keepdim=True)
            dy = (dx - dx.mean(-1, keepdim=True) - n * along) * inverse * weight
        if dweight is not None:
            dy = dy + n * dweight
        if dbias is not None:
            dy = dy + dbias
        return y, dy.to(dtype)


def _attention(qkv: Pair, heads: int) -> Pair:
    def three(rows: Float[Tensor, "B L E"]) -> tuple[Tensor, ...]:
        return rows.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, L, d)

    def merged(mixed: Float[Tensor, "B H L d"]) -> Tensor:
        return mixed.transpose(1, 2).flatten(2)

    q, k, v = three(qkv[0])
    out = merged(F.scaled_dot_product_attention(q, k, v))
    if qkv[1] is None:
        return out, None
    with torch.no_grad():
        dq, dk, dv = three(qkv[1])
        scale, wide = q.shape[-1] ** -0.5, _wide(q.dtype)
        weights = torch.softmax((q @ k.mT).to(wide) * scale, -1)
        # dq k^T + q dk^T is one product, of twice the inner width
        scores = (torch.cat([dq, q], -1) @ torch.cat([k, dk], -1).mT).to(wide) * scale
        dweights = weights * (scores - (weights * scores).sum(-1, keepdim=True))
        mixed = dweights.to(v.dtype) @ v + weights.to(v.dtype) @ dv
        return out, merged(mixed)


def _activated(inputs: Pair, name: str) -> Pair:
    x, dx = inputs
    if name != "quick":
        y = F.gelu(x, approximate=name)
        with torch.no_grad():
            return y, None if dx is None else torch.ops.aten.gelu_backward(dx, x, approximate=name)
    y = x * torch.sigmoid(1.702 * x)
    if dx is None:
        return y, None
    with torch.no_grad():
        wide = _wide(x.dtype)
        z, share = x.to(wide), torch.sigmoid(1.702 * x.to(wide))
        return y, (dx * (share + 1.702 * z * share * (1 - share))).to(x.dtype)


def _scaled(inputs: Pair, scale: Pair | None) -> Pair:
    if scale is None:
        return inputs
    (x, dx), (s, ds) = inputs, _to(scale, inputs[0].dtype)
    with torch.no_grad():
        dy = None if dx is None else dx * s
        if ds is not None:
            dy = x * ds if dy is None else dy + x * ds
    return x * s, dy


def _plus(a: Pair, b: Pair) -> Pair:
    y, (da, db) = a[0] + b[0], (a[1], b[1])
    with torch.no_grad():
        if da is None or db is None:
            only = db if da is None else da
            return y, None if only is None else only.expand(y.shape)
        return y, da + db


def _joined(parts: list[Pair]) -> Pair:
    y = torch.cat([value for value, _ in parts], 1)
    if all(tangent is None for _, tangent in parts):
        return y, None
    with torch.no_grad():
        tangents = [torch.zeros_like(x) if dx is None else dx for x, dx in parts]
        return y, torch.cat(tangents, 1)


def _each(function: Callable[[Tensor], Tensor], x: Pair) -> Pair:
    return function(x[0]), None if x[1] is None else function(x[1])


def _to(pair: Pair, dtype: torch.dtype) -> Pair:
    return _each(lambda x: x.to(dtype), pair)


def _maybe(pair: Pair | None, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if pair is None else _to(pair, dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


# --- Weights by name -----------------------------------------------------------------------------


def _apart(names: Block[str | None], params: Params, tau: Params) -> tuple[Weights, Weights]:
    weights = [None if name is None else _plain(params[name]) for name in names]
    tangents = [
        None if name is None or name not in tau else tau[name].detach().to(weight)
        for name, weight in zip(names, weights, strict=True)
    ]
    return Block(*weights), Block(*tangents)


def _plain(weight: Tensor) -> Tensor:
    """Return a weight that is no `Parameter`: compiled code treats these differently."""
    return weight if weight.requires_grad else weight.detach()


def _pairs(names: Ends[str | None], params: Params, tau: Params) -> Ends[Any]:
    values = [None if name is None else params[name] for name in names]
    tangents = [None if name is None or name not in tau else tau[name].detach() for name in names]
    return Ends(*_paired(values, tangents))


def _paired(values: Sequence[Tensor | None], tangents: Sequence[Tensor | None]) -> list[Any]:
    pairs = zip(values, tangents, strict=True)
    return [None if value is None else (value, tangent) for value, tangent in pairs]


def _given(weights: Weights) -> list[Tensor]:
    return [weight for weight in weights if weight is not None]
