"""The parameters of a notebook (`Parameters`), checked when made and before anything else runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

from tasklab.errors import TasklabError, choose, real, unknown, whole
from tasklab.machine import BFLOAT16
from tasklab.models.zoo import INITS, TEXT_MODELS, choose_model, closed
from tasklab.tasks.suites import OWN, SUITES
from tasklab.tuning.recipe import (
    LONGER,
    PRECISIONS,
    PROBE_LR,
    QUICK_BATCH,
    QUICK_PROBE,
    QUICK_STEPS,
    SHIPPED_LR,
    USUAL_HEADS,
    FineTune,
    Probe,
    recipe,
)

PRESETS = ("quick", "full")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters that every notebook takes, checked.

    Numbers may come as strings, as some callers of papermill pass them.

    Attributes:
        model: One of `MODELS`, or the name of one of timm's, as in `"timm/resnet50.a1_in1k"`.
        suite: One of `SUITES`; `None` is what fits the model.
        init: One of `INITS`.
        head: `"zero_shot"`, `"trained"` or `"probe"`, as `FineTune` describes them; `None` is what
            fits the model.
        preset: `"quick"`, or `"full"` for the paper's protocol.
        seeds: How many, or which; `None` is one (quick) or three (full). Read as a tuple.
        steps: Fine-tuning steps; `None` is the recipe's.
        lr: Learning rate of fine-tuning, for every method; `None` is the recipe's.
        precision: Of fine-tuning, one of `PRECISIONS`; `None` is bfloat16 on a CUDA device that is
            fast at it, and float32 elsewhere. Shipped models always take float32 then: their
            numbers do not depend on the device. All evaluation is in float32.
        data_root: Folder of data sets that are not embedded.
        store_root: Folder of results; `None` is `$TASKLAB_STORE` or the user's cache.
        device: `"cpu"`, `"cuda"`, `"cuda:1"`, ...; `None` is CUDA if there. Read as a name.

    Raises:
        TasklabError: If a value is not possible; the message has the valid choices.
    """

    model: str = "mini"
    suite: str | None = None
    init: str = "pretrained"
    head: str | None = None
    preset: str = "quick"
    seeds: int | str | Iterable[int] | None = None
    steps: int | str | None = None
    lr: float | str | None = None
    precision: str | None = None
    data_root: Path | str | None = None
    store_root: Path | str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        """Check every field, and replace `None` by what it stands for."""
        choose_model(self.model)
        choose("init", self.init, INITS)
        choose("preset", self.preset, PRESETS)
        if self.head is not None:
            choose("head", self.head, USUAL_HEADS)
        if self.precision is not None:
            choose("precision", self.precision, PRECISIONS)
        if self.head == "zero_shot" and closed(self.model):
            raise TasklabError(
                f"model {self.model!r} has no text tower to make a zero-shot head: take "
                "head='probe'."
            )
        fitting = ("mini_text",) if self.model in TEXT_MODELS else ("mini", "paper", OWN)
        suite = fitting[0] if self.suite is None else self.suite
        choose("suite", suite, SUITES if suite != OWN else (OWN,))
        if suite not in fitting:
            raise TasklabError(
                f"model {self.model!r} does not read suite {suite!r}: leave it out, or give "
                f"{fitting[0]!r}."
            )
        settled = {
            "suite": suite,
            "seeds": _seeds(self.seeds, self.preset),
            "steps": None if self.steps is None else whole("steps", self.steps, 1),
            "lr": None if self.lr is None else real("lr", self.lr),
            "data_root": _folder("data_root", self.data_root),
            "store_root": _folder("store_root", self.store_root),
            "device": _device(self.device),
        }
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    @property
    def vocabulary(self) -> str:
        """`"open"` where heads are made of prompts, else `"closed"`."""
        own_heads = closed(self.model) if self.head is None else self.head != "zero_shot"
        return "closed" if own_heads else "open"

    def recipe(
        self,
        task: str,
        method: str,
        seed: int,
        *,
        batch_size: int | None = None,
        probe: Probe | None = None,
    ) -> FineTune:
        """Return the run of one task by one method that these parameters ask for.

        The preset `quick` takes fewer and smaller steps on a shipped model, and fewer images for a
        probe.
        """
        quick = self.preset == "quick" and self.model in SHIPPED_LR
        run = recipe(
            self.model,
            task,
            method,
            suite=self.suite,
            init=self.init,
            head=self.head,
            seed=seed,
            steps=self.steps or (QUICK_STEPS * LONGER.get(self.model, 1) if quick else None),
            batch_size=batch_size or (QUICK_BATCH if quick else None),
            probe=probe or (Probe(lr=PROBE_LR, **QUICK_PROBE) if quick else None),
            precision=self.precision or self._precision(),
        )
        return run if self.lr is None else dataclasses.replace(run, lr=self.lr)

    def _precision(self) -> str:
        if self.model in SHIPPED_LR or not str(self.device).startswith("cuda"):
            return "float32"
        import torch  # here, so that reading a configuration does not cost seconds

        # Of this device, which need not be the current one, about which PyTorch tells the same.
        fast = torch.cuda.get_device_capability(self.device) >= BFLOAT16
        return "bfloat16" if fast else "float32"


def _seeds(value: object, preset: str) -> tuple[int, ...]:
    if value is None:
        value = {"quick": 1, "full": 3}[preset]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        seeds = tuple(whole("each of seeds", one, 0) for one in value)
        if not seeds:
            raise TasklabError("seeds is empty: give a number of seeds, or a list such as [0, 1].")
        if len(set(seeds)) < len(seeds):
            raise TasklabError(f"seeds repeat: {list(seeds)}. A run counted twice shows no spread.")
        return seeds
    return tuple(range(whole("seeds", value, 1)))


def _folder(name: str, value: object) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value).strip():
        raise TasklabError(f"{name} must be the path of a folder, not {value!r}.")
    path = Path(value).expanduser()
    if path.exists() and not path.is_dir():
        raise TasklabError(f"{name} is {str(path)!r}, which is not a folder.")
    return path


def _device(value: object) -> str:
    if value is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", str(value)):
        raise unknown("device", value, ("cpu", "cuda", "cuda:0", "cuda:1"))
    if value == "cpu":
        return "cpu"
    import torch  # here, so that reading a configuration does not cost seconds

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if value is None:
        return "cuda" if count else "cpu"
    if int(str(value).partition(":")[2] or 0) >= count:
        raise TasklabError(f"device {value!r} is not there ({count} CUDA devices): use 'cpu'.")
    return str(value)
