"""How linear a model is along a task vector, at every layer and at every distance.

The tangent space is a good picture of a model while the remainder of its expansion is small. Along
a task vector tau, at the distance c and for the output h of any layer, that is the *gap*

    gap(c) = E|h(x; theta_0 + c tau) - h(x; theta_0) - c J tau| / E|c J tau|,    J = dh/dtheta,

|.| the Euclidean norm of an image's outputs, E the mean over images. 0 is a linear model; at 1
the remainder is as large as the linearization. The remainder grows with c squared, so
near 0 the gap grows with c. Both papers on linearized models argue with this regime (tangent,
section 3: fine-tuning is not in it; linear layers, section 3: fine-tuning the attention weights
alone is nearer to it), and neither measures it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor

from tasklab.analyses.edited import Line
from tasklab.analyses.finite import as_coefficients, finite
from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.models.blocks import FEATURES, Layers
from tasklab.models.encoder import Encoder
from tasklab.taskvector import TaskVector
from tasklab.tuning import memory, tangent

SCALES = (0.125, 0.25, 0.5, 1.0, 2.0)
Sizes = tuple[dict[str, float], dict[tuple[float, str], float]]


def check_scales(scales: Sequence[float]) -> None:
    """Raise a `TasklabError` unless these are distances that a gap has: numbers other than 0."""
    if 0 in as_coefficients(scales, "scales"):
        raise TasklabError("scales must be distances other than 0, where a gap is 0 / 0.")


@isolated
def gaps(
    encoder: Encoder,
    vector: TaskVector,
    images: Tensor,
    scales: Sequence[float] = SCALES,
    *,
    batch_size: int = 32,
) -> pd.DataFrame:
    """Return the gap at every layer and distance along one task vector.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        vector: The task vector tau.
        images: Preprocessed images (N, 3, H, W).
        scales: Distances c, as multiples of the vector.
        batch_size: Images in one pass.

    Returns:
        Columns alpha (the distance c), size (c |tau| / |theta_0|, over all parameters), block
        (0, 1, ...; missing for the features) and value (the gap). A block that the vector does not
        reach is left out.
    """
    check_scales(scales)
    if len(images) == 0:
        raise TasklabError("a gap needs images: give at least one.")
    theta = encoder.params
    layers, line = Layers(encoder, encoder.preprocess(images[:1])), Line(theta, vector)

    def sizes(batch: Tensor) -> Sizes:
        x = encoder.preprocess(batch)
        f0, jtau = tangent.jvp(layers, theta, vector, x)
        linear = {name: _size(part) for name, part in layers.cut(jtau).items()}
        remainder = {}
        for c in scales:
            rest = (layers(line.at(c), x) - f0).sub_(jtau, alpha=c)
            for name, part in layers.cut(rest).items():
                remainder[c, name] = _size(part)
        return linear, remainder

    linear: Counter[str] = Counter()
    remainder: Counter[tuple[float, str]] = Counter()
    with torch.no_grad():
        for of_linear, of_remainder in memory.Parts(batch_size)(sizes, images):
            linear.update(of_linear)
            remainder.update(of_remainder)
    for name, value in linear.items():
        finite(value, f"tangents at layer {name!r}")
    for (c, name), value in remainder.items():
        finite(value, f"remainders at layer {name!r}, distance {c:g}")
    if not linear[FEATURES]:
        raise TasklabError("the task vector does not change the features.")
    length = vector.norm() / TaskVector(theta).norm()
    blocks = {name: i for i, name in enumerate(encoder.blocks)} | {FEATURES: None}
    rows = [
        (c, abs(c) * length, blocks[name], value / (abs(c) * linear[name]))
        for (c, name), value in remainder.items()
        if linear[name]
    ]
    df = pd.DataFrame(rows, columns=["alpha", "size", "block", "value"])
    return df.astype({"block": "Int64"})


def _size(rows: Tensor) -> float:
    return float(rows.double().norm(dim=1).sum())
