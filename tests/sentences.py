"""A sentence encoder with random weights, as sentence-transformers publishes one."""

import json
import string
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

from tasklab.models import loading, zoo
from tasklab.models.libraries import bert
from tasklab.models.loading import Clip

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*MARKS, *string.ascii_lowercase, *(f"##{x}" for x in string.ascii_lowercase))
CONFIG: dict[str, Any] = {
    "model_type": "bert", "hidden_act": "gelu", "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": len(WORDS),
    "max_position_embeddings": 24, "layer_norm_eps": 1e-12, "type_vocab_size": 2,
}  # fmt: skip
TEXTS = ("a cat", "the large dog sleeps", "b", "an owl in a tree", "red leaf")


def network(**changes: Any) -> BertModel:
    """Return transformers' model with random weights, norms and biases among them."""
    torch.manual_seed(0)
    model = BertModel(BertConfig(**{**CONFIG, **changes}, attn_implementation="eager"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def tokenizer() -> Tokenizer:
    """Return a tokenizer of letters, which cuts and pads as published ones do."""
    made = Tokenizer(models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(mark, WORDS.index(mark)) for mark in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    made.enable_truncation(8)
    made.enable_padding(length=8)
    return made


def files(**changes: Any) -> dict[str, bytes]:
    """Return the files of a repository by their paths."""
    kinds = ("models.Transformer", "models.Pooling", "models.Normalize")
    settings = {
        "config.json": {**CONFIG, **changes},
        "modules.json": [{"type": f"sentence_transformers.{kind}"} for kind in kinds],
        "1_Pooling/config.json": {
            "pooling_mode_mean_tokens": True,
            "pooling_mode_cls_token": False,
        },
        "sentence_bert_config.json": {"max_seq_length": 20},
    }
    state = {name: x.contiguous() for name, x in network().state_dict().items()}
    return {
        "model.safetensors": save(state),
        "tokenizer.json": tokenizer().to_str().encode(),
        **{path: json.dumps(content).encode() for path, content in settings.items()},
    }


def place(folder: Path, name: str = "minilm") -> None:
    """Write weights and tokenizer into a folder of weights (`$TASKLAB_WEIGHTS`)."""
    content = files()
    (folder / f"{name}.safetensors").write_bytes(content["model.safetensors"])
    (folder / f"{name}.tokenizer.json").write_bytes(content["tokenizer.json"])


def entry() -> zoo.Spec:
    """Return the entry of the tiny model, under the name of the real one."""
    settings = {**CONFIG, "max_seq_length": 20}
    return bert("minilm", arch="tiny", repository="tasklab-tests/none", config=settings)


def tiny(folder: Path, monkeypatch: Any) -> Clip:
    """Let `minilm` be the tiny model in this test, and return it."""
    place(folder)
    monkeypatch.setenv("TASKLAB_WEIGHTS", str(folder))
    monkeypatch.setitem(zoo.REGISTRY, "minilm", entry())
    return loading.load("minilm")
