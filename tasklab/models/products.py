"""Products of tokens with weights, x W^T, by the library that is faster on this processor.

PyTorch gives matrix products of float32 to MKL, which takes only half as wide instructions on
processors of another maker; oneDNN, which PyTorch holds for other purposes, takes the widest. Which
one is faster is measured once, in milliseconds.

With a derivative, the two products of the backward pass are made the same way:

    y = x W^T + b,    dL/dx = dL/dy W,    dL/dW = (dL/dy)^T x.

Sums are taken in another order, at most: results differ by rounding. Nothing changes in other
precisions, on other devices, for small products and within `torch.func`.

Letters: T tokens, D width of the input, E of the output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from tasklab import machine

_LEAST = 2**21  # multiplications, from which the call itself costs nothing beside them


def linear(
    x: Float[Tensor, "*T D"], weight: Float[Tensor, "E D"], bias: Float[Tensor, " E"] | None
) -> Float[Tensor, "*T E"]:
    """Return x W^T + b; torch function modes see this call.

    Args:
        x: Tokens (*T, D).
        weight: W (E, D).
        bias: b (E,); `None` without one.
    """
    if has_torch_function((x, weight)):
        return handle_torch_function(linear, (x, weight), x, weight, bias)
    if not _quick(x, weight):
        return F.linear(x, weight, bias)
    given = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled() and any(one.requires_grad for one in given):
        return _Recorded.apply(x, weight, bias)
    return _product(x, weight, bias)


def add_product(
    total: Float[Tensor, "*T E"],
    x: Float[Tensor, "*T D"],
    weight: Float[Tensor, "E D"],
    scale: float = 1.0,
) -> Tensor:
    """Add scale x W^T to `total` in place, without derivative, and return it.

    Args:
        total: (*T, E).
        x: Tokens (*T, D).
        weight: W (E, D).
        scale: Factor of the product.
    """
    if _quick(x, weight):
        return total.add_(_product(x, weight, None), alpha=scale)
    rows = total.view(-1, total.shape[-1])
    rows.addmm_(x.reshape(-1, x.shape[-1]), weight.t(), alpha=scale)
    return total


@functools.cache
def by_onednn() -> bool:
    """Return whether oneDNN multiplies float32 matrices faster than MKL on this processor.

    By a third or more, so that the answer is the same each time.
    """
    if _operation() is None:
        return False
    x, weight = torch.ones(512, 256), torch.ones(256, 256)
    with torch.inference_mode():
        ways = (lambda: _product(x, weight, None), lambda: F.linear(x, weight))
        one, multiplied = machine.shortest(*ways)
    return 4 * one < 3 * multiplied


def for_weights(params: Mapping[str, Tensor]) -> bool:
    """Return whether oneDNN is to multiply with some weights: all float32, on a CPU."""
    usual = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in params.values())
    return usual and by_onednn()


def counted() -> dict[Any, Callable[..., int]]:
    """Return the operation and its floating-point operations by shapes, for PyTorch's counter."""

    def flops(x: Sequence[int], weight: Sequence[int], *_: Any, **ignored: Any) -> int:
        return 2 * torch.Size(x).numel() * weight[0]

    operation = _operation()
    return {} if operation is None else {operation: flops}


def _operation() -> Any:
    """Return PyTorch's product by oneDNN, with any order in memory; `None` in builds without it."""
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _quick(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and x.shape[:-1].numel() * weight.numel() >= _LEAST
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and by_onednn()
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _operation()(x, weight, bias, "none", [], "")


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (x, weight), (of_x, of_weight, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
        rows = dy.reshape(-1, dy.shape[-1])
        return (
            linear(dy, weight.t(), None) if of_x else None,
            linear(rows.t(), x.reshape(-1, x.shape[-1]).t(), None) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )
