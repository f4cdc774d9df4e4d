"""Models of texts: T5 up to the first generated token, and BERTs that encode sentences."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tasklab import mini
from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.mini.lexicon import EOS, PAD, vocabulary
from tasklab.models import sentences as files
from tasklab.models.clip import Clip, encoder_of
from tasklab.models.encoder import SentenceEncoder, TextEncoder
from tasklab.models.zoo import Spec
from tasklab.storage import hub
from tasklab.tasks.texts import decoded

_BERT_SCALE = 20.0  # of logits, as the protocol has it
_PROMPTS = 256  # in one pass


def text_to_text(entry: Spec, init: str, model: nn.Module, device: torch.device) -> Clip:
    """Return T5: its features are compared with rows of the output embedding.

    Args:
        entry: Entry of the model in the registry.
        init: `"pretrained"` or `"random"`.
        model: The network with its weights.
        device: Where the model or the texts are to be.
    """
    own = None if entry.shipped or init == "random" else _t5_tokenizer(entry)
    words, marks = list(vocabulary()), (PAD, EOS)

    def translate(ids: Tensor) -> Tensor:
        if own is None:  # an untrained model reads any numbering of the words
            return ids
        texts = [" ".join(words[i] for i in row if i not in marks) for row in ids.tolist()]
        return own(texts, padding=True, return_tensors="pt").input_ids.to(device)

    @isolated
    def text(words: list[str]) -> Tensor:
        if own is None:
            return mini.t5.text(model, list(words))
        return model.shared.weight[[own(word).input_ids[0] for word in words]]

    encoder = encoder_of(
        TextEncoder, entry, init, model, device,
        image_size=0, mean=(), std=(), translate=translate,
    )  # fmt: skip
    return Clip(encoder=encoder, text=text, cosine=False)


def sentences(entry: Spec, init: str, model: nn.Module, device: torch.device) -> Clip:
    """Return a BERT, and itself with its pre-trained parameters as the text tower.

    Args:
        entry: Entry of the model in the registry.
        init: `"pretrained"` or `"random"`.
        model: The network with its weights.
        device: Where the model or the texts are to be.
    """
    file = files.find_file(entry, files.TOKENIZER)
    assert file is not None  # it was fetched
    most = min(entry.config["max_seq_length"], entry.config["max_position_embeddings"])
    read = files.Tokenizer(file, most, entry.name)
    encoder = encoder_of(
        SentenceEncoder, entry, init, model, device,
        image_size=0, mean=(), std=(), translate=lambda x: read(decoded(x)),
    )  # fmt: skip

    @torch.no_grad()
    def text(texts: list[str]) -> Tensor:
        parts = (texts[at : at + _PROMPTS] for at in range(0, len(texts), _PROMPTS))
        return torch.cat([encoder(encoder.params, read(part).to(device)) for part in parts])

    digest = hashlib.sha256(f"{read.sha256} {read.most}\n".encode())
    for name, tensor in model.named_buffers():
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().numpy().tobytes())
    return Clip(encoder, text, _BERT_SCALE, beside=digest.hexdigest())


def _t5_tokenizer(entry: Spec) -> Callable:
    from transformers import AutoTokenizer  # here, for it takes seconds

    hub.guard()
    try:
        return AutoTokenizer.from_pretrained(entry.repository, revision=entry.revision or "main")
    except (OSError, ValueError) as error:
        raise TasklabError(
            f"the tokenizer of model {entry.name!r} is not on this machine and could not be "
            f"fetched. With a network, `hf download {entry.repository} tokenizer.json` fetches it; "
            "init='random' runs without."
        ) from error
