"""BERT as an encoder of texts: the features are the mean of the last block's tokens.

    x = norm(tokens + positions)                            (buffers, which do not train)
    x = norm1(x + attention(x)),  x = norm2(x + MLP(x))           (in each block)
    features = mean of x over the text's tokens

Padding costs nothing: linear layers and norms read the tokens of all texts as rows of one matrix,
and attention alone reads them text by text. Texts of one length need no padding and keep their
shape (B, L, D). A block's output is zero beyond a text's end.

Names of parameters are timm's; queries, keys and values are one matrix.

Letters: B texts, L tokens, T tokens of all texts without padding, D width, H heads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tasklab.errors import TasklabError

PAD = 0  # token id
# Names in transformers -> ours
_RENAMED = (
    (r"^embeddings\.LayerNorm\.", "norm_"),
    (r"^encoder\.layer\.(\d+)\.", r"blocks.\1."),
    (r"\.attention\.self\.(query|key|value)\.", r".attn.\1."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.attention\.output\.LayerNorm\.", ".norm1."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.output\.LayerNorm\.", ".norm2."),
)
_EMBEDDINGS = tuple(f"embeddings.{x}_embeddings.weight" for x in ("word", "position", "token_type"))
_DROPPED = ("pooler.", "embeddings.position_ids")


class Layout(NamedTuple):
    """Where the tokens of texts are."""

    there: Bool[Tensor, "B L"]  #: Which places hold a token
    rows: Int[Tensor, " T"] | None  #: Their numbers in one row of all places; `None` for all
    gaps: bool  #: Whether there is padding, or may be

    @classmethod
    def of(cls, there: Bool[Tensor, "B L"]) -> Layout:
        """Return the layout of a mask."""
        rows = there.flatten().nonzero()[:, 0]
        gaps = len(rows) < there.numel()
        return cls(there, rows if gaps else None, gaps)

    def packed(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "*T D"]:
        """Return the tokens (T, D) without padding; (B, L, D) if the texts have none."""
        return x if self.rows is None else x.flatten(0, 1).index_select(0, self.rows)

    def padded(self, x: Float[Tensor, "*T D"]) -> Float[Tensor, "B L D"]:
        """Return tokens text by text, with zeros as padding."""
        if self.rows is None:
            return x * self.there.unsqueeze(-1) if self.gaps else x
        places = x.new_zeros(self.there.numel(), x.shape[-1])
        return places.index_copy(0, self.rows, x).view(*self.there.shape, -1)


class Bert(nn.Module):
    """A BERT without its pooler, from token ids to the mean of the last tokens.

    Args:
        config: `hidden_size`, `num_hidden_layers`, ..., as in transformers' `config.json`.

    Attributes:
        pad: The id of padding.
        whole: Whether padding is computed too: the same result from shapes that depend on no value,
            for `torch.func.vmap`.
    """

    pad = PAD
    whole = False

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        sizes = width, config["intermediate_size"], config["num_attention_heads"], eps
        for name, count in (("tokens", "vocab_size"), ("positions", "max_position_embeddings")):
            self.register_buffer(name, 0.02 * torch.randn(config[count], width))
        self.register_buffer("norm_weight", torch.ones(width))
        self.register_buffer("norm_bias", torch.zeros(width))
        self.eps = eps
        self.blocks = nn.ModuleList(_Block(*sizes) for _ in range(config["num_hidden_layers"]))

    def forward(self, ids: Int[Tensor, "B L"]) -> Float[Tensor, "B D"]:
        """Return the features (B, D) of padded token ids (B, L)."""
        if self.whole:
            layout = Layout(ids != PAD, None, gaps=True)
        else:
            ids = ids[:, : max(1, int((ids != PAD).sum(1).max()))]
            layout = Layout.of(ids != PAD)
        x = F.embedding(ids, self.tokens) + self.positions[: ids.shape[1]]
        x = F.layer_norm(x, x.shape[-1:], self.norm_weight, self.norm_bias, self.eps)
        x = x * layout.there.unsqueeze(-1)
        for block in self.blocks:
            x = block(x, layout)
        return x.sum(1) / layout.there.sum(1, keepdim=True)


class _Block(nn.Module):
    def __init__(self, width: int, inner: int, heads: int, eps: float) -> None:
        super().__init__()
        self.attn = _Attention(width, heads)
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.mlp = _MLP(width, inner)
        self.norm2 = nn.LayerNorm(width, eps=eps)

    def forward(self, x: Float[Tensor, "B L D"], layout: Layout) -> Float[Tensor, "B L D"]:
        rows = layout.packed(x)
        rows = self.norm1(rows + self.attn(rows, layout))
        return layout.padded(self.norm2(rows + self.mlp(rows)))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, rows: Float[Tensor, "*T D"], layout: Layout) -> Float[Tensor, "*T D"]:
        qkv = layout.padded(self.qkv(rows)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, L, d)
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        if layout.gaps:
            scores = scores.masked_fill(~layout.there[:, None, None], -torch.inf)
        mixed = torch.softmax(scores, -1) @ v
        return self.proj(layout.packed(mixed.transpose(1, 2).flatten(2)))


class _MLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)

    def forward(self, rows: Float[Tensor, "*T D"]) -> Float[Tensor, "*T D"]:
        return self.fc2(self.act(self.fc1(rows)))


def from_transformers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of `Bert` from that of transformers' BertModel.

    A prefix `bert.` is taken off. The embedding of the first segment is added to that of each
    position; the pooler is left out. Other names stay, so that a model which they do not fit can
    name them.

    Raises:
        TasklabError: If it has no embeddings.
    """
    tensors = {name.removeprefix("bert."): x for name, x in tensors.items()}
    if absent := [name for name in _EMBEDDINGS if name not in tensors]:
        raise TasklabError(f"a BERT's checkpoint has {absent[0]}, and this one does not.")
    words, positions, segments = (tensors[name].float() for name in _EMBEDDINGS)
    state = {"tokens": words, "positions": positions + segments[:1]}
    for old, tensor in tensors.items():
        if old in _EMBEDDINGS or old.startswith(_DROPPED):
            continue
        name = old
        for pattern, new in _RENAMED:
            name = re.sub(pattern, new, name)
        state[name] = tensor
    for name in [name for name in state if ".attn.query." in name]:
        parts = [name.replace(".query.", f".{part}.") for part in ("query", "key", "value")]
        if all(part in state for part in parts):
            state[name.replace(".query.", ".qkv.")] = torch.cat([state.pop(x) for x in parts])
    return state
