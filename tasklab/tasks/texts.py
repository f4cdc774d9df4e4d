"""Texts as tensors of UTF-8 bytes, so that they are ordered and batched as images are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import UInt8
from torch import Tensor

from tasklab.errors import TasklabError


def encoded(texts: Sequence[str]) -> UInt8[Tensor, "N L"]:
    """Return texts as bytes of UTF-8, one row a text, padded with zeros.

    >>> encoded(["ab", "c"])
    tensor([[97, 98],
            [99,  0]], dtype=torch.uint8)

    Raises:
        TasklabError: If a text is empty or has a zero character.
    """
    for place, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise TasklabError(
                f"text {place} is {text!r}: a text needs at least one character other than spaces, "
                "and no zero character."
            )
    rows = [text.encode() for text in texts]
    result = torch.zeros(len(rows), max(map(len, rows), default=0), dtype=torch.uint8)
    for place, row in enumerate(rows):
        result[place, : len(row)] = torch.frombuffer(bytearray(row), dtype=torch.uint8)
    return result


def decoded(x: UInt8[Tensor, "N L"]) -> list[str]:
    """Return the texts of `encoded`."""
    return [row.tobytes().rstrip(b"\0").decode() for row in x.cpu().numpy()]
