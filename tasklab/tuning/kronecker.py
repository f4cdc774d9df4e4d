"""Kronecker factors of the effect of weights on the features of other tasks' images.

The penalty of TAK (*Dataless Weight Disentanglement in Task Arithmetic via Kronecker-Factored
Approximate Curvature*, arXiv:2602.17385, section 3; code: aimagelab/mammoth, models/tak.py). With
J the Jacobian of the features at theta_0,

    E_x |J(x) delta|^2 = delta' G delta,      G = E J' J,

and G is approximated layer by layer. For a linear layer with inputs a (with a 1 for the bias) and
gradients g of <f(x), v> at its outputs, v of independent normal numbers,

    G is about B x A,      A = the mean of a a' over images and tokens, B = E sum_tokens g g',

so that its part is tr(B D A D') with D = [dW db]. The scales and shifts of a normalisation keep
their own block, E of the outer products of an image's gradients. Tasks are summed as in equation 8,
sum_t B_t x A_t by (sum_t B_t) x (mean_t A_t), so that a run needs one pair of factors whatever the
number of tasks, and no image of another task once these are made.

**As published** (`methods.Published`; code: apanariello4/merge-and-rebase): J is that of features
of length 1. B is divided by the number of tokens, and queries, keys and values have a B each. The
class token has a block like a normalisation's. Blocks are averaged over all tasks' images, or, in
EK-FAC, summed over images. Blocks and the projection have weights. Without these, as in the
methods `tak_even` and `delta_even`, all parts are those of delta' G delta.

**EK-FAC**, which DELTA takes from one reference data set (`tuning.distillation`), keeps the
eigenvectors U_A and U_B of A and B and measures the variance along each pair of them,

    G is about (U_A x U_B) diag(S) (U_A x U_B)',     S = E (U_B' (sum_tokens g a') U_A)^2, entry by
    entry.

Letters: B images, L tokens, I inputs and O outputs of a layer, D features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tasklab.isolation import isolated
from tasklab.models import products, training
from tasklab.models.encoder import Encoder
from tasklab.models.heads import Head
from tasklab.storage.placement import decomposes
from tasklab.sums import add_to
from tasklab.tuning.methods import Published

IMAGES = 128  # of each other task: more change nothing, by the paper
_PART = 32  # images in one pass
TOKEN, PROJECTION = "class_embedding", "proj"  # open_clip's names


@dataclasses.dataclass(frozen=True, eq=False)
class Factors:
    """G of several tasks together."""

    inputs: Mapping[str, Tensor]  #: A by the weight's name, (I, I), or (I + 1, I + 1) with a bias
    outputs: Mapping[str, Tensor]  #: B (O, O)
    blocks: Mapping[str, Tensor]  #: Of parameters of one axis, (n, n)
    biases: Mapping[str, str]  #: The name of a weight's bias, if its layer has one
    turned: frozenset[str]  #: Weights that are kept inputs x outputs
    #: S (O, I) of EK-FAC, whose `inputs` and `outputs` are the eigenvectors; empty for A and B
    scales: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)

    def penalty(self, delta: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return delta' G delta, and its gradient by the names of parameters that it reaches."""
        value = next(iter(delta.values())).new_zeros(())
        gradients: dict[str, Tensor] = {}
        for name, A in self.inputs.items():
            bias = self.biases.get(name, "")
            if name not in delta and bias not in delta:
                continue
            D = value.new_zeros(len(self.outputs[name]), len(A))
            inner = D[:, :-1] if bias else D
            if name in delta:
                inner.copy_(delta[name].T if name in self.turned else delta[name])
            if bias in delta:
                D[:, -1] = delta[bias]
            product = self._product(name, D)
            value = value + (D * product).sum()
            if name in delta:
                slope = 2 * product[:, :-1] if bias else 2 * product
                gradients[name] = slope.T if name in self.turned else slope
            if bias in delta:
                gradients[bias] = 2 * product[:, -1]
        for name in self.blocks.keys() & delta.keys():
            product = self.blocks[name].to(delta[name]) @ delta[name]
            value = value + delta[name] @ product
            gradients[name] = 2 * product
        return value, gradients

    def _product(self, name: str, D: Tensor) -> Tensor:
        A, B = self.inputs[name].to(D), self.outputs[name].to(D)
        if name not in self.scales:
            return B @ D @ A
        return B @ (self.scales[name].to(D) * (B.T @ D @ A)) @ A.T


@isolated
def corrected(
    encoder: Encoder,
    images: Tensor,
    *,
    draws: int | None = 1,
    seed: int = 0,
    published: Published | None = None,
) -> Factors:
    """Return the factors of one data set in their eigenvectors, with measured scales (EK-FAC).

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        images: Of the reference data set (B, 3, H, W).
        draws: As `factors` takes them.
        seed: Of drawn labels and gradients.
        published: As `factors` takes it.
    """
    unit, numbers = published is not None, torch.Generator().manual_seed(seed)
    read = _Read(encoder.params, unit).through(encoder, images, draws, numbers)
    plain = _together([read], published)
    if published:
        blocks = {name: read.seen * block for name, block in plain.blocks.items()}
        plain = dataclasses.replace(plain, blocks=blocks)
    sides = (plain.inputs, plain.outputs)
    bases = [{name: _eigenvectors(x) for name, x in side.items()} for side in sides]
    numbers.manual_seed(seed)
    along = _Along(encoder.params, bases[0], bases[1], unit).through(
        encoder, images, draws, numbers
    )
    scales = {name: total / along.seen for name, total in along.scales.items()}
    found = dataclasses.replace(plain, inputs=bases[0], outputs=bases[1], scales=scales)
    return _weighted(found, published)


@isolated
def factors(
    encoder: Encoder,
    images: Iterable[Tensor],
    *,
    draws: int | None = 1,
    seed: int = 0,
    published: Published | None = None,
) -> Factors:
    """Return the factors of several tasks, from images of one after another.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        images: Of each task.
        draws: Of v for each image; `None` takes every unit vector instead, which is exact and takes
            a backward pass a feature.
        seed: Of drawn labels and gradients.
        published: Weights of the authors' code, whose conventions the factors then follow.
    """
    numbers = torch.Generator().manual_seed(seed)
    unit = published is not None
    each = [_Read(encoder.params, unit).through(encoder, x, draws, numbers) for x in images]
    return _weighted(_together(each, published), published)


@isolated
def fisher(
    encoder: Encoder,
    head: Head,
    images: Tensor,
    *,
    params: Mapping[str, Tensor] | None = None,
    draws: int = 1,
    seed: int = 0,
) -> Factors:
    """Return K-FAC's factors of the Fisher information of one task's head.

    In place of <f(x), v> stands log p(y | x), with y drawn from the model's own probabilities, so
    that no label is needed. Attention's queries, keys and values share one B.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        head: The task's classifier of features.
        images: Of the task (B, 3, H, W).
        params: Where the information is taken; by default theta_0.
        draws: Of y for each image.
        seed: Of the draws.
    """
    numbers = torch.Generator().manual_seed(seed)

    def slope(features: Tensor) -> Tensor:
        with torch.enable_grad():
            f = features.detach().requires_grad_()
            chances = head(f).log_softmax(-1)
            weights = chances.detach().double().exp().cpu()
            labels = torch.multinomial(weights, 1, generator=numbers).to(chances.device)
            return torch.autograd.grad(chances.gather(1, labels).sum(), f)[0]

    read = _Read({**encoder.params, **(params or {})}, slope=slope)
    return _together([read.through(encoder, images, draws, numbers)], None)


def _eigenvectors(factor: Tensor) -> Tensor:
    place = decomposes(factor.device)
    return torch.linalg.eigh(factor.to(place, torch.float64))[1].to(factor)


def _weighted(factors: Factors, published: Published | None) -> Factors:
    if published is None:
        return factors
    blocks = {name: published.blocks * block for name, block in factors.blocks.items()}
    table = dict(factors.scales or factors.outputs)  # that the penalty is linear in
    if PROJECTION in table:
        table[PROJECTION] = published.projection * table[PROJECTION]
    if factors.scales:
        return dataclasses.replace(factors, blocks=blocks, scales=table)
    return dataclasses.replace(factors, blocks=blocks, outputs=table)


def _together(each: Sequence[_Read], published: Published | None) -> Factors:
    first, many = each[0], sum(read.seen for read in each)

    def total(tables: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: sum(table[name] for table in tables) for name in tables[0]}

    inputs = total([{n: read.seen / many * A for n, A in read.inputs.items()} for read in each])
    outputs = total([read.outputs for read in each])
    if published:
        outputs = {name: _apart(name, B) for name, B in outputs.items()}
    share = [read.seen / many if published else 1 for read in each]
    blocks = total(
        [{n: s * x for n, x in r.blocks.items()} for s, r in zip(share, each, strict=True)]
    )
    return Factors(inputs, outputs, blocks, first.biases, frozenset(first.turned))


def _apart(name: str, B: Tensor) -> Tensor:
    """Return B, of a layer of queries, keys and values a B of each on the diagonal."""
    if not name.endswith(("in_proj_weight", "qkv.weight")):
        return B
    return torch.block_diag(*(B[p][:, p] for p in torch.arange(len(B)).chunk(3)))


class _Read(TorchFunctionMode):
    """Mode that stores the inputs and outputs of layers with the given parameters.

    Args:
        published: Whether features have length 1, B is a mean over tokens, and the class token has
            a block.
        slope: The gradient in the features (B, D) that is drawn; by default v.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        published: bool = False,
        slope: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._published, self._token, self._slope = published, None, slope
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.blocks: dict[str, Tensor] = {}
        self.rows: dict[str, int] = {}
        self.biases: dict[str, str] = {}
        self.turned: set[str] = set()
        self.seen = 0  # images
        self._params = params
        self._names: dict[int, str] = {}
        self._passed: list[tuple[str, str, Tensor, Tensor]] = []  # weight, bias, input, output

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run `func`, and store a layer's input and output."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in (F.linear, products.linear, F.layer_norm):
            x, *rest = args
            given = dict(zip(("weight", "bias"), rest[func is F.layer_norm :], strict=False))
            weight, bias = (self._name({**given, **kwargs}.get(n)) for n in ("weight", "bias"))
            if func is F.layer_norm and weight:
                if self._published and self._token is None and TOKEN in self._params:
                    self._token = x  # the first normalisation's input (B, L, D), the token first
                x = F.layer_norm(x, rest[0], eps=kwargs.get("eps", rest[3] if rest[3:] else 1e-5))
            self._keep(weight, bias, x, out)
        elif func in (torch.matmul, Tensor.matmul, Tensor.__matmul__):
            if weight := self._name(args[1]):
                self.turned.add(weight)
                self._keep(weight, "", args[0], out)
        return out

    def _name(self, x: Any) -> str:
        return self._names.get(id(x), "")

    def _keep(self, weight: str, bias: str, x: Tensor, out: Tensor) -> None:
        if weight:
            self._passed.append((weight, bias, x.detach(), out))
            if bias:
                self.biases[weight] = bias

    def through(
        self, encoder: Encoder, images: Tensor, draws: int | None, numbers: torch.Generator
    ) -> Self:
        """Return the reader with the means over a task's images."""
        plain, self.seen = training.written_out(encoder), len(images)
        for part in images.split(_PART):
            for x in encoder.without_padding(encoder.preprocess(part)):
                self._part(plain, x, draws, numbers)
        for name in self.inputs:
            self.inputs[name] /= self.rows[name]
        for table in (self.outputs, self.blocks):
            for name in table:
                table[name] /= self.seen
        return self

    def _part(
        self, encoder: Encoder, x: Tensor, draws: int | None, numbers: torch.Generator
    ) -> None:
        leaves = {name: x.detach().requires_grad_() for name, x in self._params.items()}
        self._names, self._passed = {id(x): name for name, x in leaves.items()}, []
        self._token = None
        with torch.enable_grad():
            with self:
                features = encoder(leaves, x)
            if self._published:
                features = F.normalize(features, dim=-1)
            shape = features.shape
            if draws is None:
                ways = list(torch.eye(shape[1]).to(features).unsqueeze(1).expand(-1, *shape))
            elif self._slope is not None:
                ways = [self._slope(features) for _ in range(draws)]
            else:
                ways = [torch.randn(shape, generator=numbers).to(features) for _ in range(draws)]
            ends = [out for *_, out in self._passed]
            ends += [] if self._token is None else [self._token]
            for place, v in enumerate(ways):
                slopes = torch.autograd.grad(
                    features, ends, v, retain_graph=place + 1 < len(ways), materialize_grads=True
                )
                count = 1 if draws is None else len(ways)
                for (weight, bias, x, _), g in zip(self._passed, slopes, strict=False):
                    self._gradient(weight, bias, x, g, count)
                if self._token is not None:
                    self._of_token(slopes[-1][:, 0], count)
        for weight, bias, x, _ in self._passed:
            if leaves[weight].dim() == 2:
                rows = x.flatten(0, -2)
                if bias:
                    rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
                add_to(self.inputs, weight, rows.T @ rows)
                self.rows[weight] = self.rows.get(weight, 0) + len(rows)

    def _gradient(self, weight: str, bias: str, x: Tensor, g: Tensor, draws: int) -> None:
        if self._params[weight].dim() == 2:
            rows = g.flatten(0, -2)
            tokens = len(rows) // len(g) if self._published else 1
            add_to(self.outputs, weight, rows.T @ rows / (draws * tokens))
            return
        for name, slope in ((weight, g * x), (bias, g)):
            if name:
                own = slope.flatten(1, -2).sum(1) if slope.dim() > 2 else slope  # of each image
                add_to(self.blocks, name, own.T @ own / draws)

    def _of_token(self, g: Tensor, draws: int) -> None:
        add_to(self.blocks, TOKEN, g.T @ g / draws)


class _Along(_Read):
    """The same, and the squares of each image's gradient along pairs of eigenvectors."""

    def __init__(
        self,
        params: Mapping[str, Tensor],
        inputs: dict[str, Tensor],
        outputs: dict[str, Tensor],
        published: bool,
    ) -> None:
        super().__init__(params, published)
        self.scales: dict[str, Tensor] = {}
        self._bases = inputs, outputs

    def _of_token(self, g: Tensor, draws: int) -> None:
        """Ignore the call: blocks are known."""

    def _gradient(self, weight: str, bias: str, x: Tensor, g: Tensor, draws: int) -> None:
        if self._params[weight].dim() != 2:
            return
        if bias:
            x = torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)
        U, V = (table[weight].to(x) for table in self._bases)
        along = (
            (g @ V).flatten(1, -2).mT @ (x @ U).flatten(1, -2)
            if x.dim() > 2
            else ((g @ V).unsqueeze(2) * (x @ U).unsqueeze(1))
        )
        add_to(self.scales, weight, along.square().sum(0) / draws)
