"""Processor time of a fine-tuning step of minilm: ours, linearized, and transformers' own.

python benchmarks/sentences.py [TEXTS]

Weights are random, and texts have the lengths of definitions of the suite `wordnet` (4 to 32
tokens). Each step is loss and gradient; the shortest of five is printed, in seconds of all cores
together, so that other programs on the machine disturb it little.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from transformers import BertConfig, BertModel

from tasklab.models import bert, zoo
from tasklab.models.encoder import SentenceEncoder, math_attention
from tasklab.tuning import tangent

_FROZEN = ("embeddings.word", "embeddings.position", "embeddings.token_type")


def main(count: int = 64) -> None:
    torch.manual_seed(0)
    config = dict(zoo.REGISTRY["minilm"].config)
    most = config.pop("max_seq_length")
    plain = BertModel(BertConfig(**config), add_pooling_layer=False).eval()
    ours = bert.Bert(config)
    ours.load_state_dict(bert.from_transformers(plain.state_dict()))
    encoder = SentenceEncoder.of(ours)
    lengths = torch.randn(count).mul_(6).add_(16).round().clamp_(4, most).long()
    ids = torch.randint(1000, config["vocab_size"], (count, most))
    ids[torch.arange(most) >= lengths[:, None]] = bert.PAD
    tau = {name: 1e-3 * torch.randn_like(x) for name, x in encoder.params.items()}
    names = [name for name, _ in plain.named_parameters() if not name.startswith(_FROZEN)]

    def loss(features: torch.Tensor) -> torch.Tensor:
        return features.square().sum()

    def standard() -> None:
        theta = {name: x.detach().requires_grad_() for name, x in encoder.params.items()}
        with math_attention():
            value = loss(encoder(theta, ids))
        torch.autograd.grad(value, list(theta.values()))

    def linearized() -> None:
        tangent.value_and_grad(encoder, encoder.params, tau, ids, loss)

    def usual() -> None:
        own = dict(plain.named_parameters())
        leaves = {name: own[name].detach().requires_grad_() for name in names}
        cut, mask = ids[:, : lengths.max()], (ids != bert.PAD).long()[:, : lengths.max()]
        about = {"input_ids": cut, "attention_mask": mask}
        states = torch.func.functional_call(plain, leaves, (), about).last_hidden_state
        value = loss((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        torch.autograd.grad(value, list(leaves.values()))

    steps = {"transformers": usual, "ours": standard, "linearized": linearized}
    taken = {name: _shortest(step) for name, step in steps.items()}
    print(f"{count} texts, {int(lengths.sum())} tokens, {torch.get_num_threads()} threads")
    for name, seconds in taken.items():
        print(f"{name:<14}{seconds:.3f} s of processor time, {seconds / taken['ours']:.2f} of ours")


def _shortest(step: Callable[[], None]) -> float:
    step()
    times = []
    for _ in range(5):
        began = time.process_time()
        step()
        times.append(time.process_time() - began)
    return min(times)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
