"""Cross-task linearity: are the features of merged weights the merge of the features?

For models theta_k of one architecture and weights w_k that sum to 1, *On the Emergence of
Cross-Task Linearity* compares, at every layer l and for every image x,

    u = f_l(x; sum_k w_k theta_k)      with      v = sum_k w_k f_l(x; theta_k).

| metric | definition | the paper's name |
|---|---|---|
| `distance` | 1 - cos(u, v) | 1 - cosine_alpha, 1 - cosine_avg, 1 - cosine_arith |
| `coef` | |u| cos(u, v) / |v| | coef_alpha, coef_avg, coef_arith |
| `base` | 1 - cos(f_l(theta_i), f_l(theta_j)), mean over pairs | 1 - cosine_ij |
| `base_merged` | 1 - cos(u, f_l(theta_i)), mean over i | 1 - cosine_base of section 4.2 |
| `endpoint` | 1 - cos(v, f_l(theta_i)), mean over i | none: one model without merging |
| `first` | 1 - cos(u, f_l(theta_1)) | none: the first model alone, theta_0 of a sum |

All of its equations are merges of this kind: the segment between two models (section 4.1), the mean
of several (equation 1), addition as the middle of theta_0 + 2 lambda tau_i and theta_0 + 2 lambda
tau_j (equation 2), negation as that of theta_0 + lambda tau and theta_0 - lambda tau (equation 3),
and the (k + 1) form of disentanglement (theorem 4.3).

Features are computed once a batch and not stored: products of features, summed up in float64, are
all that the metrics need, u'v = sum_k w_k u'f_k and v'v = sum_kl w_k w_l f_k'f_l. Of the numbers
themselves the mean and a histogram are kept.

Letters: B batch, K models, L layers, M metrics.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from tasklab import taskvector
from tasklab.analyses.finite import as_coefficient, finite
from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.models import inference
from tasklab.models.blocks import FEATURES, Layers
from tasklab.models.encoder import Encoder
from tasklab.progress import bar
from tasklab.tuning import memory

MEMORY = 2**30  # bytes of features that are held at a time
HELD = 2**29  # bytes of models that are held, each of which is asked for once then
METRICS = ("distance", "coef", "base", "base_merged", "endpoint", "first")
Params = Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Merge:
    """A point between models, and the data on which its features are looked at."""

    name: str
    weights: Mapping[str, float]  #: Of each model, by name; they sum to 1
    on: tuple[str, ...]  #: Names of the data sets whose union is looked at

    def __post_init__(self) -> None:
        if isinstance(self.on, str) or not (self.on and isinstance(self.weights, Mapping)):
            raise TasklabError(
                f"merge {self.name!r} needs weights by model, and a list of data sets."
            )
        for model, weight in self.weights.items():
            as_coefficient(weight, f"the weight of {model!r} in merge {self.name!r}")
        if len(self.weights) < 2 or abs(sum(self.weights.values()) - 1) > 1e-6:
            raise TasklabError(
                f"merge {self.name!r} needs at least two models, whose weights sum to 1."
            )


def merged(models: Mapping[str, Params], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """Return sum_k w_k theta_k, tensor by tensor."""
    if unknown := [name for name in weights if name not in models]:
        raise TasklabError(f"there is no model {unknown[0]!r} among {', '.join(models)}.")
    return taskvector.merged([models[name] for name in weights], weights.values())


@isolated
def measure(
    encoder: Encoder,
    models: Mapping[str, Params],
    merges: Sequence[Merge],
    data: Mapping[str, Tensor],
    *,
    batch_size: int | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    """Compare the features of merged weights with merged features, layer by layer.

    Args:
        encoder: The architecture; its own parameters are not used.
        models: Parameters by the model's name; it is asked for them each time they are needed,
            or once if all of them are small.
        merges: Weights of models, and the data sets on which features are compared.
        data: Images (N, 3, H, W) by the data set's name, as the encoder's `preprocess` takes them.
        batch_size: Images of a data set in one pass. By default as many as take 1 GiB, but at most
            50; fewer where memory does not suffice.
        progress: Whether to show a bar.

    Returns:
        Columns merge, block (0, 1, ...; missing for the encoder's own features), metric (one of
        `METRICS`), value (mean over images), low, middle and high (quartiles, from histograms
        whose bins are 2 % wide, or 0.001 for `coef`), and n (images).
    """
    for merge in merges:
        if lacking := [name for name in merge.on if name not in data or not len(data[name])]:
            raise TasklabError(f"merge {merge.name!r} needs images of {lacking[0]!r}.")
        if lacking := [name for name in merge.weights if name not in models]:
            raise TasklabError(f"merge {merge.name!r}: there is no model {lacking[0]!r}.")
    if not merges:
        raise TasklabError("there is nothing to measure: give at least one merge.")
    encoder = inference.passes(encoder, tokens=True)
    layers = Layers(encoder, encoder.preprocess(next(iter(data.values()))[:1]))
    models = _held(models, encoder.params)
    used = [name for name in data if any(name in merge.on for merge in merges)]
    held = 4 * sum(layers.sizes.values()) * (len(models) + 1)  # bytes for each image
    most = max(len(data[name]) for name in used) if batch_size is None else batch_size
    together = held * min(50, most) * len(used) <= MEMORY  # then weights are merged once for all
    groups = [used] if together else [[name] for name in used]
    parts = memory.Parts(batch_size or max(1, min(50, MEMORY // held)))
    spreads = [Spread(len(layers.sizes)) for _ in merges]
    total = sum(len(data[name]) for merge in merges for name in merge.on)
    with torch.inference_mode(), bar(total, "features", unit="image", on=progress) as shown:
        for group in groups:
            here = [(m, s) for m, s in zip(merges, spreads, strict=True) if {*m.on} & {*group}]
            places = torch.arange(max(len(data[name]) for name in group))

            def measured(at: Tensor, group=group, here=here) -> list[Float[Tensor, "M L B"]]:
                few = {name: data[name][at[0] : at[-1] + 1] for name in group}
                x = {name: encoder.preprocess(one) for name, one in few.items() if len(one)}
                return list(_of_batch(layers, models, [merge for merge, _ in here], x, shown))

            for batch in parts(measured, places):
                for (merge, spread), values in zip(here, batch, strict=True):
                    spread.add(finite(values, f"features (merge {merge.name!r})"))
    blocks = {name: i for i, name in enumerate(encoder.blocks)} | {FEATURES: None}
    rows = [
        {"merge": merge.name, "block": blocks[name], **row}
        for merge, spread in zip(merges, spreads, strict=True)
        for layer, name in enumerate(layers.sizes)
        for row in spread.rows(layer)
    ]
    return pd.DataFrame(rows).astype({"block": "Int64"})


def _held(models: Mapping[str, Params], like: Params) -> Mapping[str, Params]:
    """Return the models in memory if all of them are small: each merge reads two of them again."""
    size = len(models) * sum(tensor.nbytes for tensor in like.values())
    return models if size > HELD else {name: dict(one) for name, one in models.items()}


def _of_batch(
    layers: Layers,
    models: Mapping[str, Params],
    merges: Sequence[Merge],
    x: Mapping[str, Tensor],
    shown: Any,
) -> Iterator[Float[Tensor, "M L B"]]:
    single: dict[tuple[str, str], dict[str, Tensor]] = {}  # by model and data set

    @functools.cache
    def ordered(one: str, two: str, on: str) -> Tensor:
        return _dot(single[one, on], single[two, on])

    def product(one: str, two: str, on: str) -> Tensor:
        return ordered(*sorted((one, two)), on)

    for merge in merges:
        on = [name for name in merge.on if name in x]
        for model in merge.weights:  # before their merge is made: one model in memory at a time
            if lacking := [name for name in on if (model, name) not in single]:
                features = _each(layers, dict(models[model]), x, lacking)
                single |= {(model, name): of for name, of in zip(lacking, features, strict=True)}
        columns = [torch.empty(len(METRICS), len(layers.sizes), 0, dtype=torch.float64)]
        for name, u in zip(on, _each(layers, merged(models, merge.weights), x, on), strict=True):
            uf = {model: _dot(u, single[model, name]) for model in merge.weights}
            products = functools.partial(product, on=name)
            columns.append(_metrics(merge.weights, _dot(u, u), uf, products).cpu())
            shown.update(len(x[name]))
        yield torch.cat(columns, -1)


def _each(
    layers: Layers, params: Params, x: Mapping[str, Tensor], on: Sequence[str]
) -> Iterator[dict[str, Tensor]]:
    if len({x[name].shape[1:] for name in on}) > 1:  # texts may differ in length
        yield from (layers.parts(params, x[name]) for name in on)
    elif on:
        whole = layers.parts(params, torch.cat([x[name] for name in on]))
        sizes = [len(x[name]) for name in on]
        for rows in zip(*(part.split(sizes) for part in whole.values()), strict=True):
            yield dict(zip(whole, rows, strict=True))


def _dot(
    one: Mapping[str, Tensor], two: Mapping[str, Tensor]
) -> Float[Tensor, "L B"]:  # layer by layer, so that a product stays in the processor's cache
    rows = [(one[name] * two[name]).sum(1, dtype=torch.float64) for name in one]
    return torch.stack(rows)


def _metrics(weights: Mapping[str, float], uu: Tensor, uf: Mapping[str, Tensor], product):
    names = list(weights)
    uv = sum(weights[k] * uf[k] for k in names)
    vv = sum(weights[k] * weights[m] * product(k, m) for k, m in itertools.product(names, names))
    cos = uv / (uu * vv).sqrt()
    pairs = [
        1 - product(k, m) / (product(k, k) * product(m, m)).sqrt()
        for k, m in itertools.combinations(names, 2)
    ]
    own = [1 - uf[k] / (uu * product(k, k)).sqrt() for k in names]
    vf = {k: sum(weights[m] * product(k, m) for m in names) for k in names}
    ends = [1 - vf[k] / (vv * product(k, k)).sqrt() for k in names]
    base, base_merged, endpoint = (sum(values) / len(values) for values in (pairs, own, ends))
    return torch.stack([1 - cos, uv / vv, base, base_merged, endpoint, own[0]])


class Spread:
    """Mean and quartiles of the metrics of one merge at each layer, from a histogram."""

    # Distances on a logarithmic scale, coefficients on a linear one; ends take what lies beyond.
    EDGES = dict.fromkeys(METRICS, np.geomspace(1e-9, 2, 1200)) | {"coef": np.linspace(-1, 3, 4001)}

    def __init__(self, layers: int) -> None:
        self.n = 0
        self._sums = np.zeros((len(METRICS), layers))
        self._counts = [np.zeros((layers, len(self.EDGES[m]) + 1), np.int64) for m in METRICS]

    def add(self, values: Float[Tensor, "M L B"]) -> None:
        """Count the values of a batch."""
        array = values.cpu().numpy()
        self.n += array.shape[-1]
        self._sums += array.sum(-1)
        for metric, counts, rows in zip(METRICS, self._counts, array, strict=True):
            bins = np.searchsorted(self.EDGES[metric], rows)
            for layer, places in enumerate(bins):
                counts[layer] += np.bincount(places, minlength=counts.shape[1])

    def rows(self, layer: int) -> Iterable[dict]:
        """Yield mean and quartiles of each metric at one layer."""
        for i, metric in enumerate(METRICS):
            low, middle, high = (self._quantile(metric, i, layer, q) for q in (0.25, 0.5, 0.75))
            value = float(self._sums[i, layer] / self.n)
            quartiles = {"low": low, "middle": middle, "high": high}
            yield {"metric": metric, "value": value, **quartiles, "n": self.n}

    def _quantile(self, metric: str, i: int, layer: int, q: float) -> float:
        edges = self.EDGES[metric]
        place = int(np.searchsorted(np.cumsum(self._counts[i][layer]), q * self.n))
        if place == 0 or place == len(edges):
            return float(edges[0] if place == 0 else edges[-1])
        return float(edges[place - 1] + edges[place]) / 2
