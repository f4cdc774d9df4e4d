"""Networks in the form in which all of this package takes them: T5 as an encoder, ViTs as timm's.

`FirstToken` reads a T5 as a classifier whose classes are words. With s the start token alone,

    features(x) = d_model^(-1/2) decoder(s, encoder(x)) at the first position    (B, D)
    logit of word w = <shared.weight[w], features(x)>

the first factor being the one that T5 uses when input and output embeddings are one matrix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tasklab.errors import TasklabError

if TYPE_CHECKING:  # it takes seconds to import
    from transformers import T5ForConditionalGeneration

# Names of transformers' ViT and ViTMAE -> timm's: as checkpoints on the hub have them, and as the
# library's modules do since its version 5.
_RENAMED = (
    (r"^(?:vit\.)?(?:encoder\.)?layers?\.(\d+)\.", r"blocks.\1."),
    (r"^(?:vit\.)?embeddings\.cls_token$", "cls_token"),
    (r"^(?:vit\.)?embeddings\.position_embeddings$", "pos_embed"),
    (r"^(?:vit\.)?embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^(?:vit\.)?embeddings\.distillation_token$", "dist_token"),  # DeiT
    (r"^(?:vit\.)?layernorm\.", "norm."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),  # DINOv2
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.(?:attention\.)?(?:query|q_proj)\.", ".attn.q."),
    (r"\.attention\.(?:attention\.)?(?:key|k_proj)\.", ".attn.k."),
    (r"\.attention\.(?:attention\.)?(?:value|v_proj)\.", ".attn.v."),
    (r"\.attention\.(?:output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"^(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
)
_DROPPED = r"^(?:vit\.)?(?:pooler|decoder|classifier)\.|^(?:vit\.)?embeddings\.mask_token$"


class FirstToken(nn.Module):
    """A T5 as an encoder of texts: the decoder's state where it makes the first word.

    It takes over the parts of the given model, which is of no use afterwards. Of the names that a
    T5 has for its embedding, `shared.weight` is the one that is left, and every use goes through
    it, so that other parameters can be put in its place.

    Attributes:
        scale: d_model^(-1/2).
        start: The decoder's first token.

    Raises:
        TasklabError: If the model has another output embedding than its input's.
    """

    def __init__(self, t5: T5ForConditionalGeneration) -> None:
        super().__init__()
        if not t5.config.tie_word_embeddings:
            raise TasklabError(
                "FirstToken needs a T5 whose input and output embeddings are one matrix "
                "(t5-small, t5-base, ...; not t5-v1_1)."
            )
        self.shared, self.encoder, self.decoder = t5.shared, t5.encoder, t5.decoder
        for stack in (self.encoder, self.decoder):
            stack.set_input_embeddings(None)
            _replace_norms(stack)
        self.scale = t5.config.d_model**-0.5
        self.start = t5.config.decoder_start_token_id
        self.pad = t5.config.pad_token_id

    def forward(self, ids: Int[Tensor, "B L"]) -> Float[Tensor, "B D"]:
        """Return the features (B, D) of padded token ids (B, L)."""
        return self.states(ids, ids.new_full((len(ids), 1), self.start))[:, 0]

    def states(
        self, ids: Int[Tensor, "B L"], decoder_ids: Int[Tensor, "B M"]
    ) -> Float[Tensor, "B M D"]:
        """Return the decoder's scaled states (B, M, D), the inputs of `logits`."""
        ids = ids[:, : max(1, int((ids != self.pad).sum(1).max()))]  # less to compute, same result
        mask = (ids != self.pad).long()
        read = self.encoder(inputs_embeds=self._embed(ids), attention_mask=mask)
        written = self.decoder(
            inputs_embeds=self._embed(decoder_ids),
            encoder_hidden_states=read.last_hidden_state,
            encoder_attention_mask=mask,
            use_cache=False,
        )
        return written.last_hidden_state * self.scale

    def logits(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return a score of each word of the vocabulary."""
        return states @ self.shared.weight.T

    def _embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.shared.weight)


def vit_from_transformers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of transformers' ViT or ViTMAE under timm's names.

    Query, key and value become one matrix `qkv`, in this order. Layers after the encoder's
    final norm (pooler, decoder, classifier) are left out; other names stay as they are, so that a
    model which they do not fit can name them.
    """
    result: dict[str, Tensor] = {}
    for old, tensor in tensors.items():
        if re.search(_DROPPED, old):
            continue
        name = old
        for pattern, new in _RENAMED:
            name = re.sub(pattern, new, name)
        result[name] = tensor
    for name in [name for name in result if ".attn.q." in name]:
        parts = [name.replace(".attn.q.", f".attn.{x}.") for x in "qkv"]
        if all(part in result for part in parts):
            whole = torch.cat([result.pop(part) for part in parts])
            result[name.replace(".attn.q.", ".attn.qkv.")] = whole
    return result


class _Norm(nn.Module):
    """T5's normalisation, which transformers computes in float32 even from float64 inputs."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, x: Tensor) -> Tensor:
        """Return weight * x / (root mean square of x)."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        n = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * n.to(self.weight.dtype)


def _replace_norms(module: nn.Module) -> None:
    for name, child in module.named_children():
        if name.endswith("layer_norm"):
            setattr(module, name, _Norm(child.weight, child.variance_epsilon))
        else:
            _replace_norms(child)
