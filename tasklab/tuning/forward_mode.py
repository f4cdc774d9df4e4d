"""Forward-mode derivatives beside a recorded forward pass, without a graph of the tangents.

PyTorch's dual numbers carry a tangent beside every value. Where the values are also recorded for a
backward pass, so is the arithmetic of the tangents, and every saved activation keeps its tangent
alive. Inside `Tangents` each operation is split: its value is computed from plain values and
recorded as usual; its tangent is computed without a graph.

Operations that cost something have a rule below. They are products of two arguments,

    d(x W) = dx W + x dW,

and functions whose Jacobian J is symmetric, so that their fused backward kernel computes J dx too:
normalisation, softmax, everything elementwise. Any other operation takes PyTorch's own forward
derivative, at the price of computing its (cheap) value twice. The module must therefore be in eval
mode: an operation that draws random numbers would draw them twice.

Letters: B batch, L tokens, D width, H heads, d width of a head.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.autograd.forward_ad as fw
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tasklab.models import products


@contextlib.contextmanager
def dual_numbers() -> Iterator[None]:
    """Open a level of dual numbers: make them with `join`, read them with `split`."""
    with warnings.catch_warnings():
        # PyTorch compiles some derivatives when it makes the first dual number, in a way that its
        # newer releases call deprecated: nothing that a user could change.
        warnings.filterwarnings("ignore", ".*torch.jit", FutureWarning)
        warnings.filterwarnings("ignore", ".*torch.jit", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")
    with fw.dual_level():
        yield


class Tangents(TorchFunctionMode):
    """Carry tangents through every operation, within `dual_numbers()`.

    >>> x, dx = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([1.0, 0.0])
    >>> with dual_numbers():
    ...     x_dual = join(x, dx)
    ...     with Tangents():
    ...         y_dual = x_dual.square()
    ...     y, dy = split(y_dual)
    >>> dy, torch.autograd.grad(y.sum(), x)[0]
    (tensor([2., 0.]), tensor([2., 4.]))
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__":  # x.shape, x.dtype, ...
            return func(*args, **kwargs)
        if not any(split(x)[1] is not None for x in _tensors([*args, *kwargs.values()])):
            return func(*args, **kwargs)
        rule = _RULES.get(func)
        result = NotImplemented if rule is None else rule(*args, **kwargs)
        return _any_operation(func, args, kwargs) if result is NotImplemented else result


def split(x: Any) -> tuple[Any, Tensor | None]:
    """Return the value and the tangent (or `None`) of a dual number; other objects are values."""
    if not isinstance(x, Tensor):
        return x, None
    value, tangent = fw.unpack_dual(x)
    return (x, None) if tangent is None else (value, tangent)


def join(value: Tensor, tangent: Tensor | None) -> Tensor:
    """Return the dual number of a value and its tangent, or the value without a tangent."""
    return value if tangent is None else fw.make_dual(value, tangent.to(value.dtype))


# --- Any operation: PyTorch's own forward derivative ---------------------------------------------


def _any_operation(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    name = getattr(func, "__name__", "")
    writes = name.endswith("_") and not name.endswith("__")
    if writes or name in _IN_PLACE or "out" in kwargs or kwargs.get("inplace"):
        # Not twice. These tangents are recorded, but the next operation leaves the graph behind.
        # Writing to a view (x[:, 0] += 1) is an error of PyTorch's here, not a wrong number.
        return func(*args, **kwargs)
    value = func(*_values(args), **{key: _values(x) for key, x in kwargs.items()})
    with torch.no_grad():
        dual = func(*args, **kwargs)
    return _with_tangents(value, dual)


def _tensors(tree: Any) -> Iterator[Tensor]:
    for x in tree:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, tuple | list):
            yield from _tensors(x)


def _values(tree: Any) -> Any:
    if isinstance(tree, tuple | list):
        return type(tree)([_values(x) for x in tree])
    return split(tree)[0]


def _with_tangents(value: Any, dual: Any) -> Any:
    if isinstance(value, Tensor):
        return join(value, split(dual)[1])
    if isinstance(value, tuple | list):
        return type(value)([_with_tangents(v, d) for v, d in zip(value, dual, strict=True)])
    return value


_IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__set__"}


# --- Products of two arguments -------------------------------------------------------------------


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Add two tangents (`None` is zero); the first is a fresh tensor and is reused."""
    if a is None or b is None:
        return b if a is None else a
    return a.add_(b)


def _product(func: Callable[[Any, Any], Tensor]) -> Callable[..., Any]:
    """Return the rule of a function that is linear in each of its two arguments."""

    def rule(x: Any, w: Any, **options: Any) -> Any:
        if options:
            return NotImplemented
        (x, dx), (w, dw) = split(x), split(w)
        y = func(x, w)
        with torch.no_grad():
            dy = None if dx is None else func(dx, w)
            dy = _plus(dy, None if dw is None else func(x, dw))
        return join(y, dy)

    return rule


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    (x, dx), (w, dw), (b, db) = split(x), split(weight), split(bias)
    y = products.linear(x, w, b)
    return join(y, _linear_tangent(y, x, dx, w, dw, db))


def _linear_tangent(
    y: Tensor, x: Tensor, dx: Tensor | None, w: Tensor, dw: Tensor | None, db: Tensor | None
) -> Tensor | None:
    """Return dx Wᵀ + x dWᵀ + db in the shape of y, the second product added in place."""
    with torch.no_grad():
        if dx is not None:
            dy = products.linear(dx, w, db)
            if dw is not None:
                dy = products.add_product(dy.contiguous(), x.to(dy.dtype), dw.to(dy.dtype))
        elif dw is not None:
            dy = products.linear(x, dw, db)
        elif db is not None:
            dy = db.expand(y.shape)
        else:
            return None
        return dy


def _conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *options: Any, **named: Any
) -> Tensor:
    (x, dx), (w, dw), (b, db) = split(x), split(weight), split(bias)
    y = F.conv2d(x, w, b, *options, **named)
    with torch.no_grad():
        dy = None if dx is None else F.conv2d(dx, w, None, *options, **named)
        dy = _plus(dy, None if dw is None else F.conv2d(x, dw, None, *options, **named))
        if db is not None:
            db = db[:, None, None]
            dy = db.expand_as(y) if dy is None else dy.add_(db)
    return join(y, dy)


# --- Functions with a symmetric Jacobian ---------------------------------------------------------


def _layer_norm(
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return w n + b with n = (x - mean) / deviation, whose Jacobian in x is symmetric."""
    (x, dx), (w, dw), (b, db) = split(x), split(weight), split(bias)
    y = F.layer_norm(x, shape, w, b, eps)
    with torch.no_grad():
        x = x.to(y.dtype)
        n, mean, inverse = torch.native_layer_norm(x, shape, None, None, eps)
        dy = None
        if dx is not None:
            dy = torch.ops.aten.native_layer_norm_backward(
                dx.to(y.dtype), x, shape, mean, inverse, None, None, [True, False, False]
            )[0]
            dy = dy if w is None else dy.mul_(w)
        if dw is not None:
            dy = n.mul_(dw) if dy is None else dy.addcmul_(n, dw)
        if db is not None:
            dy = db.expand_as(y) if dy is None else dy.add_(db)
    return join(y, dy)


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    x, dx = split(x)
    y = F.gelu(x, approximate=approximate)
    with torch.no_grad():
        dy = torch.ops.aten.gelu_backward(dx, x, approximate=approximate)
    return join(y, dy)


# --- Attention -----------------------------------------------------------------------------------

_Dual = tuple[Tensor, Tensor | None]


def _attend(query: _Dual, key: _Dual, value: _Dual, scale: float) -> _Dual:
    """Return softmax(scale q kᵀ) v and its tangent, from (..., L, d) values and tangents."""
    (q, dq), (k, dk), (v, dv) = query, key, value
    weights = torch.softmax((q * scale) @ k.mT, -1)
    out = weights @ v
    with torch.no_grad():
        scores = None if dq is None else (dq * scale) @ k.mT
        scores = _plus(scores, None if dk is None else (q * scale) @ dk.mT)
        d_out = None
        if scores is not None:
            d_weights = torch.ops.aten._softmax_backward_data(
                scores.to(weights.dtype), weights, -1, weights.dtype
            )
            d_out = d_weights @ v
        d_out = _plus(d_out, None if dv is None else weights @ dv)
    return out, d_out


def _scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if attn_mask is not None or dropout_p or is_causal or enable_gqa:
        return NotImplemented
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return join(*_attend(split(query), split(key), split(value), scale))


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    in_weight: Tensor | None,
    in_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_weight: Tensor,
    out_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    **options: Any,
) -> Any:
    """Return self-attention of `nn.MultiheadAttention` on (L, B, D), with no attention weights."""
    usual = query is key is value and query.dim() == 3 and in_weight is not None
    plain = bias_k is bias_v is key_padding_mask is attn_mask is None and not add_zero_attn
    if not (usual and plain) or need_weights or (training and dropout_p):
        return NotImplemented
    (x, dx), (w, dw), (b, db) = split(query), split(in_weight), split(in_bias)
    (wo, dwo), (bo, dbo) = split(out_weight), split(out_bias)
    x = x.transpose(0, 1)  # as the block holds it: (B, L, D), in order in memory
    dx = None if dx is None else dx.transpose(0, 1)

    def three(qkv: Tensor) -> tuple[Tensor, ...]:
        return qkv.view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    qkv = products.linear(x, w, b)
    d_qkv = _linear_tangent(qkv, x, dx, w, dw, db)
    (q, k, v), (dq, dk, dv) = three(qkv), (None,) * 3 if d_qkv is None else three(d_qkv)
    out, d_out = _attend((q, dq), (k, dk), (v, dv), (width // heads) ** -0.5)
    out = out.transpose(1, 2).reshape(x.shape)
    with torch.no_grad():
        d_out = None if d_out is None else d_out.transpose(1, 2).reshape(x.shape)
    y = products.linear(out, wo, bo)
    dy = _linear_tangent(y, out, d_out, wo, dwo, dbo)
    return join(y.transpose(0, 1), None if dy is None else dy.transpose(0, 1)), None


_RULES: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    products.linear: _linear,
    F.conv2d: _conv2d,
    F.layer_norm: _layer_norm,
    F.gelu: _gelu,
    F.scaled_dot_product_attention: _scaled_dot_product_attention,
    F.multi_head_attention_forward: _multi_head_attention,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _product(torch.matmul)),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), _product(torch.mul)),
}
