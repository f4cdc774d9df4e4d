"""Cost of a step: time, memory and matrix products of each way to train and to infer.

Counted in products of a batch with a weight matrix, W x, each layer of a network needs

| | products |
|---|---|
| forward pass | 1: W x |
| tangent of the forward pass | 2: W dx + dW x |
| backward pass | 2: the gradients of x and of W |

so that this is the sum, but for the first layer: its input has neither tangent nor gradient (the
listing multiplies a tangent of zeros).

| variant | training | inference |
|---|---|---|
| `standard`: f(x; theta) | 1 + 2 = 3 | 1 |
| `ours`: `tangent.value_and_grad` and `tangent.jvp` | 1 + 2 + 2 = 5 | 1 + 2 = 3 |
| `listing`: `torch.func.jvp`, and autograd through it | 1 + 2 + 2 = 5 | 1 + 2 = 3 |
| `cached`: f0 + alpha J tau from stored features | | 0 |

Both linearized steps have 5/3 of the products of a standard one. The listing (tangent paper,
appendix B) also records the arithmetic of the tangents and differentiates it, so it needs second
derivatives and keeps every tangent in memory.

Training some weights saves the gradients of the others' W, but not of x. In a transformer block of
width D, attention has 4 D² weights and the MLP 8 D², so training attention alone (linear layers
paper, section 3) takes about (12 + 12 + 4) / 36 = 7/9 of the products of a standard step.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn.functional import cross_entropy

from tasklab.analyses.meters import Step, flops, peak_bytes, turns
from tasklab.errors import TasklabError, unknown, whole
from tasklab.isolation import isolated
from tasklab.models.heads import Head
from tasklab.models.loading import Clip, Encoder, math_attention
from tasklab.models.training import passes
from tasklab.storage import atomic
from tasklab.storage.placement import laid_out
from tasklab.storage.tensors import write_tensors
from tasklab.tuning import tangent
from tasklab.tuning.methods import trainable
from tasklab.tuning.recipe import PRECISIONS

VARIANTS = {  # and the fine-tuning method that each belongs to
    "standard": "nonlinear",
    "ours": "linearized",
    "listing": "linearized",
    "cached": "linearized",
    "attention": "attention",
    "attention_bias": "attention_bias",
    "attention_mlp": "attention_mlp",
    "attention_mlp_bias": "attention_mlp_bias",
}
RUNS = {  # which variants differ from the others in what is done
    "training": tuple(name for name in VARIANTS if name != "cached"),
    "inference": ("standard", "ours", "listing", "cached"),
}
_MIB = 2**20


# --- Steps ---------------------------------------------------------------------------------------


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
        value = loss(torch.add(*_listing(encoder, params, leaves, x)))
    else:
        value = loss(encoder({**params, **leaves}, x))
    return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))


def features(
    variant: str, encoder: tangent.Model, params: tangent.Params, held: tangent.Params, x: Tensor
) -> Float[Tensor, "B D"]:
    """Return the features of one batch, without a graph.

    Args:
        variant: One of `VARIANTS`.
        encoder: The model that is timed.
        params: Its parameters theta_0.
        held: The vector along which a linearized variant moves.
        x: Preprocessed images (B, 3, H, W).
    """
    with torch.no_grad():
        if variant == "ours":
            return tangent.jvp(encoder, params, held, x).at(1.0)
        if variant == "listing":
            return torch.add(*_listing(encoder, params, held, x))
        return encoder({**params, **held}, x)


def _listing(
    encoder: tangent.Model, params: tangent.Params, tau: tangent.Params, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Return f(x; theta_0) and J(x) tau as the tangent paper's listing 1 does."""
    at = {name: params[name] for name in tau}
    with math_attention():
        return torch.func.jvp(lambda theta: encoder({**params, **theta}, x), (at,), (dict(tau),))


@dataclass(frozen=True)
class _Batch:
    """One batch and how it is treated; each method returns a step and the bytes held between steps.

    Those are the weights, the trained tensors and the optimiser's state.
    """

    encoder: Encoder
    params: dict[str, Tensor]
    head: Head
    x: Tensor
    y: Tensor
    optimiser: bool
    precision: str

    def training(self, variant: str, vector: dict[str, Tensor]) -> tuple[Step, int]:
        held, size = self._held(variant, vector)
        linear = VARIANTS[variant] == "linearized"
        encoder = self.encoder if linear else passes(self.encoder)  # as `finetune` takes it
        call = functools.partial(gradients, variant, encoder, self.params, held, self.x)
        if not self.optimiser:
            return self._complete(lambda: call(self._loss)), size
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
        return self._complete(lambda: update(call(self._loss))), size + _bytes(state)

    def inference(self, variant: str, vector: dict[str, Tensor]) -> tuple[Step, int]:
        held, size = self._held(variant, vector)
        if variant == "cached":
            stored = tangent.jvp(self.encoder, self.params, held, self.x)
            return self._complete(lambda: self._logits(stored.at(0.5))), _bytes(stored)
        call = functools.partial(features, variant, self.encoder, self.params, held, self.x)
        return self._complete(lambda: self._logits(call())), size

    def _held(self, variant: str, vector: dict[str, Tensor]) -> tuple[dict[str, Tensor], int]:
        size = _bytes(self.params.values())
        if VARIANTS[variant] == "linearized":
            return dict(vector), size + _bytes(vector.values())
        return {name: self.params[name] + tensor for name, tensor in vector.items()}, size

    def _logits(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):  # logits need the digits
            return self.head(features)

    def _loss(self, features: Tensor) -> Tensor:
        return cross_entropy(self._logits(features), self.y)

    def _complete(self, run: Step) -> Step:
        device = self.x.device

        def step() -> None:
            with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
                run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return step


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


# --- The table -----------------------------------------------------------------------------------


@isolated
def measure(
    model: Clip | Encoder,
    head: Head,
    images: UInt8[Tensor, "N 3 h w"],
    labels: Int[Tensor, " N"],
    *,
    variants: Sequence[str] = tuple(VARIANTS),
    batch_sizes: Sequence[int] = (16, 64),
    rounds: int = 3,
    runs: Sequence[str] = tuple(RUNS),
    optimiser: bool = True,
    precision: str = "float32",
) -> pd.DataFrame:
    """Measure training steps and inference of one batch, at several batch sizes.

    Args:
        model: Its image encoder is measured, with a small random task vector.
        head: The task's classifier.
        images: Before preprocessing, which is not measured.
        labels: Classes of the images.
        variants: Of `VARIANTS`; those that equal a run (`RUNS`) are left out.
        batch_sizes: Images per step.
        rounds: Of the timing; see `turns`. A pass that counts comes before and warms up.
        runs: Of `RUNS`: `training`, `inference`.
        optimiser: Whether a training step clips gradients and takes a step of AdamW.
        precision: Type of matrix products.

    Returns:
        Columns method, variant, what (the run), batch_size, metric, value, low, high (quartiles
        over rounds, where there is a spread), n (rounds), threads, device. Metrics:

        - `seconds`, `cpu_seconds` (of the process, all its threads): medians over rounds;
        - `time_ratio`, `cpu_ratio`: median over rounds of the ratio to `standard` in that round;
        - `peak_memory`, MiB: weights, trained tensors, the optimiser's state, and `step_memory`;
        - `flops`: as `flops` counts them;
        - `trainable` parameters, `vector_bytes` of a task vector in float32 and `stored_bytes` of
          the file that the store writes, for training alone.
    """
    encoder = model.encoder if isinstance(model, Clip) else model
    chosen = tuple(dict.fromkeys(variants))
    _check(head, images, labels, chosen, batch_sizes, rounds, runs, precision)
    device = encoder.device
    params = {name: tensor.detach() for name, tensor in encoder.params.items()}
    numbers = torch.Generator().manual_seed(0)
    tau = {
        name: 1e-3 * p.std(correction=0) * torch.randn(p.shape, generator=numbers).to(p)
        for name, p in params.items()
    }
    names = {v: trainable(params, VARIANTS[v], encoder.name) for v in chosen}
    vectors = {v: {name: tau[name] for name in names[v]} for v in chosen}
    sizes = {v: _sizes(vectors[v]) for v in chosen} if "training" in runs else {}
    common = {"n": rounds, "threads": torch.get_num_threads(), "device": str(device)}
    tables = []
    for what in runs:
        differing = [v for v in chosen if v in RUNS[what]]
        for size in batch_sizes:
            x, y = encoder.preprocess(images[:size].to(device)), labels[:size].to(device)
            batch = _Batch(encoder, params, head.to(device), x, y, optimiser, precision)
            made = {v: getattr(batch, what)(v, vectors[v]) for v in differing}
            counted = {v: _count(step, held, device) for v, (step, held) in made.items()}
            timed = _summary(turns({v: step for v, (step, _) in made.items()}, rounds))
            for v in differing:
                values = timed[v] | counted[v] | (sizes[v] if what == "training" else {})
                table = pd.DataFrame.from_dict(values, "index", columns=["value", "low", "high"])
                table = table.rename_axis("metric").reset_index()
                case = {"method": VARIANTS[v], "variant": v, "what": what, "batch_size": size}
                tables.append(table.assign(**case, **common))
    order = ["method", "variant", "what", "batch_size", "metric", "value", "low", "high", *common]
    return pd.concat(tables, ignore_index=True)[order]


def _count(step: Step, held: int, device: torch.device) -> dict[str, tuple[float, ...]]:
    if device.type == "cuda":
        step()  # workspaces that stay are no part of the step
    peaks: list[int] = []
    total = flops(lambda: peaks.append(peak_bytes(step, device)))
    mebibytes = {"peak_memory": (peaks[0] + held) / _MIB, "step_memory": peaks[0] / _MIB}
    return {name: (value,) * 3 for name, value in {**mebibytes, "flops": float(total)}.items()}


def _sizes(vector: Mapping[str, Tensor]) -> dict[str, tuple[float, ...]]:
    single = {name: tensor.float() for name, tensor in vector.items()}
    with atomic.room(Path(tempfile.gettempdir()), ".tasklab-cost") as folder:
        file = folder / "tensors.safetensors"
        write_tensors(single, file)
        stored = file.stat().st_size
    count = sum(tensor.numel() for tensor in vector.values())
    values = {"trainable": count, "vector_bytes": _bytes(single.values()), "stored_bytes": stored}
    return {name: (float(value),) * 3 for name, value in values.items()}


def _summary(
    taken: Mapping[str, Sequence[tuple[float, ...]]],
) -> dict[str, dict[str, tuple[float, ...]]]:
    times = {variant: np.array(rounds) for variant, rounds in taken.items()}  # (rounds, clocks)
    summary: dict[str, dict[str, tuple[float, ...]]] = {}
    for variant, seconds in times.items():
        summary[variant] = _quartiles(seconds, ("seconds", "cpu_seconds"))
        if "standard" in times:
            ratios = seconds / times["standard"]
            summary[variant] |= _quartiles(ratios, ("time_ratio", "cpu_ratio"))
    return summary


def _quartiles(values: np.ndarray, names: Sequence[str]) -> dict[str, tuple[float, ...]]:
    levels = np.quantile(values, (0.5, 0.25, 0.75), axis=0)
    return {name: tuple(levels[:, i].tolist()) for i, name in enumerate(names)}


def _check(
    head: Head,
    images: Tensor,
    labels: Tensor,
    variants: Sequence[str],
    batch_sizes: Sequence[int],
    rounds: int,
    runs: Sequence[str],
    precision: str,
) -> None:
    choices = (("variant", variants, VARIANTS), ("run", runs, RUNS))
    for word, given, valid in (*choices, ("precision", [precision], PRECISIONS)):
        if not given:
            raise TasklabError(f"name at least one {word} to measure: {', '.join(valid)}.")
        for name in set(given) - set(valid):
            raise unknown(word, name, valid)
    for what in runs:
        if not set(variants) & set(RUNS[what]):
            raise TasklabError(f"{', '.join(variants)}: nothing to measure in {what}.")
    whole("rounds", rounds, 1)
    if not batch_sizes or min(batch_sizes) < 1 or max(batch_sizes) > len(images):
        sizes = ", ".join(map(str, batch_sizes)) or "none"
        raise TasklabError(f"batch sizes must lie from 1 to the {len(images)} images, not {sizes}.")
    classes = len(head.weight)
    if len(labels) != len(images) or labels.min() < 0 or labels.max() >= classes:
        raise TasklabError(
            f"each of the {len(images)} images needs a label from 0 to {classes - 1}: the head has "
            f"{classes} classes."
        )
