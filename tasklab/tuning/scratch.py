"""Small networks, and plain SGD to train them from scratch within seconds.

The paper on cross-task linearity starts with an MLP and a ResNet-18 (section 4.1, appendix C.1.1).
Both are encoders here whose features are logits, so code for the layers of an encoder
(`tasklab.models.blocks`) works on them.

    network = resnet18(seed=0, width=8)
    theta = train(network, network.params, data, epochs=10, lr=0.05, classes=range(5))
    accuracy(network, theta, test, classes=range(5))

The networks have a logit for every class of all tasks. A task that has only some of them is trained
and tested on these alone (`classes`): the others take no part in its softmax. That is the usual
way in continual learning, on whose benchmarks the paper runs.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn

from tasklab.errors import TasklabError
from tasklab.isolation import isolated
from tasklab.models.encoder import Encoder
from tasklab.tasks.drawn import Images

BATCH = 64  # images in a step: C.1.1
HIDDEN = 100  # units of the MLP's hidden layers: C.1.1
_TEST_BATCH = 250


@dataclasses.dataclass(frozen=True, eq=False)
class Network(Encoder):
    """A network to train from scratch: an encoder whose features are the logits of all classes.

    `params` are all its numbers, the running means and variances of batch normalisation among them,
    so interpolating two dictionaries interpolates these too, as averaging whole state dictionaries
    does.
    """

    def __call__(self, params: Mapping[str, Tensor], x: Tensor) -> Float[Tensor, "B K"]:
        """Return logits (B, K) of preprocessed images (B, C, H, W), in eval mode."""
        return torch.func.functional_call(self.module, dict(params), (x,))

    def preprocess(self, x: UInt8[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Return images with normalised channels, in the precision of the parameters."""
        shape = (len(self.mean), self.image_size, self.image_size)
        if tuple(x.shape[1:]) != shape:
            raise TasklabError(f"{self.name} takes images {shape}, not {tuple(x.shape[1:])}.")
        like = next(iter(self.params.values()))
        mean, std = (like.new_tensor(c).view(-1, 1, 1) for c in (self.mean, self.std))
        return (x.to(like) / 255 - mean) / std


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation whose eval mode has derivatives by its running statistics.

    These are numbers of a model like others: they are interpolated too.
    """

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Return normalised feature maps."""
        if self.training:
            return super().forward(x)
        assert self.running_mean is not None and self.running_var is not None
        scale = self.weight * torch.rsqrt(self.running_var + self.eps)
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


def mlp(seed: int = 0, width: int = HIDDEN) -> Network:
    """Return an MLP with random weights for digits of 28 x 28 pixels, after appendix C.1.1.

    It has four linear layers, "1 for input, 2 for hidden and 1 for output", and a ReLU after each
    but the last. Its blocks are the three ReLUs and the classifier. Pixels go from 0 to 1.
    """
    sizes = (28 * 28, width, width, width)
    with _seeded(seed):
        parts: list[tuple[str, nn.Module]] = [("flatten", nn.Flatten())]
        for i, (before, after) in enumerate(zip(sizes, sizes[1:], strict=False), 1):
            parts += [(f"linear{i}", nn.Linear(before, after)), (f"relu{i}", nn.ReLU())]
        parts.append(("classifier", nn.Linear(width, 10)))
        module = nn.Sequential(OrderedDict(parts))
    blocks = ("relu1", "relu2", "relu3", "classifier")
    return _network("mlp", module, blocks, 28, mean=(0.0,), std=(1.0,))


def resnet18(seed: int = 0, width: int = 64, stride: int = 1) -> Network:
    """Return a ResNet-18 with random weights for 100 classes of 32 x 32 pictures.

    Its stem is one 3 x 3 convolution without pooling, as usual for pictures of this size; the
    rest, names and initial weights included, is torchvision's. Its blocks are the 8 residual ones.

    Args:
        seed: Of the weights.
        width: Channels of the first stage; each later stage has twice those of the one before. 64
            is ResNet-18.
        stride: Of the stem; 2 halves the sides of all feature maps.
    """
    from torchvision.models.resnet import BasicBlock  # here, for it takes seconds

    with _seeded(seed):
        stem = nn.Conv2d(3, width, 3, stride, 1, bias=False)
        parts = [("conv1", stem), ("bn1", BatchNorm(width)), ("relu", nn.ReLU())]
        for i in range(4):
            out, step = width * 2**i, 1 if i == 0 else 2
            shortcut = None
            if i > 0:
                project = nn.Conv2d(out // 2, out, 1, step, bias=False)
                shortcut = nn.Sequential(project, BatchNorm(out))
            first = BasicBlock(out // 2 if i else out, out, step, shortcut, norm_layer=BatchNorm)
            second = BasicBlock(out, out, norm_layer=BatchNorm)
            parts.append((f"layer{i + 1}", nn.Sequential(first, second)))
        parts += [("avgpool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]
        parts.append(("fc", nn.Linear(8 * width, 100)))
        module = nn.Sequential(OrderedDict(parts))
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    blocks = tuple(f"layer{i}.{j}" for i in range(1, 5) for j in range(2))
    return _network("resnet18", module, blocks, 32, mean=(0.5,) * 3, std=(0.25,) * 3)


@isolated
def train(
    network: Network,
    params: Mapping[str, Tensor],
    data: Images,
    *,
    lr: float,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int = BATCH,
    seed: int = 0,
    momentum: float = 0.0,
    classes: Iterable[int] | None = None,
    log: Callable[[int, float], None] | None = None,
) -> dict[str, Tensor]:
    """Return the parameters after SGD on the cross-entropy of a task.

    Training has no augmentation, no weight decay and one learning rate (appendix C.1.1). Batch
    normalisation is in train mode and keeps its running statistics. Neither `params` nor the
    network changes. Give `epochs` or `steps`; 0 returns a copy of `params`.

    Args:
        network: The architecture.
        params: Parameters by name to begin with.
        data: Images and classes.
        lr: Learning rate. C.1.1: 0.1 for the MLP, 0.05 for the ResNet.
        epochs: Passes over the data; the last batch of a pass may be smaller.
        steps: Number of steps, in place of epochs.
        batch_size: Images per step.
        seed: Of the order of images.
        momentum: Of SGD.
        classes: Labels of the task; `None` is all.
        log: Called with every step (from 0) and its loss.
    """
    if (epochs is None) == (steps is None) or min(x for x in (epochs, steps) if x is not None) < 0:
        raise TasklabError(f"give epochs or steps, 0 or more: not {epochs} and {steps}.")
    count = len(data.y)
    total = (steps or 0) if epochs is None else epochs * math.ceil(count / batch_size)
    allowed = _allowed(network, data, classes)
    module = copy.deepcopy(network.module).requires_grad_(True).train()
    module.load_state_dict(dict(params), strict=False)
    if odd := sorted(network.params.keys() ^ params.keys()):
        raise TasklabError(f"these are not the parameters of {network.name}: see {odd[:5]}.")
    optimiser = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)
    for step, index in zip(range(total), _batches(count, batch_size, seed), strict=False):
        index = index.to(data.x.device)
        logits = _masked(module(network.preprocess(data.x[index])), allowed)
        value = F.cross_entropy(logits, data.y[index])
        value_now = float(value.detach())
        if not math.isfinite(value_now):
            raise TasklabError(
                f"training diverged at step {step}: loss {value_now}. Lower lr ({lr:g})."
            )
        if log is not None:
            log(step, value_now)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return {n: tensor.detach() for n, tensor in module.state_dict().items() if n in network.params}


def loss(
    network: Network,
    params: Mapping[str, Tensor],
    data: Images,
    classes: Iterable[int] | None = None,
) -> float:
    """Return the mean cross-entropy in eval mode, in nats.

    Args:
        network: The architecture.
        params: Parameters by name.
        data: Images and classes.
        classes: Classes that logits are compared over; by default all.
    """
    return float(F.cross_entropy(_logits(network, params, data, classes), data.y))


@isolated
def accuracy(
    network: Network,
    params: Mapping[str, Tensor],
    data: Images,
    classes: Iterable[int] | None = None,
) -> float:
    """Return the accuracy in % in eval mode.

    Args:
        network: The architecture.
        params: Parameters by name.
        data: Images and classes.
        classes: Classes that logits are compared over; by default all.
    """
    hits = _logits(network, params, data, classes).argmax(1) == data.y
    return 100 * float(hits.double().mean())


def _network(
    name: str,
    module: nn.Module,
    blocks: tuple[str, ...],
    size: int,
    mean: tuple[Any, ...],
    std: tuple[Any, ...],
) -> Network:
    module.eval().requires_grad_(False)
    state = module.state_dict().items()  # without the counters of batches, which do nothing here
    params = {key: tensor for key, tensor in state if tensor.is_floating_point()}
    device = torch.device("cpu")
    return Network(name, "random", module, params, blocks, size, mean, std, device)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _batches(count: int, size: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=generator).split(size)


def _allowed(
    network: Network, data: Images, classes: Iterable[int] | None
) -> Bool[Tensor, " K"] | None:
    if classes is None:
        return None
    last = list(network.params.values())[-1]  # the classifier's bias
    allowed = torch.zeros(len(last), dtype=torch.bool, device=data.y.device)
    allowed[torch.as_tensor(list(classes))] = True
    if not allowed[data.y].all():
        odd = data.y[~allowed[data.y]].unique().tolist()
        raise TasklabError(f"labels {odd} are not among the classes of the task.")
    return allowed


def _masked(logits: Float[Tensor, "B K"], allowed: Bool[Tensor, " K"] | None) -> Tensor:
    return logits if allowed is None else logits.masked_fill(~allowed, -math.inf)


@torch.no_grad()
def _logits(
    network: Network, params: Mapping[str, Tensor], data: Images, classes: Iterable[int] | None
) -> Float[Tensor, "N K"]:
    allowed = _allowed(network, data, classes)
    rows = [network(params, network.preprocess(x)) for x in data.x.split(_TEST_BATCH)]
    return _masked(torch.cat(rows), allowed)
