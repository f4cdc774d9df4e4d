"""Two-fold cross-validation: accuracies on validation images by coefficients that others chose.

Test drawings of the second world are by other teams than its training drawings, and its validation
drawings are not. These choose coefficients, so that accuracies on them are biased. Each half of
a task's validation images here reports accuracies at what the other half chose (M.
Stone, Journal of the Royal Statistical Society B 36, 1974).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from tasklab.analyses.evaluation import Evaluator
from tasklab.errors import texts
from tasklab.evidence.declared import two_fold as declared
from tasklab.evidence.experiments.editing import addition, negation, single
from tasklab.evidence.experiments.kit import Lab, experiment, tidy
from tasklab.evidence.experiments.merging import merging
from tasklab.evidence.records.images import packed, unpacked
from tasklab.evidence.records.schema import ACCURACIES
from tasklab.tasks import drawn
from tasklab.tasks.drawn import Device, Images, Order, SuiteImages
from tasklab.tasks.suites import Suite

EDITS = {"single": single, "addition": addition, "negation": negation, "merging": merging}
_SUMS = ("addition", "merging")
_OWN = ("value", "n", "hits", "alpha")  # of one half


@dataclasses.dataclass(frozen=True)
class Halves:
    """Images of a suite, with halves of its validation images in place of two splits."""

    images: SuiteImages  #: The suite's own
    reports: int  #: Which half, 0 or 1, stands for the test images; the other chooses

    @property
    def suite(self) -> Suite:
        """The tasks."""
        return self.images.suite

    def load(
        self, task: str, split: str, *, n: int | None = None, device: Device = "cpu"
    ) -> Images:
        """Return a split, or its first n images: every second one of the validation images.

        Args:
            task: Name of a task.
            split: `"train"`, which is the suite's own, `"val"` or `"test"`.
            n: Only the first n images; `None` for all.
            device: Where the model or the images are to be.
        """
        if split == "train":
            return self.images.load(task, split, n=n, device=device)
        n = drawn.count_of(n, self.size(task, split), f"half of {task}/val")
        whole = self.images.load(task, "val", device=device)

        def half(part: Tensor) -> Tensor:
            return part[self._first(split) :: 2][:n].contiguous()

        return Images(half(whole.x), half(whole.y))

    def _first(self, split: str) -> int:
        return self.reports if split == "test" else 1 - self.reports

    def size(self, task: str, split: str) -> int:
        """Return the number of images of a split."""
        if split == "train":
            return self.images.size(task, split)
        return (self.images.size(task, "val") + 1 - self._first(split)) // 2

    def version(self, task: str, split: str) -> str:
        """Return the identity of a split's images, for the key of a result."""
        if split == "train":
            return self.images.version(task, split)
        return f"{self.images.version(task, 'val')}/{self._first(split)}of2"

    def identity(self, task: str) -> dict[str, Any]:
        """Return further entries of a training run's key."""
        return self.images.identity(task)

    def batches(
        self, task: str, order: Order, steps: range, *, seed: int, device: Device
    ) -> Iterator[Images]:
        """Yield the training images of each step; arguments of `SuiteImages.batches`."""
        return self.images.batches(task, order, steps, seed=seed, device=device)


@experiment(declared.TWO_FOLD)
def two_fold(
    lab: Lab,
    methods: Sequence[str],
    of: Sequence[str] | str = ("single", "addition", "negation"),
    merges: Sequence[str] = (),
    n_tasks: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Measure edits on validation images, each half at the coefficients that the other half chose.

    Args:
        lab: Model, tasks, seeds, scale and store.
        methods: Any of `EDITS`.
        of: Experiments whose test images are replaced: `"single"`, `"addition"`, `"negation"`.
        merges: Merges that are searched as well (`merging`); by default none.
        n_tasks: Numbers of tasks whose vectors are added; by default those of the preset.
    """
    options: dict[str, Any] = {name: {} for name in texts("of", of, [*EDITS][:-1])}
    options |= {"merging": {"merges": merges}} if merges else {}
    for name in options.keys() & {*_SUMS}:
        options[name]["n_tasks"] = n_tasks
    halves = [_judged_on(lab, half) for half in (0, 1)]
    rows = pd.concat([EDITS[n](one, methods, **options[n]) for n in options for one in halves])
    rows = rows[(rows["split"] == "test") & rows["experiment"].isin(options)]
    rows = rows[rows["metric"].isin(ACCURACIES)]
    own = [name for name in rows.columns if name in (*_OWN, "trials", "option")]
    keys = [name for name in rows.columns if name not in own]
    whole = [
        dict(zip(keys, key, strict=True)) | _whole(part)
        for key, part in rows.groupby(keys, sort=False, dropna=False)
    ]
    return tidy(pd.DataFrame(whole).assign(experiment="two_fold", split="validation"))


def _judged_on(lab: Lab, half: int) -> Lab:
    """Return a lab whose test images are one half of the validation images."""
    other = copy.copy(lab)
    other.suite = dataclasses.replace(lab.suite, data=Halves(drawn.images_of(lab.suite), half))
    other.evaluator = Evaluator(lab.clip, other.suite, lab.store, counts=lab.scale.counts)
    other.__dict__.pop("trainer", None)  # cached: of the former suite
    return other


def _whole(halves: pd.DataFrame) -> dict[str, Any]:
    """Return both halves' accuracy as that of all their images."""
    n = halves["n"].to_numpy(dtype=int)
    value = float(np.average(halves["value"], weights=n))
    row: dict[str, Any] = {"value": value, "n": int(n.sum()), "alpha": halves["alpha"].mean()}
    if "hits" in halves and halves["hits"].notna().all():
        right = [unpacked(text, count) for text, count in zip(halves["hits"], n, strict=True)]
        row["hits"] = packed(np.concatenate(right))
    return row
