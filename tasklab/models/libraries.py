"""Models of libraries by their own names: timm's image models, and sentence-transformers' BERTs."""

from __future__ import annotations

import difflib
import functools
import json
from typing import Any

from tasklab import storage
from tasklab.errors import TasklabError
from tasklab.models import shapes
from tasklab.models.entry import Spec

TIMM = "timm/"  # before the name of any model of timm's: one without a text tower
SENTENCES = "st/"  # before the name of any BERT of sentence-transformers
OWNER = "sentence-transformers"
BERT_BLOCK = r"blocks\.\d+"
# Of sentence encoders, by the protocol's search on validation texts of `minilm` (`wordnet_rates`);
# that with feed-forward layers, whose search is not recorded yet, has non-linear fine-tuning's.
BERT_LR = {"nonlinear": 1e-4, "linearized": 8e-4, "attention": 8e-4, "attention_mlp": 1e-4}


@functools.cache
def of_timm(name: str) -> Spec:
    """Return the entry of one of timm's models, without its shape."""
    import timm  # here, for it takes seconds

    try:
        card = timm.models.get_pretrained_cfg(name.removeprefix(TIMM))
    except RuntimeError:  # no such weights
        card = None
    if card is None or not card.hf_hub_id:
        near = difflib.get_close_matches(name.removeprefix(TIMM), timm.list_pretrained(), n=3)
        names = " or ".join(repr(TIMM + one) for one in near)
        hint = f" did you mean {names}?" if near else ""
        raise TasklabError(
            f"timm has no pre-trained model {name.removeprefix(TIMM)!r}:{hint} "
            "timm.list_pretrained() returns all names."
        )
    return Spec(
        name=name, kind="vit", arch=card.architecture, pretrained=card.tag, source="timm", block="",
        blocks=0, repository=card.hf_hub_id, file=card.hf_hub_filename or "",
    )  # fmt: skip


@functools.cache
def of_sentences(name: str) -> Spec:
    """Return the entry of one of sentence-transformers' models, from its files on the hub.

    Raises:
        TasklabError: If there is no such model, the hub does not answer, or the model is no BERT
            whose features are the mean of its tokens.
    """
    repository = f"{OWNER}/{name.removeprefix(SENTENCES)}"

    def settings(file: str) -> Any:
        try:
            path = storage.fetching.cached(repository, file) or storage.fetching.fetch(
                repository, file, progress=False
            )
            return json.loads(path.read_text("utf-8"))
        except storage.fetching.UnreachableError as error:
            raise TasklabError(
                f"model {name!r} needs {file} of {repository}, which could not be fetched "
                f"({error.problem}): the name must be one of {OWNER}'s on the hub, and the hub "
                "must answer."
            ) from error
        except ValueError as error:
            raise TasklabError(f"{file} of {repository} cannot be read ({error}).") from error

    config = settings("config.json")
    kind = config.get("model_type")
    if kind != "bert" or config.get("hidden_act") != "gelu":
        what = f"of type {kind!r}" if kind != "bert" else f"a BERT with {config.get('hidden_act')}"
        raise TasklabError(
            f"model {name!r} is {what}: of sentence-transformers, BERTs with GELU are read, such "
            "as 'st/all-MiniLM-L12-v2'."
        )
    parts = [str(part.get("type")).rpartition(".")[2] for part in settings("modules.json")]
    pooling = settings("1_Pooling/config.json") if "Pooling" in parts else {}
    modes = {mode for mode, on in pooling.items() if mode.startswith("pooling_mode_") and on}
    if {*parts} - {"Transformer", "Pooling", "Normalize"} or modes != {"pooling_mode_mean_tokens"}:
        made = ", ".join([*parts, *sorted(modes)])
        raise TasklabError(
            f"model {name!r} is made of {made}: only encoders whose features are the mean of the "
            "tokens are read."
        )
    return bert(
        name, arch=repository.partition("/")[2], repository=repository,
        config={**config, **settings("sentence_bert_config.json")},
    )  # fmt: skip


def bert(name: str, *, config: dict[str, Any], **more: Any) -> Spec:
    """Return the entry of a sentence encoder from its published settings.

    Args:
        name: Of the entry.
        config: Content of `config.json`, with `max_seq_length`.
        more: Further fields of `Spec`.
    """
    depth = config["num_hidden_layers"]
    sizes = (config["hidden_size"], config["intermediate_size"], depth)
    about = {"source": f"{OWNER}, contrastive on pairs of sentences", **more}
    return Spec(
        name=name, kind="bert", pretrained=OWNER, block=BERT_BLOCK, blocks=depth, config=config,
        rates=BERT_LR, closed_rates=BERT_LR, world="wordnet", math=True,
        tower=shapes.bert(*sizes, heads=config["num_attention_heads"]), **about,
    )  # fmt: skip
