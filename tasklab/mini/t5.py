"""The small T5 of the embedded benchmark: transformers' classes, their words, first-token features.

`FirstToken` reads a T5 as a classifier whose classes are words. With s the start token alone,

    features(x) = d_model^(-1/2) decoder(s, encoder(x)) at the first position    (B, D)
    logit of word w = <shared.weight[w], features(x)>

the first factor being the one that T5 uses when input and output embeddings are one matrix. The
rows of the pre-trained matrix are a frozen head (`text`), and fine-tuning changes the features.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

from tasklab.errors import TasklabError
from tasklab.mini.clip import FOLDER
from tasklab.mini.text import EOS, LENGTH, PAD, encode, vocabulary

NAME = "mini_t5"
BLOCK = r"(encoder|decoder)\.block\.\d+"  # matches each block, the encoder's first


def t5_weights_path() -> Path:
    """Return the path of the shipped weights (fp16 safetensors)."""
    return FOLDER / f"{NAME}.safetensors"


def t5_card() -> dict:
    """Return the model card: data, steps, machine, seed, accuracies, hash."""
    return json.loads((FOLDER / f"{NAME}.json").read_text())


def tokenize(texts: Sequence[str]) -> Int[Tensor, "n 48"]:
    """Return token ids (n, 48): one a word, the end mark, zeros.

    Raises:
        TasklabError: If a text is longer.
    """
    ids = torch.full((len(texts), LENGTH), PAD)
    for row, text in zip(ids, texts, strict=True):
        tokens = encode(text)
        row[: len(tokens)] = torch.tensor(tokens)
    return ids


def t5_config(world: int = 1) -> T5Config:
    """Return the configuration: T5 1.0 (ReLU, tied embeddings), 3 + 2 blocks, no dropout."""
    return T5Config(
        vocab_size=len(vocabulary(world)),
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=3,
        num_decoder_layers=2,
        num_heads=4,
        relative_attention_num_buckets=32,
        relative_attention_max_distance=64,
        dropout_rate=0.0,
        feed_forward_proj="relu",
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        attn_implementation="eager",  # the position bias is a parameter: fused kernels do not help
    )


def build_t5(world: int = 1) -> FirstToken:
    """Return the model with random weights from torch's global seed."""
    return FirstToken(T5ForConditionalGeneration(t5_config(world)))


class FirstToken(nn.Module):
    """A T5 as an encoder of texts: the decoder's state where it makes the first word.

    It takes over the parts of the given model, which is of no use afterwards. Of the names that a
    T5 has for its embedding, `shared.weight` is the one that is left, and every use goes through
    it, so that other parameters can be put in its place.

    Attributes:
        shared: The embedding of words, in and out.
        encoder: T5's encoder.
        decoder: T5's decoder.
        scale: d_model^(-1/2).
        start: The decoder's first token.
        pad: The token that is not attended to.

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
        """Return the decoder's scaled states (B, M, D), of which `logits` makes the next words."""
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


def text(model: FirstToken, words: Sequence[str], world: int = 1) -> Float[Tensor, "C D"]:
    """Return the rows of the output embedding for the answer words, a frozen head's weight.

    Raises:
        TasklabError: If a word is not one token of the vocabulary.
    """
    known = vocabulary(world)
    absent = [word for word in words if word not in known]
    if absent:
        raise TasklabError(f"answers must be single words of the vocabulary, not {absent}.")
    return model.shared.weight.detach()[[known[word] for word in words]].clone()


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
