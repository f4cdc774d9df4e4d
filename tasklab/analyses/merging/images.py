"""Statistics of a task's images for merges: Gram matrices of inputs, Fisher information.

Both are taken at the task's own model, theta_0 + tau_t:

    theta = tau.apply(encoder.params)
    G = grams(encoder, images, params=theta)
    F = fisher_diagonals(encoder, head, images, params=theta)

Letters: N images, I inputs of a layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from tasklab.analyses.finite import finite
from tasklab.analyses.merging.pooled import packed, unpacked
from tasklab.analyses.merging.vectors import is_matrix
from tasklab.analyses.projections import Inputs
from tasklab.errors import TasklabError, whole
from tasklab.errors import seed as checked_seed
from tasklab.isolation import isolated
from tasklab.models.encoder import Encoder, math_attention
from tasklab.models.heads import Head
from tasklab.storage.placement import placed
from tasklab.sums import add_to
from tasklab.taskvector import TaskVector
from tasklab.tuning import memory

_IMAGES, _ROWS = 64, 4096  # in one pass, and of inputs that are in float64 at a time


Reader = Callable[[TaskVector, Collection[str]], dict[str, Tensor]]


@isolated
def of_images(
    needs: str, encoder: Encoder, head: Head, images: Tensor, vector: TaskVector, *, linear: bool
) -> dict[str, Tensor] | Reader:
    """Return a merge's statistics of a task's images, at the task's own model.

    A tangent vector has no model of its own: statistics are taken at theta_0.

    Args:
        needs: `"grams"`, `"diagonals"` of Fisher information, or `"readers"`: a function of a
            vector and names that returns these parameters' Gram matrices at theta_0 + the vector.
        encoder: The encoder, in eval mode; it is not changed.
        head: The task's classifier.
        images: Preprocessed training images (N, 3, H, W).
        vector: The task's own vector.
        linear: Whether the vector belongs in the linearized model.
    """

    def read(at: TaskVector, names: Collection[str]) -> dict[str, Tensor]:
        params = None if linear else at.apply(encoder.params)
        return grams(encoder, images, params=params, names=names)

    if needs == "readers":
        return read
    if needs == "grams":
        return read(vector, vector)
    params = None if linear else vector.apply(encoder.params)
    return fisher_diagonals(encoder, head, images, params=params, names=vector)


@isolated
def grams(
    encoder: Encoder,
    images: Tensor,
    *,
    params: Mapping[str, Tensor] | None = None,
    names: Collection[str] | None = None,
    batch_size: int = 256,
) -> dict[str, Float[Tensor, "I I"]]:
    """Return G = X' X / n of each matrix's inputs, X the rows of all images and tokens.

    Sums are in float64 and divided by the number of rows, so that each task weighs the same; G has
    the parameters' type. The scales of a normalisation act on each input alone: for them only the
    diagonal of G is returned.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        images: Preprocessed images (N, 3, H, W).
        params: Parameters of the model whose inputs are read; by default theta_0.
        names: Only these parameters; by default all.
        batch_size: Images per pass; fewer where memory is short.

    Returns:
        A matrix for each named weight of a linear layer or of `nn.MultiheadAttention`, and a
        diagonal (I,) for the scales of an `nn.LayerNorm`, by name.
    """
    if len(images) == 0:
        raise TasklabError("Gram matrices need at least one image.")
    theta = {**encoder.params, **placed(params or {}, encoder.device)}
    names = _known(names, theta)
    weights = {n: theta[n] for n in names if is_matrix(n, theta[n]) or theta[n].dim() == 1}

    def of_batch(batch: Tensor) -> dict[str, tuple[Tensor, int]]:
        products: dict[str, Tensor] = {}
        rows: Counter[str] = Counter()

        def add(name: str, x: Tensor) -> None:
            x = x.reshape(-1, x.shape[-1])
            parts = (part.double() for part in x.split(_ROWS))
            if weights[name].dim() == 1:
                product = sum(part.square().sum(0) for part in parts)
            else:
                product = packed(sum(part.T @ part for part in parts))
            add_to(products, name, product)
            rows[name] += len(x)

        with math_attention(), Inputs(weights, add):
            for few in batch.split(_IMAGES):  # what is between the layers stays small beside sums
                encoder(theta, encoder.preprocess(few))
        return {name: (product, rows[name]) for name, product in products.items()}

    sums: dict[str, Tensor] = {}
    counts: Counter[str] = Counter()
    with torch.no_grad():
        for products in memory.Parts(batch_size)(of_batch, images, "Gram matrices"):
            for name in list(products):
                product, count = products.pop(name)
                add_to(sums, name, product)
                counts[name] += count
    if not any(weights[name].dim() == 2 for name in sums):
        raise TasklabError(f"{encoder.name} has no linear layer whose inputs could be read.")
    made = {}
    for name, count in counts.items():  # a sum goes when its matrix comes
        G = (sums.pop(name) / count).to(theta[name].dtype)
        G = finite(G, f"the Gram matrix of {name}")
        made[name] = G if weights[name].dim() == 1 else unpacked(G)
    return made


@isolated
def fisher_diagonals(
    encoder: Encoder,
    head: Head,
    images: Tensor,
    *,
    params: Mapping[str, Tensor] | None = None,
    names: Collection[str] | None = None,
    draws: int = 1,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Return the diagonal of the Fisher information, F = E_x E_y (d log p(y | x) / d theta)^2.

    The labels y are drawn from the model's own predictions, so that images need none
    (arXiv:2111.09832). Each image and draw takes a backward pass.

    Args:
        encoder: The encoder, in eval mode; it is not changed.
        head: The task's classifier.
        images: Preprocessed images (N, 3, H, W), without labels.
        params: Where the gradient is taken; by default theta_0.
        names: Only these parameters; by default all.
        draws: Labels drawn per image.
        seed: Of the drawn labels.

    Returns:
        F by the parameter's name, in its shape and type.
    """
    if len(images) == 0:
        raise TasklabError("Fisher information needs at least one image.")
    theta = {**encoder.params, **placed(params or {}, encoder.device)}
    draws = whole("draws", draws, 1)
    theta |= {name: theta[name].detach().requires_grad_() for name in _known(names, theta)}
    leaves = {name: x for name, x in theta.items() if x.requires_grad}
    numbers = torch.Generator().manual_seed(checked_seed("seed", seed))
    sums = {name: torch.zeros_like(x, requires_grad=False) for name, x in leaves.items()}
    for image in images:
        with torch.enable_grad(), math_attention():
            logits = head(encoder(theta, encoder.preprocess(image[None])))[0]
        chances = finite(logits.detach(), "logits").double().softmax(0).cpu()
        labels = torch.multinomial(chances, draws, replacement=True, generator=numbers)
        for i, label in enumerate(labels.tolist()):
            loss, again = logits.log_softmax(0)[label], {"retain_graph": i + 1 < draws}
            parts = torch.autograd.grad(loss, [*leaves.values()], **again, materialize_grads=True)
            for total, part in zip(sums.values(), parts, strict=True):
                total.addcmul_(part, part)
    many = len(images) * draws
    return {name: finite(x / many, f"the Fisher information of {name}") for name, x in sums.items()}


def _known(names: Collection[str] | None, theta: Mapping[str, Tensor]) -> Collection[str]:
    if unknown := [name for name in names or () if name not in theta]:
        raise TasklabError(f"the model has no parameter {unknown[0]!r}.")
    return names or theta
