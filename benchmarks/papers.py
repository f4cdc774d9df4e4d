"""The papers' own procedures, as their published code computes them: what tasklab is compared with.

Every evaluation loads a model's weights into a copy of the network and goes through a `DataLoader`,
whose images pass the library's transform one by one. Nothing is kept from one evaluation to the
next. What is left out is reading and decoding of image files, but where the loader itself is
measured: images lie in memory.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import open_clip
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision.transforms.functional import to_pil_image

from tasklab.analyses.disentanglement import symmetric_kl
from tasklab.models.encoder import Encoder, math_attention
from tasklab.tuning.finetune import learning_rate
from tasklab.tuning.recipe import FineTune

Vector = Mapping[str, Tensor]


def batches(
    encoder: Encoder,
    images: Tensor | Sequence[Path],
    size: int,
    labels: Tensor | None = None,
    *,
    crops: bool = False,
) -> DataLoader:
    """Return a loader of images, in order, and of their labels if there are any.

    Args:
        encoder: Whose transform they pass.
        images: (N, 3, h, w) from 0 to 255, or files.
        size: Images in a batch.
        labels: (N,).
        crops: Whether it is the transform of training, with random crops.
    """
    side, mean, std = encoder.image_size, encoder.mean, encoder.std
    held = isinstance(images, Tensor)
    transform = open_clip.image_transform(side, is_train=crops, mean=mean, std=std)
    pictures = [to_pil_image(image) for image in images] if held else list(images)

    class Pictures(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(pictures)

        def __getitem__(self, number: int) -> Tensor | tuple[Tensor, Tensor]:
            picture = pictures[number] if held else Image.open(pictures[number]).convert("RGB")
            return transform(picture) if labels is None else (transform(picture), labels[number])

    return DataLoader(Pictures(), batch_size=size, num_workers=0)


def train(encoder: Encoder, head, loader: DataLoader, names, config: FineTune) -> list[float]:
    """Return the losses of fine-tuning, a step for each batch of a loader.

    Args:
        encoder: The pre-trained model.
        head: Features -> logits, frozen.
        loader: Images and labels.
        names: Of the parameters that train.
        config: Its rates, decay and clipping.
    """
    model, losses = copy.deepcopy(encoder.module), []
    for name, value in model.named_parameters():
        value.requires_grad_(name in names)
    moving = [value for value in model.parameters() if value.requires_grad]
    betas = config.beta1, config.beta2
    optimiser = torch.optim.AdamW(
        moving, lr=config.lr, betas=betas, weight_decay=config.weight_decay
    )
    for step, (x, y) in enumerate(loader):
        optimiser.param_groups[0]["lr"] = learning_rate(config, step)
        loss = cross_entropy(head(model(x.to(encoder.device))), y.to(encoder.device))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(moving, config.clip)
        optimiser.step()
        losses.append(loss.item())
    return losses


def apply(encoder: Encoder, vectors: Sequence[Vector], alphas: Sequence[float]) -> nn.Module:
    """Return a copy of the network with the vectors added (`TaskVector.apply_to`).

    Args:
        encoder: The pre-trained model.
        vectors: Task vectors.
        alphas: A coefficient each.
    """
    state = {name: value.clone() for name, value in encoder.params.items()}
    for vector, alpha in zip(vectors, alphas, strict=True):
        state = {name: value + alpha * vector[name] for name, value in state.items()}
    model = copy.deepcopy(encoder.module)
    model.load_state_dict(state, strict=False)  # buffers stay
    return model.eval()


def linearize(encoder: Encoder, vectors: Sequence[Vector], alphas: Sequence[float]) -> nn.Module:
    """Return the linearized model with the vectors added (tangent paper, listing 1).

    Args:
        encoder: The pre-trained model.
        vectors: Task vectors.
        alphas: A coefficient each.
    """
    start = encoder.params
    change = {
        name: sum(a * v[name] for v, a in zip(vectors, alphas, strict=True)) for name in start
    }

    class Linearized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            call = lambda params: torch.func.functional_call(encoder.module, params, (x,))  # noqa: E731
            with math_attention():
                value, tangent = torch.func.jvp(call, (start,), (change,))
            return value + tangent

    return Linearized()


@torch.no_grad()
def features(model: nn.Module, loader: DataLoader, device: torch.device) -> Tensor:
    """Return the features (N, D) of all images of a loader.

    Args:
        model: As `apply` and `linearize` return it.
        loader: Images.
        device: Where the model is.
    """
    return torch.cat([model(x.to(device)) for x in loader])


def sweep(build, encoder: Encoder, vector: Vector, loader, head, alphas) -> list[Tensor]:
    """Return the predicted classes at each coefficient: an evaluation each.

    Args:
        build: `apply` or `linearize`.
        encoder: The pre-trained model.
        vector: What is added.
        loader: The images.
        head: Features -> logits.
        alphas: Coefficients.
    """
    models = (build(encoder, [vector], [alpha]) for alpha in alphas)
    return [head(features(model, loader, encoder.device)).argmax(-1).cpu() for model in models]


def error_cell(build, encoder: Encoder, vectors, loaders, heads, at) -> tuple[float, float]:
    """Return a cell of both maps of the disentanglement error (tangent paper, equation 3).

    Args:
        build: `apply` or `linearize`.
        encoder: The pre-trained model.
        vectors: Two task vectors.
        loaders: Images of both tasks.
        heads: Of both tasks.
        at: Both coefficients.
    """
    classifier = representation = 0.0
    for loader, head, own, alpha in zip(loaders, heads, vectors, at, strict=True):
        alone = features(build(encoder, [own], [alpha]), loader, encoder.device)
        both = features(build(encoder, vectors, at), loader, encoder.device)
        changed = head(alone).argmax(-1) != head(both).argmax(-1)
        classifier += 100 * changed.double().mean().item()
        representation += symmetric_kl(alone, both).mean().item()
    return classifier, representation


@torch.no_grad()
def block_features(encoder: Encoder, model: nn.Module, loaders) -> list[Tensor]:
    """Return what each block gives, and the features, of the images of several loaders.

    Args:
        encoder: Whose blocks they are.
        model: A copy of its network with other weights.
        loaders: The images.
    """
    kept: list[list[Tensor]] = [[] for _ in (*encoder.blocks, "features")]
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda module, given, made, place=place: place.append(made.flatten(1))
        )
        for name, place in zip(encoder.blocks, kept, strict=False)
    ]
    for x in itertools.chain(*loaders):
        kept[-1].append(model(x.to(encoder.device)))
    for hook in hooks:
        hook.remove()
    return [torch.cat(place) for place in kept]


def linearity(encoder: Encoder, one: Vector, two: Vector, alpha: float, loaders) -> list[float]:
    """Return 1 - cos at each layer between two models, and compute what the paper plots beside it.

    Features of the merged model and of both models are collected over the images of both tasks, and
    compared afterwards (cross-task linearity, section 4.1).

    Args:
        encoder: The pre-trained model.
        one: A task vector.
        two: Another.
        alpha: Of the first model; the second has 1 - alpha.
        loaders: Images of both tasks.
    """
    models = ([(one, alpha), (two, 1 - alpha)], [(one, 1.0)], [(two, 1.0)])
    collected = [
        block_features(encoder, apply(encoder, *zip(*terms, strict=True)), loaders)
        for terms in models
    ]

    def compare(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 - cos and the coefficient, in float64: they are differences of near numbers."""
        x, y = x.double(), y.double()
        product, size = (x * y).sum(1), y.norm(dim=1)
        return (1 - product / (x.norm(dim=1) * size)).mean(), (product / size**2).mean()

    found = []
    for u, i, j in zip(*collected, strict=True):
        told = [
            compare(u, alpha * i + (1 - alpha) * j),
            compare(i, j),
            compare(u, i),
            compare(u, j),
        ]
        found.append(told[0][0].item())
    return found
