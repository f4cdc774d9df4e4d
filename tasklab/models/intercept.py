"""Record and replace the outputs of an encoder's blocks while it runs.

With h_l(x; theta) the output of block l and B_l(theta; h) the features that the later blocks
compute from h, an encoder is f(x; theta) = B_l(theta; h_l(x; theta)) for every l. `outputs`
and `front` return h_l, `back` computes B_l. Parameters stay an argument; the modules end unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from tasklab.errors import TasklabError
from tasklab.isolation import differentiable
from tasklab.models.encoder import Encoder

FEATURES = "features"  # the key of what the encoder itself gives, after the last block
Params = Mapping[str, Tensor]


class _Reached(Exception):  # noqa: N818 - no error: the block that was waited for has answered
    pass


@contextlib.contextmanager
def around(root: nn.Module, forwards: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace a module's own pass `usual(*args, **named)` by `forward(usual, *args, **named)`.

    `forwards` are by the modules' names in the network.
    """
    with contextlib.ExitStack() as stack:
        for name, forward in forwards.items():
            stack.enter_context(_replaced(root.get_submodule(name), forward))
        yield


@differentiable
def outputs(
    encoder: Encoder, params: Params, x: Tensor, names: Iterable[str] | None = None
) -> dict[str, Tensor]:
    """Record the outputs of modules, and under `FEATURES` those of the encoder.

    Args:
        encoder: In eval mode.
        params: Its parameters by name.
        x: Preprocessed images (B, 3, H, W).
        names: Modules, in the result's order; by default all blocks.

    Returns:
        Outputs by name: of a transformer's block (B, tokens, width).
    """
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., Any]:
        def forward(usual: Callable[..., Any], *args: Any, **named: Any) -> Any:
            output = usual(*args, **named)
            kept[name] = output if isinstance(output, Tensor) else output[0]
            return output

        return forward

    names = list(encoder.blocks if names is None else names)
    with around(encoder.module, {name: keep(name) for name in names}):
        features = encoder(params, x)
    return {**{name: kept[name] for name in names}, FEATURES: features}


@differentiable
def front(encoder: Encoder, params: Params, x: Tensor, block: int) -> Tensor:
    """Return h_l(x; theta), the output of a block; later blocks do not run.

    Args:
        encoder: In eval mode.
        params: Its parameters theta by name.
        x: Preprocessed images (B, 3, H, W).
        block: Number l of the block, from 0.
    """
    kept: list[Tensor] = []

    def stop(usual: Callable[..., Any], *args: Any, **named: Any) -> Any:
        given = usual(*args, **named)
        kept.append(given if isinstance(given, Tensor) else given[0])
        raise _Reached

    with around(encoder.module, {_upto(encoder, block)[-1]: stop}), contextlib.suppress(_Reached):
        encoder(params, x)
    return kept[0]


@differentiable
def back(
    encoder: Encoder, params: Params, x: Tensor, block: int, h: Tensor
) -> Float[Tensor, "B D"]:
    """Return B_l(theta; h), the encoder's features with a block's output replaced by h.

    Args:
        encoder: The architecture; its blocks must take and give one tensor.
        params: Parameters theta by name.
        x: The images, which only layers before the blocks still read.
        block: Number of the block, from 0.
        h: Replacement of its output.
    """
    *skipped, last = _upto(encoder, block)
    forwards = dict.fromkeys(skipped, lambda usual, x, *args, **named: x)
    with around(encoder.module, {**forwards, last: lambda usual, x, *args, **named: h}):
        return encoder(params, x)


def _upto(encoder: Encoder, block: int) -> tuple[str, ...]:
    if not 0 <= block < len(encoder.blocks):
        raise TasklabError(
            f"{encoder.name} has blocks 0 to {len(encoder.blocks) - 1}: there is no block {block}."
        )
    return encoder.blocks[: block + 1]


@contextlib.contextmanager
def _replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    own, usual = vars(module).get("forward"), module.forward
    module.forward = lambda *args, **named: forward(usual, *args, **named)
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own
