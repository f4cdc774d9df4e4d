"""DINO: an image tower that learns to agree with its own past about views of a picture.

    loss = mean over views v, v' of a picture, v' != v, v global:
           - softmax((teacher(v) - c) / 0.04) . log softmax(student(v') / 0.1)

[Caron et al., 2021, section 3.1]: the teacher is an exponential moving average of the student and
sees the global views only, its outputs are centred by their moving average c. Loss, centre and
projection head are lightly's, the augmentations torchvision's. What is ours is the scale: smaller
crops, fewer of them, and no mirroring, which would turn letters and signs into others.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from pretraining import views
from pretraining.evaluate import probe_accuracy
from pretraining.loop import Recipe
from pretraining.objectives import pool_of
from tasklab.errors import TasklabError
from tasklab.mini import vit
from tasklab.mini.clip import normalise

# Of the paper's: temperatures, centre momentum, share of a picture in a crop, size of a local crop
# (96 of 224). The paper has 65,536 outputs, hidden width 2,048, bottleneck 256 and 8 local crops
# for a million photographs and 300 epochs; its teacher's momentum starts at 0.996 and rises to 1
# over a hundred times as many steps.
SETTINGS = {
    "outputs": 1024,
    "hidden": 512,
    "bottleneck": 128,
    "teacher_temperature": 0.04,
    "student_temperature": 0.1,
    "centre_momentum": 0.9,
    "teacher_momentum": 0.99,
    "global_crops": 2,
    "local_crops": 2,
    "global_share": (0.4, 1.0),
    "local_share": (0.1, 0.4),
    "local_size": 16,
    "solarised": (0.0, 0.2, 0.0, 0.0),  # probability for each view
}


def _lightly():
    """Return lightly's modules of losses, heads and helpers."""
    try:
        from lightly import loss
        from lightly.models import modules, utils
        from lightly.utils import scheduler
    except ImportError as error:
        raise TasklabError(
            "pre-training by DINO needs the library lightly: pip install 'tasklab[pretrain]'"
        ) from error
    return loss, modules, utils, scheduler


class Distillation(nn.Module):
    """Student, teacher and the loss between them, whose centre is a buffer."""

    def __init__(self, name: str, settings: dict) -> None:
        super().__init__()
        losses, modules, _, _ = _lightly()
        width = vit.TOWERS[name]["embed_dim"]

        def network() -> nn.ModuleDict:
            with warnings.catch_warnings():  # lightly's head has torch's earlier weight_norm
                warnings.simplefilter("ignore", FutureWarning)
                head = modules.DINOProjectionHead(
                    width, settings["hidden"], settings["bottleneck"], settings["outputs"]
                )
            return nn.ModuleDict({"tower": vit.build(name, dynamic_img_size=True), "head": head})

        self.student, self.teacher = network(), network()
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        self.loss = losses.DINOLoss(
            settings["outputs"],
            teacher_temp=settings["teacher_temperature"],
            student_temp=settings["student_temperature"],
            center_momentum=settings["centre_momentum"],
        )

    def forward(self, views: list[Tensor], shared: int, autocast=nullcontext) -> Tensor:
        """Return the loss; the first `shared` views are those that the teacher sees.

        Args:
            views: Batches of views, uint8 or float (n, 3, S, S).
            shared: How many of them the teacher sees.
            autocast: Context of the passes.
        """
        seen = torch.cat(views[:shared])
        with autocast():
            with torch.no_grad():
                targets = self.teacher["head"](self.teacher["tower"](seen)).chunk(shared)
            predictions = list(self.student["head"](self.student["tower"](seen)).chunk(shared))
            rest = views[shared:]
            if rest:
                local = self.student["tower"](torch.cat(rest))
                predictions += self.student["head"](local).chunk(len(rest))
        return self.loss(
            [x.to(views[0].dtype) for x in targets], [x.to(views[0].dtype) for x in predictions]
        )


class SelfDistillation:
    """An image tower that learns to agree with a moving average of itself.

    Args:
        name: Name of the model.
        recipe: How it is pre-trained.
        pool: Folder of pools.
    """

    def __init__(self, name: str, recipe: Recipe, pool: Path) -> None:
        self.name, self.recipe, self.settings = name, recipe, SETTINGS
        self.pool = pool_of(recipe, pool)
        self.momentum = 1.0

    def model(self) -> nn.Module:
        """Return the model to train: student, teacher and loss."""
        return Distillation(self.name, self.settings)

    def shard(self, index: int) -> tuple[Tensor]:
        """Return pictures."""
        return (self.pool.turn(index)["images"],)

    def loss(self, model: nn.Module, images: Tensor, step: int) -> Tensor:
        """Return the loss of a step. Views come from torch's global seed.

        Args:
            model: The model.
            images: Images, uint8 (n, 3, S, S).
            step: Number of the step.
        """
        start = self.settings["teacher_momentum"]
        self.momentum = _lightly()[3].cosine_schedule(step, self.recipe.steps, start, 1.0)
        shared, size = self.settings["global_crops"], self.settings["local_size"]
        wide, narrow = self.settings["global_share"], self.settings["local_share"]
        sizes = [(vit.SIZE, wide)] * shared + [(size, narrow)] * self.settings["local_crops"]
        seen = [
            normalise(255 * views.view(images, s, share, solarised=p))
            for (s, share), p in zip(sizes, self.settings["solarised"], strict=True)
        ]
        return model(seen, shared, lambda: self.recipe.autocast(images.device))

    @torch.no_grad()
    def after_step(self, model: nn.Module) -> None:
        """Move the teacher a little towards the student."""
        _lightly()[2].update_momentum(model.student, model.teacher, self.momentum)

    def evaluate(self, model: nn.Module, n: int) -> dict[str, float]:
        """Return accuracies of linear probes on n validation images of each task."""
        return probe_accuracy(self.shipped(model), n=n, fitted_to=2 * n)

    def shipped(self, model: nn.Module) -> nn.Module:
        """Return the teacher's tower, as DINO does; the heads are thrown away."""
        tower = vit.build(self.name)
        tower.load_state_dict(model.teacher["tower"].state_dict())
        return tower
