"""Encoders: functions of named parameters, with the preprocessing of their inputs.

    features = encoder(task_vector.apply(encoder.params, 0.3), encoder.preprocess(images))

Calling an encoder with other parameters gives the features of another model, so that editing a
model never changes one.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Self

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tasklab.isolation import differentiable
from tasklab.models.origin import Origin
from tasklab.models.zoo import REGISTRY
from tasklab.tasks.images.augment import resized


@contextlib.contextmanager
def math_attention(math: bool = True) -> Iterator[None]:
    """Compute attention by plain matrix products, which forward-mode differentiation needs.

    The inference-only path of `nn.MultiheadAttention` is off as well: it has no derivatives, and
    turning it on and off would make the same weights give two results.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH) if math else contextlib.nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@dataclasses.dataclass(frozen=True, eq=False)
class Encoder:
    """An image encoder f(x; theta) and its parameters theta_0."""

    name: str
    init: str
    #: The image tower, frozen, in eval mode; it holds `params`.
    module: nn.Module = dataclasses.field(repr=False)
    #: theta_0 by name, float32. Not to be written to.
    params: dict[str, Tensor] = dataclasses.field(repr=False)
    #: Names of the modules after which features are compared, in order
    blocks: tuple[str, ...] = dataclasses.field(repr=False)
    image_size: int  #: Height and width of the input
    #: Of each channel, for `preprocess`
    mean: tuple[float, float, float] = dataclasses.field(repr=False)
    #: Of each channel, for `preprocess`
    std: tuple[float, float, float] = dataclasses.field(repr=False)
    device: torch.device
    #: Share of the resized image's side that is cut out, of a card that has one; `None` is all.
    crop: float | None = dataclasses.field(default=None, repr=False, kw_only=True)
    #: How images are resized, of a card that says so: `"bilinear"`, `"squash"` (to a square) or
    #: both words; `None` is bicubic, by the shorter side.
    resize: str | None = dataclasses.field(default=None, repr=False, kw_only=True)
    #: theta_0 as it was made; encoders of the same parameters share it.
    origin: Origin = dataclasses.field(  # type: ignore[assignment]
        default=None, repr=False, kw_only=True
    )

    def __post_init__(self) -> None:
        if self.origin is None or self.origin.params is not self.params:
            object.__setattr__(self, "origin", Origin(self.name, self.module, self.params))

    @classmethod
    def of(
        cls,
        module: nn.Module,
        *,
        name: str = "own",
        init: str = "pretrained",
        blocks: tuple[str, ...] = (),
        image_size: int = 224,
        mean: tuple[float, float, float] = (0.5, 0.5, 0.5),
        std: tuple[float, float, float] = (0.5, 0.5, 0.5),
        crop: float | None = None,
        resize: str | None = None,
    ) -> Self:
        """Return any network as an encoder; it is frozen, and put into eval mode.

        Args:
            module: Images (B, 3, H, W) -> features (B, D), each from its image alone.
            name: Of the encoder, in messages and keys.
            init: `"pretrained"` or `"random"`.
            blocks: Names of its modules after which features are compared, in order.
            image_size: Height and width of inputs.
            mean: Of the channels, for normalisation.
            std: Standard deviation of the channels.
            crop: Share of the resized image's side that is cut out; `None` is all.
            resize: How images are resized; `None` is bicubic, by the shorter side.
        """
        params = dict(module.eval().requires_grad_(False).named_parameters())
        device = next((x.device for x in params.values()), torch.device("cpu"))
        return cls(
            name, init, module, params, blocks, image_size, mean, std, device,
            crop=crop, resize=resize,
        )  # fmt: skip

    @differentiable
    def __call__(self, params: Mapping[str, Tensor], x: Tensor) -> Float[Tensor, "B D"]:
        """Return features (B, D), not normalised, of preprocessed images (B, 3, H, W).

        They are float32, also within the caller's `torch.autocast`.
        """
        self.origin.check()
        with math_attention(self.math):
            return torch.func.functional_call(self.module, dict(params), (x,))

    @differentiable
    def preprocess(self, x: UInt8[Tensor, "B 3 h w"]) -> Float[Tensor, "B 3 H W"]:
        """Return images as the model was trained on them.

        The shorter side is resized to `shorter` (bicubic, antialiased; else by `resize`), the
        centre is cut out, and channels are normalised: open_clip's evaluation transform, on
        tensors, bit for bit. Images of `image_size` were cut out before, and are not resized.
        """
        size = self.image_size
        height, width = x.shape[-2:]
        pixels = x.to(self.device)  # images may lie in a memory map, on the CPU
        if min(height, width) != size:
            short = min(height, width)
            side, how = size if self.shorter is None else self.shorter, self.resize or ""
            sides = int(side * height / short), int(side * width / short)
            sides = (side, side) if "squash" in how else sides
            pixels = resized(pixels, *sides, linear="bilinear" in how)
        pixels = pixels.float()
        top, left = (round((side - size) / 2) for side in pixels.shape[-2:])
        pixels = pixels[..., top : top + size, left : left + size]
        mean, std = self._channels
        return (pixels / 255 - mean) / std

    @functools.cached_property
    def _channels(self) -> Tensor:
        """`mean` and `std` on the device: a copy in each call would wait for it to be idle."""
        with torch.inference_mode(False):
            channels = torch.tensor([self.mean, self.std], dtype=torch.float32, device=self.device)
            return channels.view(2, 3, 1, 1)

    @property
    def blank(self) -> Tensor:
        """One input as `preprocess` returns it, without content: it shows the features' width."""
        return torch.zeros(1, 3, self.image_size, self.image_size, device=self.device)

    @property
    def fixed(self) -> Self:
        """The same function, with shapes that depend on no value: for `torch.func.vmap`."""
        return self

    def without_padding(self, x: Tensor) -> Iterator[Tensor]:
        """Yield preprocessed inputs in parts of one size each; images have one size."""
        yield x

    @property
    def shorter(self) -> int | None:
        """Side to which an image's shorter one is resized; `None` is `image_size`."""
        return None if self.crop is None else int(self.image_size / self.crop)

    @property
    def math(self) -> bool:
        """Whether attention takes the math kernel in every pass (`zoo.Spec`)."""
        return self.name in REGISTRY and REGISTRY[self.name].math

    @property
    def weights_hash(self) -> str:
        """SHA-256 of theta_0: names, shapes and values; raises if theta_0 was written to."""
        return self.origin.hash()


@dataclasses.dataclass(frozen=True, eq=False)
class TextEncoder(Encoder):
    """A text-to-text model as an encoder: its features are the decoder's first hidden state.

    Its inputs are token ids of the small text vocabulary (`tasklab.mini.lexicon`); `image_size`,
    `mean` and `std` are not used.
    """

    #: Token ids (B, L) of the small vocabulary -> the model's own.
    translate: Callable[[Tensor], Tensor] = lambda ids: ids

    def preprocess(self, x: Int[Tensor, "B L"]) -> Int[Tensor, "B M"]:
        """Return token ids as the model knows them."""
        return self.translate(x.to(self.device).long())

    @property
    def blank(self) -> Tensor:
        """One text of one token."""
        return torch.ones(1, 1, dtype=torch.int64, device=self.device)


@dataclasses.dataclass(frozen=True, eq=False)
class SentenceEncoder(TextEncoder):
    """A BERT as an encoder: its features are the mean of the tokens of the last block.

    Its inputs are texts as bytes (`tasklab.tasks.texts`).
    """

    def preprocess(self, x: UInt8[Tensor, "B N"]) -> Int[Tensor, "B L"]:
        """Return token ids, padded to the most tokens that the model reads."""
        return self.translate(x).to(self.device)

    @property
    def fixed(self) -> Self:
        """The same function, computed with padding (`bert.Bert.whole`)."""
        module = copy.copy(self.module)
        module.whole = True
        return dataclasses.replace(self, module=module)

    def without_padding(self, x: Int[Tensor, "B L"]) -> Iterator[Int[Tensor, "b l"]]:
        """Yield token ids in parts of one length each, from the shortest."""
        lengths = (x != self.module.pad).sum(1)
        for length in lengths.unique().tolist():
            yield x[lengths == length, :length]
