"""How good small image towers are, by validation images of the tasks: zero-shot, or by a probe."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasklab.mini.catalog import TASKS
from tasklab.mini.clip import normalise, tokenize
from tasklab.mini.sampling import sample
from tasklab.tasks.suites import suite

_kept = functools.lru_cache(maxsize=64)(sample)  # images that every evaluation looks at again


def zero_shot_accuracy(model: nn.Module, split: str = "val", n: int = 500) -> dict[str, float]:
    """Return the accuracy in % on n images of each task, by the names of its classes.

    Args:
        model: The model.
        split: `"train"`, `"val"` or `"test"`.
        n: How many of each task.
    """
    result = {}
    with frozen(model):
        for task in TASKS:
            images, labels = _kept(task["name"], split, n)
            text = model.encode_text(
                tokenize(suite("mini")[task["name"]].prompts()), normalize=True
            )
            head = F.normalize(text.view(len(task["classes"]), -1, text.shape[-1]).mean(1), dim=-1)
            guess = (features(model.encode_image, images) @ head.T).argmax(1)
            result[task["name"]] = 100 * (guess == labels).float().mean().item()
    return _with_mean(result)


def probe_accuracy(
    tower: nn.Module, split: str = "val", n: int = 500, fitted_to: int = 1000
) -> dict[str, float]:
    """Return the accuracy in % of linear probes on n images of each task.

    A probe is a logistic regression on standardised features of training images, with
    scikit-learn's usual penalty.

    Args:
        tower: Images as `normalise` gives them -> features.
        split: Which images to classify.
        n: How many of each task.
        fitted_to: How many training images of each task the probe sees.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    result = {}
    with frozen(tower):
        for task in TASKS:
            images, labels = _kept(task["name"], "train", fitted_to)
            probe = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-3, max_iter=1000))
            probe.fit(features(tower, images).double().numpy(), labels.numpy())
            images, labels = _kept(task["name"], split, n)
            guess = probe.predict(features(tower, images).double().numpy())
            result[task["name"]] = 100 * (torch.from_numpy(guess) == labels).float().mean().item()
    return _with_mean(result)


def features(tower: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return features (n, D) of uint8 images, computed in parts."""
    return torch.cat([tower(normalise(x)) for x in images.split(250)])


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode, without derivatives, and back."""
    training = model.training
    model.eval()
    with torch.no_grad():
        yield
    model.train(training)


def _with_mean(accuracy: dict[str, float]) -> dict[str, float]:
    """Return rounded accuracies and their mean over the eight tasks, without the control task."""
    mean = sum(accuracy[t["name"]] for t in TASKS if not t.get("control")) / 8
    return {name: round(value, 2) for name, value in {**accuracy, "mean of 8": mean}.items()}
