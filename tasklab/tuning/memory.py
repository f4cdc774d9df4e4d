"""Computation in smaller parts, with the same result, where memory is short.

The loss of a training step is the mean over its images, and batch normalisation, in eval mode, does
not depend on the other images of a batch. For parts b of a batch B therefore

    L(B) = sum_b |b| / |B| L(b),

and so for its gradient: parts and the whole batch agree up to rounding. Features depend on
each image alone, in parts of any size.

Where an attempt runs out of memory, the next plan is tried: half as many images at a time, down to
one; then all of them again, with the insides of blocks computed a second time in the backward pass
(activation checkpointing: a third more products), and so on down to one.

Forward-mode derivatives under `torch.compile` have been silently wrong: compiled code has its
tangents written out instead (`tasklab.tuning.dual`).
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tasklab import machine
from tasklab.errors import TasklabError, first_line, is_out_of_memory
from tasklab.models import intercept
from tasklab.models.encoder import Encoder, math_attention
from tasklab.storage import placement

_log = logging.getLogger(__name__)

Result = TypeVar("Result")
Gradients = dict[str, Tensor]

_LARGE = 2**27  # bytes of a model's parameters
_ADVICE = "Take a smaller model or device='cpu', or end other programs on this device."
LESS = (
    "Take a smaller model, precision='bfloat16', a method that trains fewer parameters, such as "
    "'attention', or device='cpu'; or end other programs on this device. The run then goes on from "
    "its last checkpoint, or begins anew where these change it."
)


class Plan(NamedTuple):
    """How a batch is computed."""

    size: int
    #: Whether the insides of blocks are computed again in the backward pass.
    recompute: bool = False

    def __str__(self) -> str:
        again = ", and the insides of blocks a second time in the backward pass"
        return f"{self.size} at a time{again if self.recompute else ''}"


def plans(size: int, *, recompute: bool = False) -> tuple[Plan, ...]:
    """Return the plans for a batch, by memory in descending order.

    >>> [plan.size for plan in plans(6)]
    [6, 3, 2, 1]
    """
    sizes = [size]
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 1) // 2)
    ways = (False, True) if recompute else (False,)
    return tuple(Plan(n, again) for again in ways for n in sizes)


def first_that_fits(
    attempt: Callable[[Plan], Result], left: Sequence[Plan], what: str, advice: str = ""
) -> tuple[Result, Sequence[Plan]]:
    """Return the result of the first plan that fits into memory, and the plans from it on.

    Args:
        attempt: Computes by a plan; another attempt must see no side effect of it.
        left: The plans to try, in order.
        what: Name of the work, in messages.
        advice: End of the message where no plan fits.
    """
    reason = ""
    for index, plan in enumerate(left):
        try:
            result = attempt(plan)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)
        else:
            if index:
                _log.warning(
                    "%s: out of memory (%s). From here on %s, which gives the same result up to "
                    "rounding.", what, reason, plan,
                )  # fmt: skip
            return result, left[index:]
        # Not before here: the error held the frames of the attempt, and they its tensors.
        _free()
    raise TasklabError(f"{what}: out of memory, even with {left[-1]} ({reason}). {advice}".rstrip())


def accumulated(
    gradient: Callable[[Tensor, Tensor], tuple[Tensor, Gradients]], x: Tensor, y: Tensor, size: int
) -> tuple[Tensor, Gradients]:
    """Return mean loss and gradient of a batch, of so many images at a time.

    Gradients are added in their own type, which is that of the weights: float32, under autocast
    too. A batch that is not divided is not weighted either: its result is bit for bit `gradient`'s.

    Args:
        gradient: Images and classes -> their mean loss and its gradient.
        x: Preprocessed images (B, 3, H, W).
        y: Their classes (B,), int64.
        size: The most images at a time.
    """
    if size >= len(y):
        return gradient(x, y)
    sums: Gradients = {}
    values = [  # gradients have no name here: the next part would be computed beside this one's
        _add(sums, gradient(part, labels), len(labels) / len(y))
        for part, labels in zip(x.split(size), y.split(size), strict=True)
    ]
    return torch.stack(values).sum(), sums


class Parts:
    """Passes over images in parts of the given size, or smaller ones that fit into memory.

    A size that did not fit is not tried again, for any images.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(
        self, function: Callable[[Tensor], Result], images: Tensor, what: str = "features"
    ) -> Iterator[Result]:
        """Yield the results for consecutive parts of images; of an empty set, for itself."""
        left: Sequence[Plan] = plans(max(1, min(self.size, len(images))))
        whole, start = left[0].size, 0
        while start < max(1, len(images)):

            def attempt(plan: Plan, start: int = start) -> Result:
                return function(images[start : start + plan.size])

            result, left = first_that_fits(attempt, left, what, _ADVICE)
            start += left[0].size
            if left[0].size < whole:
                self.size = left[0].size
            yield result


class Recomputed:
    """An encoder that stores only the inputs of its blocks for the backward pass.

    The backward pass computes them again, block by block. Forward-mode derivatives store none and
    do not need it.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.params = encoder, encoder.params
        self.preprocess = encoder.preprocess

    def __call__(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return features (B, D), as the encoder does."""
        module = self.encoder.module
        forwards = {n: self._recomputing(module.get_submodule(n)) for n in self.encoder.blocks}
        with intercept.around(module, forwards):
            return self.encoder(params, x)

    def _recomputing(self, block: nn.Module) -> Callable[..., Any]:
        def forward(usual: Callable[..., Any], *args: Any, **named: Any) -> Any:
            # Those that the encoder was called with. In the backward pass the module has its own
            # back, and the gradient would be that of another model.
            plain = _Plain(block, usual)
            params: dict[str, Tensor] = dict(plain.named_parameters())

            def inside(*args: Any, **named: Any) -> Any:
                with math_attention(self.encoder.math):  # as the encoder, whose call is over then
                    return torch.func.functional_call(plain, params, args, named)

            return checkpoint(inside, *args, use_reentrant=False, preserve_rng_state=False, **named)

        return forward


class _Plain(nn.Module):
    """A block with its usual forward pass, for any later arguments."""

    def __init__(self, block: nn.Module, usual: Callable[..., Any]) -> None:
        super().__init__()
        self.block, self.usual = block, usual

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.usual(*args, **named)


def _add(sums: Gradients, part: tuple[Tensor, Gradients], share: float) -> Tensor:
    value, gradients = part
    for name, gradient in gradients.items():
        if name in sums:
            sums[name].add_(gradient, alpha=share)
        else:
            sums[name] = gradient * share
    return value * share


def _free() -> None:
    placement.release()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def advised(what: str) -> Iterator[None]:
    """Raise an error with a remedy if the optimiser's state, which has no parts, does not fit."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TasklabError(f"{what}: out of memory for the optimiser's state. {LESS}") from error


@contextlib.contextmanager
def given_back(encoder: Encoder) -> Iterator[None]:
    """Return freed memory to the system after a block of work, for a large model.

    After a run glibc holds freed memory of up to five copies of the model.
    """
    try:
        yield
    finally:
        if sum(tensor.nbytes for tensor in encoder.params.values()) >= _LARGE:
            machine.return_freed_memory()
