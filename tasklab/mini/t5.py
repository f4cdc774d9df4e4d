"""The small T5 of the embedded benchmark: its shape, its words and its weights.

It is read as a classifier whose classes are words (`tasklab.architectures.FirstToken`). The rows of
the pre-trained embedding are a frozen head (`text`), and fine-tuning changes the features.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from tasklab.architectures import FirstToken
from tasklab.errors import TasklabError
from tasklab.mini.lexicon import EOS, PAD, vocabulary

NAME = "mini_t5"


def t5_config() -> T5Config:
    """Return the configuration: T5 1.0 (ReLU, tied embeddings), 3 + 2 blocks, no dropout."""
    return T5Config(
        vocab_size=len(vocabulary()), d_model=128, d_kv=32, d_ff=256, num_layers=3,
        num_decoder_layers=2, num_heads=4, relative_attention_num_buckets=32,
        relative_attention_max_distance=64, dropout_rate=0.0, feed_forward_proj="relu",
        tie_word_embeddings=True, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD,
        attn_implementation="eager",  # the position bias is a parameter: fused kernels do not help
    )  # fmt: skip


def build_t5() -> FirstToken:
    """Return the model with random weights from torch's global seed."""
    return FirstToken(T5ForConditionalGeneration(t5_config()))


def text(model: FirstToken, words: Sequence[str]) -> Float[Tensor, "C D"]:
    """Return the rows of the output embedding for the answer words, a frozen head's weight."""
    known = vocabulary()
    absent = [word for word in words if word not in known]
    if absent:
        raise TasklabError(f"answers must be single words of the vocabulary, not {absent}.")
    return model.shared.weight.detach()[[known[word] for word in words]].clone()
