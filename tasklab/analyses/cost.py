"""Cost of a training step: time, memory and matrix products of each method.

Counted in products of a batch with a weight matrix, W x, each layer of a network needs

| | products |
|---|---|
| forward pass | 1: W x |
| tangent of the forward pass | 2: W dx + dW x |
| backward pass | 2: the gradients of x and of W |

so that this is the sum, but for the first layer: its input has neither tangent nor gradient (the
listing multiplies a tangent of zeros).

| variant | products |
|---|---|
| `standard`: f(x; theta) | 1 + 2 = 3 |
| `ours`: `tangent.value_and_grad` | 1 + 2 + 2 = 5 |
| `listing`: `torch.func.jvp`, and autograd through it | 1 + 2 + 2 = 5 |

Both linearized steps have 5/3 of the products of a standard one. The listing (tangent paper,
appendix B) also records the arithmetic of the tangents and differentiates it, so it needs second
derivatives and keeps every tangent in memory.

Training some weights saves the gradients of the others' W, but not of x. In a transformer block of
width D, attention has 4 D² weights and the MLP 8 D², so training attention alone (linear layers
paper, section 3) takes about (12 + 12 + 4) / 36 = 7/9 of the products of a standard step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.nn.functional import cross_entropy

from tasklab.analyses.meters import Step, peak_bytes, turns
from tasklab.errors import TasklabError, unknown, whole
from tasklab.isolation import isolated
from tasklab.models.heads import Head
from tasklab.models.loading import Clip, Encoder, math_attention
from tasklab.models.training import passes
from tasklab.storage.placement import laid_out
from tasklab.tuning import tangent
from tasklab.tuning.methods import trainable

VARIANTS = {  # and the fine-tuning method that each belongs to
    "standard": "nonlinear",
    "ours": "linearized",
    "listing": "linearized",
    "attention": "attention",
    "attention_bias": "attention_bias",
    "attention_mlp": "attention_mlp",
    "attention_mlp_bias": "attention_mlp_bias",
}
_MIB = 2**20


def gradients(
    variant: str,
    encoder: tangent.Model,
    params: tangent.Params,
    held: tangent.Params,
    x: Tensor,
    loss: tangent.Loss,
) -> dict[str, Tensor]:
    """Return the gradients of one training step.

    Args:
        variant: One of `VARIANTS`.
        encoder: The network.
        params: Its parameters theta_0 by name.
        held: Trained tensors by name: tau for `ours` and `listing`, else theta_0 + tau.
        x: Preprocessed images (B, 3, H, W).
        loss: Features (B, D) -> a scalar.
    """
    if variant == "ours":
        return tangent.value_and_grad(encoder, params, held, x, loss)[1]
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in held.items()}
    if variant == "listing":
        value = loss(_listing(encoder, params, leaves, x))
    else:
        value = loss(encoder({**params, **leaves}, x))
    return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))


def _listing(
    encoder: tangent.Model, params: tangent.Params, tau: tangent.Params, x: Tensor
) -> Tensor:
    """Return f(x; theta_0) + J(x) tau as the tangent paper's listing 1 does."""
    at = {name: params[name] for name in tau}
    with math_attention():
        start, change = torch.func.jvp(
            lambda theta: encoder({**params, **theta}, x), (at,), (dict(tau),)
        )
    return start + change


@isolated
def measure(
    model: Clip | Encoder,
    head: Head,
    images: UInt8[Tensor, "N 3 h w"],
    labels: Int[Tensor, " N"],
    *,
    variants: Sequence[str] = tuple(VARIANTS),
    rounds: int = 3,
    optimiser: bool = True,
) -> pd.DataFrame:
    """Measure training steps on one batch in float32.

    Args:
        model: Its image encoder is measured, with a small random task vector.
        head: The task's classifier.
        images: The batch, before preprocessing, which is not measured.
        labels: Classes of the images.
        variants: Of `VARIANTS`.
        rounds: Of the timing; see `turns`. A pass that counts comes before and warms up.
        optimiser: Whether a step clips gradients and takes a step of AdamW.

    Returns:
        Columns method, variant, metric, value, low, high (quartiles over rounds, where there is a
        spread), n (rounds). Metrics:

        - `seconds`, `cpu_seconds` (of the process, all its threads): medians over rounds;
        - `time_ratio`: median over rounds of the seconds over those of `standard` in that round;
        - `peak_memory`, MiB: weights, trained tensors, the optimiser's state, and the step's own;
        - `trainable` parameters.
    """
    encoder = model.encoder if isinstance(model, Clip) else model
    chosen = tuple(dict.fromkeys(variants))
    _check(head, images, labels, chosen, rounds)
    device = encoder.device
    params = {name: tensor.detach() for name, tensor in encoder.params.items()}
    numbers = torch.Generator().manual_seed(0)
    tau = {
        name: 1e-3 * p.std(correction=0) * torch.randn(p.shape, generator=numbers).to(p)
        for name, p in params.items()
    }
    x, y, head = encoder.preprocess(images.to(device)), labels.to(device), head.to(device)

    def loss(features: Tensor) -> Tensor:
        return cross_entropy(head(features), y)

    steps, found = {}, {}
    for variant in chosen:
        names = trainable(params, VARIANTS[variant], encoder.name)
        vector = {name: tau[name] for name in names}
        steps[variant], held = _step(variant, encoder, params, vector, x, loss, optimiser)
        if device.type == "cuda":
            steps[variant]()  # workspaces that stay are no part of the step
        peak = (peak_bytes(steps[variant], device) + held) / _MIB
        trained = float(sum(tensor.numel() for tensor in vector.values()))
        found[variant] = {"peak_memory": (peak,) * 3, "trainable": (trained,) * 3}
    timed = _summary(turns(steps, rounds))
    rows = [
        (VARIANTS[variant], variant, metric, *values, rounds)
        for variant in chosen
        for metric, values in (timed[variant] | found[variant]).items()
    ]
    columns = ["method", "variant", "metric", "value", "low", "high", "n"]
    return pd.DataFrame(rows, columns=columns)


def _step(
    variant: str,
    encoder: Encoder,
    params: dict[str, Tensor],
    vector: dict[str, Tensor],
    x: Tensor,
    loss: tangent.Loss,
    optimiser: bool,
) -> tuple[Step, int]:
    """Return a training step and the bytes between steps.

    These are of the weights, the trained tensors and the optimiser's state.
    """
    linear = VARIANTS[variant] == "linearized"
    held = dict(vector) if linear else {name: params[name] + tau for name, tau in vector.items()}
    size = _bytes(params.values()) + (_bytes(vector.values()) if linear else 0)
    network = encoder if linear else passes(encoder)  # as `finetune` takes it
    call = functools.partial(gradients, variant, network, params, held, x, loss)
    if not optimiser:
        return _complete(call, x.device), size
    # The papers' optimiser (tangent paper, appendix A), at a rate of zero: nothing changes
    adamw = torch.optim.AdamW(held.values(), lr=0.0, weight_decay=0.1)

    def update(gradient: Mapping[str, Tensor]) -> None:
        for name, tensor in held.items():
            tensor.grad = laid_out(gradient[name], tensor)
        torch.nn.utils.clip_grad_norm_(held.values(), 1.0)
        adamw.step()
        adamw.zero_grad()

    update({name: torch.zeros_like(tensor) for name, tensor in held.items()})  # makes its state
    state = [x for moments in adamw.state.values() for x in moments.values()]
    return _complete(lambda: update(call()), x.device), size + _bytes(state)


def _complete(run: Step, device: torch.device) -> Step:
    def step() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _summary(
    taken: Mapping[str, Sequence[tuple[float, ...]]],
) -> dict[str, dict[str, tuple[float, ...]]]:
    """Return medians and quartiles of clocks and of ratios to `standard` by variant and metric."""
    times = {variant: np.array(rounds) for variant, rounds in taken.items()}  # (rounds, clocks)
    summary = {}
    for variant, seconds in times.items():
        columns = {"seconds": seconds[:, 0], "cpu_seconds": seconds[:, 1]}
        if "standard" in times:
            columns["time_ratio"] = seconds[:, 0] / times["standard"][:, 0]
        summary[variant] = {
            name: tuple(np.quantile(column, (0.5, 0.25, 0.75)).tolist())
            for name, column in columns.items()
        }
    return summary


def _check(
    head: Head, images: Tensor, labels: Tensor, variants: Sequence[str], rounds: int
) -> None:
    if not variants:
        raise TasklabError(f"name at least one variant to measure: {', '.join(VARIANTS)}.")
    for name in set(variants) - set(VARIANTS):
        raise unknown("variant", name, VARIANTS)
    whole("rounds", rounds, 1)
    classes = len(head.weight)
    if not len(images) or len(labels) != len(images) or labels.min() < 0 or labels.max() >= classes:
        raise TasklabError(
            f"each of the {len(images)} images needs a label from 0 to {classes - 1}: the head has "
            f"{classes} classes."
        )
