"""What can be asked for: one fine-tuning run (`FineTune`) and the parameters of a notebook.

Both are frozen and complete, and check themselves when made, so that a misspelt choice fails in the
first cell and not after an hour. Sources of the defaults, named at each of them: *tangent* is Task
Arithmetic in the Tangent Space, appendix A; *linear layers* is Fine-Tuning Linear Layers Only,
appendix A, which repeats that protocol; *protocol* is the one both follow (Ilharco et al.).
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Iterable
from pathlib import Path

from tasklab.errors import TasklabError, unknown

METHODS = (
    "nonlinear",
    "linearized",
    "attention",
    "attention_bias",
    "attention_mlp",
    "attention_mlp_bias",
)
# Post-hoc: the vector of another method, used in the linearized model.
POSTHOC = {"posthoc": "nonlinear", "attention_posthoc": "attention"}
EDITS = (*METHODS, *POSTHOC)
MODELS = (
    "mini", "vitb32", "vitb16", "vitl14", "convnext", "vitb16_in1k", "t5_base",
    "mini_s", "mini_xs", "mini_convnext", "mini_sup_few", "mini_t5",
)  # fmt: skip
TEXT_MODELS = ("t5_base", "mini_t5")
CLOSED_MODELS = ("vitb16_in1k", "mini_sup_few")  # without a text tower
# Models that a chapter compares, by role.
FAMILIES = (
    {
        "small": "mini_xs",
        "medium": "mini_s",
        "large": "mini",
        "convnext": "mini_convnext",
        "closed": "mini_sup_few",
        "text": "mini_t5",
    },
    {
        "small": "vitb32",
        "medium": "vitb16",
        "large": "vitl14",
        "convnext": "convnext",
        "closed": "vitb16_in1k",
        "text": "t5_base",
    },
)
SUITES = ("mini", "mini_text")
HEADS = ("zero_shot", "trained")
INITS = ("pretrained", "random")
PRESETS = ("quick", "full")
PRECISIONS = ("float32", "bfloat16")

# Learning rates of the shipped models: one a method for all tasks, by single-task accuracy on
# validation images.
MINI_LR = {
    "nonlinear": 4e-4,
    "linearized": 8e-4,
    "attention": 1e-3,
    "attention_bias": 1e-3,
    "attention_mlp": 6e-4,
    "attention_mlp_bias": 6e-4,
}
MINI_STEPS, PAPER_STEPS = 60, 2000
MINI_BATCH, PAPER_BATCH = 64, 128
QUICK_STEPS, QUICK_BATCH = 45, 32  # of a shipped model, so that a report takes minutes
SHIPPED_LR: dict[str, dict[str, float]] = {
    name: MINI_LR for name in MODELS if name.startswith("mini")
}
# T5 starts further from its tasks; linearized, its scores, which nothing normalises, soon diverge.
SHIPPED_LR["mini_t5"] = MINI_LR | {"nonlinear": 2e-3, "linearized": 5e-4}
LONGER = {"mini_t5": 2}  # times the usual steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTune:
    """One fine-tuning run of one task.

    Attributes:
        task: Name of a task of `suite`.
        method: Which parameters train, and in which model; one of `METHODS`.
        model: One of `MODELS`.
        init: `"pretrained"`, or `"random"` for an untrained image encoder.
        suite: One of `SUITES`.
        head: `"zero_shot"`: made of prompts and frozen; `"trained"`: random, and trained with the
            encoder (tangent, appendix D.6).
        seed: Order of the images, and the random head.
        steps: 2,000 (tangent; linear layers).
        batch_size: 128 (tangent; linear layers).
        lr: Highest learning rate, 1e-5 (tangent; linear layers).
        weight_decay: 0.1 (protocol). It decays theta, not theta - theta_0, in every method.
        warmup: Steps of linear warm-up before the cosine, 200 (tangent; linear layers).
        clip: Largest gradient norm, 1.0 (protocol).
        beta1: AdamW's, 0.9 (its usual value; the papers name no other).
        beta2: AdamW's, 0.999 (likewise).
        precision: Of matrix products: `"float32"` or `"bfloat16"` (autocast); weights are float32.
        checkpoint_every: Steps between checkpoints. Changes no result.

    Raises:
        TasklabError: If a value is not possible.
    """

    task: str
    method: str = "nonlinear"
    model: str = "mini"
    init: str = "pretrained"
    suite: str = "mini"
    head: str = "zero_shot"
    seed: int = 0
    steps: int = PAPER_STEPS
    batch_size: int = 128
    lr: float = 1e-5
    weight_decay: float = 0.1
    warmup: int = 200
    clip: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.999
    precision: str = "float32"
    checkpoint_every: int = 50

    def __post_init__(self) -> None:
        """Check every field and give it its one type, so that equal runs have equal keys."""
        if not (isinstance(self.task, str) and self.task):
            raise TasklabError(f"task must be the name of a task, not {self.task!r}.")
        if self.method in POSTHOC:
            raise TasklabError(
                f"{self.method!r} is not a way to train: fine-tune with method "
                f"{POSTHOC[self.method]!r} and evaluate the task vector in the linearized model."
            )
        _choose("method", self.method, METHODS)
        _choose("model", self.model, MODELS)
        _choose("init", self.init, INITS)
        _choose("suite", self.suite, SUITES)
        _choose("head", self.head, HEADS)
        _choose("precision", self.precision, PRECISIONS)
        least = {"seed": 0, "steps": 1, "batch_size": 1, "warmup": 0, "checkpoint_every": 1}
        for name, low in least.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), low))
        for name in ("lr", "weight_decay", "clip", "beta1", "beta2"):
            value = _real(name, getattr(self, name))
            if name.startswith("beta") and value >= 1:
                raise TasklabError(f"{name} must be below 1, not {value}.")
            object.__setattr__(self, name, value)
        if self.clip == 0:
            raise TasklabError("clip is the largest gradient norm: 0 would stop all training.")

    def identity(self) -> dict[str, str | int | float]:
        """Return the fields that determine the result, for the key of the store."""
        fields = dataclasses.asdict(self)
        del fields["checkpoint_every"]  # a resumed run equals an uninterrupted one
        if self.head == "zero_shot":
            del fields["head"]  # what was computed before there was a choice is still valid
        return fields


def recipe(
    model: str,
    task: str,
    method: str,
    *,
    suite: str = "mini",
    init: str = "pretrained",
    seed: int = 0,
    steps: int | None = None,
    batch_size: int | None = None,
) -> FineTune:
    """Return the usual run of a method: the papers' protocol, or that of the shipped models.

    The recipe of shipped models differs from the protocol in steps (60), batch (64), learning rate
    (`SHIPPED_LR`) and beta2 (0.98, a memory of 50 steps). It keeps the weight decay: lr x decay x
    steps, the share of theta that decay removes, is then as in the papers (1.2e-3 against 2e-3).

    Args:
        model: One of `MODELS`.
        task: Name of a task of `suite`.
        method: One of `METHODS`.
        suite: One of `SUITES`.
        init: One of `INITS`.
        seed: Order of the images.
        steps: Instead of the recipe's. A tenth of the steps is warm-up, as in the papers.
        batch_size: Instead of the recipe's.

    Raises:
        TasklabError: If a choice does not exist or a number is not possible.
    """
    _choose("method", method, EDITS)  # `FineTune` then says what 'posthoc' is
    _choose("model", model, MODELS)
    mini = model in SHIPPED_LR
    usual = MINI_STEPS * LONGER.get(model, 1) if mini else PAPER_STEPS
    steps = whole("steps", usual if steps is None else steps, 1)
    if batch_size is None:
        batch_size = MINI_BATCH if mini else PAPER_BATCH
    rates = SHIPPED_LR.get(model, {})
    special = {"lr": rates[method], "beta2": 0.98} if method in rates else {}
    return FineTune(
        task=task,
        method=method,
        model=model,
        init=init,
        suite=suite,
        head="trained" if model in CLOSED_MODELS else "zero_shot",
        seed=seed,
        steps=steps,
        batch_size=batch_size,
        warmup=steps // 10,
        **special,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters that every notebook takes, checked.

    Numbers may come as strings, as some callers of papermill pass them.

    Attributes:
        model: One of `MODELS`.
        suite: One of `SUITES`; `None` is what fits the model.
        init: One of `INITS`.
        preset: `"quick"`, or `"full"` for the paper's protocol.
        seeds: How many, or which; `None` is one (quick) or three (full). Read as a tuple.
        steps: Fine-tuning steps; `None` is the recipe's.
        data_root: Folder of data sets that are not embedded.
        store_root: Folder of results; `None` is `$TASKLAB_STORE` or the user's cache.
        device: `"cpu"`, `"cuda"`, `"cuda:1"`, ...; `None` is CUDA if there. Read as a name.

    Raises:
        TasklabError: If a value is not possible; the message has the valid choices.
    """

    model: str = "mini"
    suite: str | None = None
    init: str = "pretrained"
    preset: str = "quick"
    seeds: int | str | Iterable[int] | None = None
    steps: int | str | None = None
    data_root: Path | str | None = None
    store_root: Path | str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        """Check every field, and replace `None` by what it stands for."""
        _choose("model", self.model, MODELS)
        _choose("init", self.init, INITS)
        _choose("preset", self.preset, PRESETS)
        fitting = "mini_text" if self.model in TEXT_MODELS else "mini"
        suite = fitting if self.suite is None else self.suite
        _choose("suite", suite, SUITES)
        if suite != fitting:
            raise TasklabError(
                f"model {self.model!r} does not read suite {suite!r}: leave it out, or give "
                f"{fitting!r}."
            )
        settled = {
            "suite": suite,
            "seeds": _seeds(self.seeds, self.preset),
            "steps": None if self.steps is None else whole("steps", self.steps, 1),
            "data_root": _folder("data_root", self.data_root),
            "store_root": _folder("store_root", self.store_root),
            "device": _device(self.device),
        }
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    def recipe(
        self, task: str, method: str, seed: int, *, batch_size: int | None = None
    ) -> FineTune:
        """Return the run of one task by one method that these parameters ask for.

        The preset `quick` takes fewer and smaller steps on a shipped model.
        """
        quick = self.preset == "quick" and self.model in SHIPPED_LR
        return recipe(
            self.model,
            task,
            method,
            suite=self.suite,
            init=self.init,
            seed=seed,
            steps=self.steps or (QUICK_STEPS * LONGER.get(self.model, 1) if quick else None),
            batch_size=batch_size or (QUICK_BATCH if quick else None),
        )


def family(model: str) -> dict[str, str]:
    """Return the models that a model is compared with, by role.

    >>> family("vitb16")["large"]
    'vitl14'
    """
    _choose("model", model, MODELS)
    return next(dict(roles) for roles in FAMILIES if model in roles.values())


def whole(name: str, value: object, least: int) -> int:
    """Return `value` as an integer of at least `least`, or raise a `TasklabError` with its name."""
    number = value
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        number = int(value)
    if isinstance(value, float) and value.is_integer():
        number = int(value)
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(number)
    except TypeError:
        raise TasklabError(f"{name} must be a whole number, not {value!r}.") from None
    if number < least:
        raise TasklabError(f"{name} must be at least {least}, not {number}.")
    return number


def _choose(kind: str, name: object, choices: tuple[str, ...]) -> None:
    if name not in choices:
        raise unknown(kind, name, choices)


def _real(name: str, value: object) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not (math.isfinite(number) and number >= 0):
        raise TasklabError(f"{name} must be a finite number of at least 0, not {value!r}.")
    return number


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
