"""Models with replaced features: the front of some, the back of another.

With f_l(x; theta) what block l gives, and B_l(theta; h) what the blocks after it make of h, a
stitched model is B_l(theta_0; h) of the pre-trained model, without a learnt layer between (cross-
task linearity, section 4.3). Two of them put arithmetic of weights and of features side by side:

- addition: h = (f_l(x; theta_0 + lambda tau_i) + f_l(x; theta_0 + lambda tau_j)) / 2   (figure 9);
- negation: h = f_l(x; theta_0) - (f_l(x; theta_0 + lambda tau) - f_l(x; theta_0)), beside
  h = f_l(x; theta_0 - lambda tau)                                                  (figure 10).

The front stops at block l, and the back begins after it: together they cost one pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from jaxtyping import Float
from torch import Tensor, nn

from tasklab.errors import TasklabError
from tasklab.models.encoder import Encoder


class _Reached(Exception):  # noqa: N818 - no error: the block that was waited for has answered
    pass


def front(encoder: Encoder, params: Mapping[str, Tensor], x: Tensor, block: int) -> Tensor:
    """Return f_l(x; theta), what a block gives, as it gives it; later blocks do not run.

    Args:
        encoder: The architecture.
        params: theta.
        x: Preprocessed images.
        block: Number of the block, from 0.

    Raises:
        TasklabError: If there is no such block.
    """
    found: list[Tensor] = []

    def stop(module: nn.Module, args: object, output: Tensor | tuple) -> None:
        found.append(output if isinstance(output, Tensor) else output[0])
        raise _Reached

    handle = _blocks(encoder, block)[-1].register_forward_hook(stop)
    try:
        with contextlib.suppress(_Reached):
            encoder(params, x)
    finally:
        handle.remove()
    return found[0]


def back(
    encoder: Encoder, params: Mapping[str, Tensor], x: Tensor, block: int, h: Tensor
) -> Float[Tensor, "B D"]:
    """Return B_l(theta; h), the encoder's features from what a block is replaced by.

    Args:
        encoder: The architecture; its blocks must take and give one tensor.
        params: theta.
        x: The images: what comes before the blocks still reads them, and nothing after does.
        block: Number of the block, from 0.
        h: In the place of its output, as `front` returns it.

    Raises:
        TasklabError: If there is no such block.
    """
    skipped = _blocks(encoder, block)
    with contextlib.ExitStack() as stack:
        for module in skipped[:-1]:
            stack.enter_context(_replaced(module, lambda x, *args, **kwargs: x))
        stack.enter_context(_replaced(skipped[-1], lambda x, *args, **kwargs: h))
        return encoder(params, x)


def _blocks(encoder: Encoder, block: int) -> list[nn.Module]:
    """Return the modules of all blocks up to one."""
    if not 0 <= block < len(encoder.blocks):
        raise TasklabError(
            f"{encoder.name} has blocks 0 to {len(encoder.blocks) - 1}: there is no block {block}."
        )
    return [encoder.module.get_submodule(name) for name in encoder.blocks[: block + 1]]


@contextlib.contextmanager
def _replaced(module: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    """Let a module do something else; its own `forward` is its class's and comes back."""
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
