"""Round a network and its task vectors for a page, and measure the rounding error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tasklab.book.explore.payload import sheet
from tasklab.errors import TasklabError
from tasklab.evidence.experiments import Lab
from tasklab.evidence.figures.style import METHOD_LABEL
from tasklab.isolation import isolated
from tasklab.models.encoder import Encoder
from tasklab.models.heads import Head
from tasklab.models.towers import Block, Ends, Tower, tower
from tasklab.taskvector import TaskVector

_BITS = {"theta0": 8, "vector": 4, "row": 8}


@isolated
def packed(lab: Lab, method: str, pictures: int) -> tuple[dict[str, Any], np.ndarray]:
    """Return the description of a network for a page, and its numbers.

    Args:
        lab: Model, tasks, seeds, scale and store.
        method: Of the vectors.
        pictures: Test images of each task that the page shows.
    """
    seeds: Any = lab.parameters.seeds  # settled: a tuple
    encoder, evaluator = lab.clip.encoder, lab.evaluator_of(method)
    shape = _supported(tower(encoder.module), encoder.name)
    vectors = lab.vectors(method)
    heads = {task: evaluator.head(task) for task in vectors}
    names = _names(shape)
    theta = {short: _matrix(encoder.params[name], short) for short, name in names.items()}
    _check(theta, heads, encoder.name)
    blob, rounded = [], {}
    for short, x in theta.items():
        parts, rounded[short] = _rounded(x, _BITS["theta0"]) if len(x) > 1 else ([x], x)
        blob += parts
    edits: dict[str, dict[str, Any]] = {}
    for task, vector in vectors.items():
        edits[task] = {}
        for short, name in names.items():
            x = _matrix(vector[name], short)
            parts, edits[task][short] = _rounded(x, _BITS["vector" if len(x) > 1 else "row"])
            blob += parts
    blob += [head.weight.cpu().numpy() for head in heads.values()]
    error = TaskVector(parameters(encoder, {s: rounded[s] - theta[s] for s in theta}))
    sums = TaskVector.sum([TaskVector(parameters(encoder, e)) for e in edits.values()])
    grid, total = lab.scale.alphas, TaskVector.sum([*vectors.values()])
    plain = evaluator.sweep(total, [*vectors], "val", linear=False, alphas=grid).mean(1)
    alpha = float(grid[int(plain.argmax())])
    costs = evaluator.sweep(
        error + alpha * sums, [*vectors], "val", linear=False, alphas=(1.0,)
    ).mean()
    seen = {task: evaluator.images(task, "val") for task in vectors}
    shown = {task: images.x[:pictures] for task, images in seen.items()}
    merged = (error + alpha * sums).apply(encoder.params)
    side, patch = encoder.image_size, shape.patch[0]
    strips = [x.cpu().numpy().transpose(0, 2, 3, 1) for x in shown.values()]
    png = sheet(strips, side, pictures, "PNG", optimize=True)  # without loss
    classes = {task: [*evaluator.suite[task].classes] for task in seen}
    labels = {task: images.y[:pictures].tolist() for task, images in seen.items()}
    info = {
        "model": encoder.name,
        "tensors": [
            {"name": short, "rows": len(x), "columns": x.shape[1]} for short, x in theta.items()
        ],
        "tasks": [
            {"name": task, "classes": classes[task], "labels": labels[task]} for task in seen
        ],
        "picture_bytes": len(png),
        "columns": pictures,
        "side": side,
        "patch": patch,
        "patch_inputs": 3 * patch**2,
        "tokens": (side // patch) ** 2 + 1,
        "width": theta["projection"].shape[1],
        "heads": shape.kind.heads,
        "blocks": len(shape.blocks),
        "eps": shape.kind.eps,
        "mean": list(encoder.mean),
        "std": list(encoder.std),
        "alpha": alpha,
        "told": f"{encoder.name}: {sum(map(np.size, theta.values())) / 1e6:.1f} million weights, "
        f"{METHOD_LABEL[method]} task vectors, seed {seeds[0]}. The page stores weights in 8 bits "
        f"and each vector in 4. The sum at {alpha:.2f} scores {costs:.1f} % on all validation "
        f"images so, and {plain.max():.1f} % without rounding. Pictures are validation images. "
        "Nothing leaves this page.",
    }
    info |= opening(encoder, merged, shown, classes, labels, heads)
    return info, np.frombuffer(b"".join(part.tobytes() for part in blob) + png, np.uint8)


@torch.no_grad()
def opening(
    encoder: Encoder,
    params: Mapping[str, Tensor],
    images: Mapping[str, Tensor],
    classes: Mapping[str, Sequence[str]],
    labels: Mapping[str, Sequence[int]],
    heads: Mapping[str, Head],
) -> dict[str, Any]:
    """Return the picture that a page opens with, and when it names a class for a reader's picture.

    The page names a class if the largest cosine between the picture's features and the classes of
    the task reaches a threshold (the maximum logit of Hendrycks et al., 2022). The threshold is the
    10 % quantile over pictures of their own task.

    Args:
        encoder: The encoder.
        params: The merged weights that the page opens with.
        images: Validation pictures (N, 3, H, W) of each task, uint8.
        classes: Names of each task's classes. Tasks that share one are not compared.
        labels: Labels of the pictures.
        heads: Zero-shot heads of the tasks.

    Returns:
        `opens`: numbers of a task and of a picture that it gets right, of the task with the most
        right answers. `abstention`: the threshold `cosine`, and the percentages that reach it of
        the pictures of their `own` task, of `other` tasks' pictures and of uniform `noise`.
    """
    features = {task: encoder(params, encoder.preprocess(x)) for task, x in images.items()}
    pixels = np.random.default_rng(0).integers(
        0, 256, (200, *next(iter(images.values())).shape[1:])
    )
    noise = encoder(params, encoder.preprocess(torch.from_numpy(pixels.astype(np.uint8))))

    def nearest(x: Tensor, task: str) -> Tensor:
        return (F.normalize(x, dim=-1) @ F.normalize(heads[task].weight, dim=-1).T).amax(-1)

    own = torch.cat([nearest(x, task) for task, x in features.items()])
    pairs = [(a, b) for a in classes for b in classes if not {*classes[a]} & {*classes[b]}]
    other = torch.cat([nearest(features[a], b) for a, b in pairs])
    random = torch.cat([nearest(noise, task) for task in classes])
    threshold = float(own.quantile(0.1))

    def reached(x: Tensor) -> float:
        return round(100 * float((x >= threshold).float().mean()), 1)

    right = [
        (heads[task](x).argmax(-1).cpu() == torch.as_tensor(labels[task])).tolist()
        for task, x in features.items()
    ]
    task = max(range(len(right)), key=lambda t: sum(right[t]))
    rates = {"own": reached(own), "other": reached(other), "noise": reached(random)}
    return {
        "opens": [task, right[task].index(max(right[task]))],
        "abstention": {"cosine": round(threshold, 4)} | rates,
    }


def _supported(shape: Tower | None, name: str) -> Tower:
    """Return the shape of a CLIP tower of plain blocks; raise for others."""
    plain = (
        shape is not None
        and shape.kind.activation == "none"
        and shape.prefix_positions
        and not shape.mean
        and shape.ends.registers is None
        and shape.ends.patch_b is None
        and None not in (shape.ends.class_token, shape.ends.pre_w, shape.ends.projection)
        and all(b.scale1 is None and b.scale2 is None and b.qkv_b for b in shape.blocks)
    )
    if not plain or shape is None:
        raise TasklabError(
            f"the page's network is a CLIP image tower of plain blocks, as `mini_s` is; "
            f"{name!r} is another one."
        )
    return shape


def _check(theta: Mapping[str, np.ndarray], heads: Mapping[str, Head], name: str) -> None:
    """Refuse widths that the kernel cannot read, and heads that the script does not compute."""
    width = theta["projection"].shape[1]
    fits = theta["projection"].shape == (width, width) and theta["0.up_w"].shape[0] == 4 * width
    even = all(
        x.shape[1] % 4 == 0 and (len(x) == 1 or len(x) % 4 == 0 or short == "positions")
        for short, x in theta.items()
    )
    if not fits or not even or not all(head.normalise for head in heads.values()):
        raise TasklabError(
            f"the page's network needs zero-shot heads and the widths of `mini_s`, not {name!r}'s."
        )


def _names(shape: Tower) -> dict[str, str]:
    """Return the script's names of tensors -> the module's names, in the order of the numbers."""
    ends: Ends[str | None] = shape.ends
    named = {"patch": ends.patch_w, "class": ends.class_token, "positions": ends.positions}
    named |= {"pre_w": ends.pre_w, "pre_b": ends.pre_b}
    for number, block in enumerate(shape.blocks):
        named |= {f"{number}.{field}": getattr(block, field) for field in Block._fields}
    named |= {"post_w": ends.post_w, "post_b": ends.post_b, "projection": ends.projection}
    return {short: name for short, name in named.items() if name is not None}


def _matrix(x: Tensor, short: str) -> np.ndarray:
    """Return a parameter as rows: one an output of a product, one in all for other vectors."""
    x = x.detach().float().cpu()
    x = x.T if short == "projection" else x
    return np.ascontiguousarray((x.flatten(1) if x.ndim > 1 else x[None]).numpy())


def parameters(encoder: Encoder, rows: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return a page's rows by the encoder's names and in its shapes."""
    found = {}
    for short, name in _names(_supported(tower(encoder.module), encoder.name)).items():
        x = torch.tensor(rows[short], dtype=torch.float32)
        shape = encoder.params[name].shape
        found[name] = (x.T if short == "projection" else x).reshape(shape).to(encoder.device)
    return found


def _rounded(x: np.ndarray, bits: int) -> tuple[list[np.ndarray], np.ndarray]:
    most = 2 ** (bits - 1) - 1
    scales = (np.abs(x).max(1, keepdims=True) / most).astype(np.float32)
    q = np.rint(x / np.maximum(scales, 1e-30)).clip(-most, most).astype(np.int8)
    stored = q if bits == 8 else ((q[:, ::2] + 8) << 4 | (q[:, 1::2] + 8)).astype(np.uint8)
    return [scales, stored], scales * q
