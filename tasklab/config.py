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
from tasklab.machine import BFLOAT16

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
# Encoder and head together: method `nonlinear` with a head that trains (closed vocabulary, app. G).
FULL = "full"
EDITS = (*METHODS, *POSTHOC, FULL)
MODELS = (
    "mini", "vitb32", "vitb16", "vitl14", "convnext", "vitb16_in1k", "t5_base",
    "mini_s", "mini_xs", "mini_convnext", "mini_sup_few", "mini_t5",
    "vitb16_in21k", "vitl16_in21k", "mae_b16", "dino_b16",
    "clip_b16_laion400m", "clip_b16_laion2b", "clip_l14_laion2b",
    "mini_few", "mini_many", "mini_mae", "mini_dino",
    "mini_clip_less", "mini_clip_more", "mini_clip_large",
)  # fmt: skip
TIMM = "timm/"  # before the name of any model of timm's: one without a text tower
TEXT_MODELS = ("t5_base", "mini_t5")
CLOSED_MODELS = (  # without a text tower
    "vitb16_in1k", "vitb16_in21k", "vitl16_in21k", "mae_b16", "dino_b16",
    "clip_b16_laion400m", "clip_b16_laion2b", "clip_l14_laion2b",
    "mini_sup_few", "mini_few", "mini_many", "mini_mae", "mini_dino",
    "mini_clip_less", "mini_clip_more", "mini_clip_large",
)  # fmt: skip
# Models that a chapter compares, by role. From `sup_few` on, they are the schemes of the
# closed-vocabulary paper, table 2: `few` and `many` classes, CLIP on `less` and on `more` data.
FAMILIES = (
    {
        "small": "mini_xs",
        "medium": "mini_s",
        "large": "mini",
        "convnext": "mini_convnext",
        "closed": "mini_sup_few",
        "text": "mini_t5",
        "sup_few": "mini_few",
        "sup_many": "mini_many",
        "mae": "mini_mae",
        "dino": "mini_dino",
        "clip_less": "mini_clip_less",
        "clip_more": "mini_clip_more",
        "sup_large": "mini_sup_few",  # on few classes; the paper's is on many
        "clip_large": "mini_clip_large",
    },
    {
        "small": "vitb32",
        "medium": "vitb16",
        "large": "vitl14",
        "convnext": "convnext",
        "closed": "vitb16_in1k",
        "text": "t5_base",
        "sup_few": "vitb16_in1k",
        "sup_many": "vitb16_in21k",
        "mae": "mae_b16",
        "dino": "dino_b16",
        "clip_less": "clip_b16_laion400m",
        "clip_more": "clip_b16_laion2b",
        "sup_large": "vitl16_in21k",
        "clip_large": "clip_l14_laion2b",
    },
)
SUITES = ("mini", "mini_text", "paper")
OWN = "own"  # the suite of the tasks that a Lab is given, in place of one of these
HEADS = ("zero_shot", "trained", "probe", "zero_shot_trained")
USUAL_HEADS = HEADS[:3]  # of a notebook; the last is what `full` makes of the first
SOLVERS = ("adamw", "lbfgs")
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
# A rate of probes that the search of appendix C supports for all shipped models, by validation.
PROBE_LR = 0.1
QUICK_PROBE = {"steps": 500, "images": 1500}
SHIPPED_LR: dict[str, dict[str, float]] = {
    name: MINI_LR for name in MODELS if name.startswith("mini")
}
# T5 starts further from its tasks; linearized, its scores, which nothing normalises, soon diverge.
SHIPPED_LR["mini_t5"] = MINI_LR | {"nonlinear": 2e-3, "linearized": 5e-4}
LONGER = {"mini_t5": 2}  # times the usual steps
# Where they differ if a probe comes first, or the head trains along (`full`), by validation as
# well: after probing 4e-4 is as good as its neighbours, but a random head needs more. Encoders that
# learnt without labels have more to learn: MAE 30.2, 31.7, 33.5, 34.2, 32.9 % at 2, 4, 8, 16,
# 32e-4, DINO 37.6, 40.3, 42.5, 42.5 % at 4 to 32e-4 (validation, mean of eight tasks).
_UNLABELLED = {"full": 2e-3, "nonlinear": 1.6e-3, "linearized": 3.2e-3, "attention": 4e-3}
CLOSED_LR: dict[str, dict[str, float]] = {
    name: _UNLABELLED if name in ("mini_mae", "mini_dino") else {"full": 1e-3}
    for name in CLOSED_MODELS
    if name.startswith("mini")
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """How a linear probe is fitted to the features of a task's training images.

    Attributes:
        solver: `"adamw"`: the paper's protocol (closed vocabulary, appendix C); `"lbfgs"`: to the
            minimum of a convex problem, without learning rate, steps, batches or seed. On
            validation images of `mini_sup_few` the first is as good (54.9 %) as the second with
            its penalty lowered to 1e-5 (55.4 %) and better than with 1e-4 (51.6 %), in a sixth of
            the time, so that shipped models take it too.
        lr: Of AdamW; `None` searches `probes.RATES` on the stand-in for Cars, as the paper does.
        steps: Of AdamW, 2,000 (appendix C), a tenth of them warm-up, then a cosine.
        batch_size: 128 (appendix C).
        weight_decay: Of AdamW, 0.1 (protocol).
        images: Only the first so many training images; `None` for all.

    Raises:
        TasklabError: If a value is not possible.
    """

    solver: str = "adamw"
    lr: float | None = None
    steps: int = PAPER_STEPS
    batch_size: int = PAPER_BATCH
    weight_decay: float = 0.1
    images: int | None = None

    def __post_init__(self) -> None:
        """Check every field and give it its one type."""
        _choose("solver", self.solver, SOLVERS)
        for name in ("steps", "batch_size", "images"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole(name, value, 1))
        for name in ("lr", "weight_decay"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _real(name, value))

    def identity(self) -> dict[str, str | int | float | None]:
        """Return the fields that determine the result, for the key of the store."""
        if self.solver == "lbfgs":
            return {"solver": self.solver, "images": self.images}
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTune:
    """One fine-tuning run of one task.

    Attributes:
        task: Name of a task of `suite`.
        method: Which parameters train, and in which model; one of `METHODS`.
        model: One of `MODELS`, or the name of one of timm's, as in `"timm/resnet50.a1_in1k"`.
        init: `"pretrained"`, or `"random"` for an untrained image encoder.
        suite: One of `SUITES`.
        head: `"zero_shot"`: made of prompts and frozen; `"trained"`: random, and trained with the
            encoder (tangent, appendix D.6); `"probe"`: fitted to the pre-trained features, then
            frozen (closed vocabulary, section 3.1); `"zero_shot_trained"`: made of prompts, and
            trained with the encoder (closed vocabulary, appendix H).
        seed: Order of the images, and the random head.
        steps: 2,000 (tangent; linear layers).
        batch_size: 128 (tangent; linear layers).
        lr: Highest learning rate, 1e-5 (tangent; linear layers).
        weight_decay: 0.1 (protocol). It decays theta, not theta - theta_0, in every method.
        warmup: Steps of linear warm-up before the cosine, 200 (tangent; linear layers).
        clip: Largest gradient norm, 1.0 (protocol).
        beta1: AdamW's, 0.9 (its usual value; the papers name no other).
        beta2: AdamW's, 0.999 (likewise).
        precision: Of matrix products: `"float32"` or `"bfloat16"` (autocast); weights, gradients
            and the optimiser's state are float32.
        probe: How the head `"probe"` is fitted; of no use to other heads.
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
    probe: Probe = dataclasses.field(default_factory=Probe)
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
        if self.method == FULL:
            raise TasklabError(
                "'full' is no method of its own: fine-tune by 'nonlinear' with head='trained'."
            )
        _choose("method", self.method, METHODS)
        _choose_model(self.model)
        _choose("init", self.init, INITS)
        _choose("suite", self.suite, (*SUITES, OWN))
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
        if self.head == "probe":
            fields["probe"] = self.probe.identity()
        else:
            del fields["probe"]
        return fields


def recipe(
    model: str,
    task: str,
    method: str,
    *,
    suite: str = "mini",
    init: str = "pretrained",
    head: str | None = None,
    seed: int = 0,
    steps: int | None = None,
    batch_size: int | None = None,
    probe: Probe | None = None,
    precision: str = "float32",
) -> FineTune:
    """Return the usual run of a method: the papers' protocol, or that of the shipped models.

    The recipe of shipped models differs from the protocol in steps (60), batch (64), learning rate
    (`SHIPPED_LR`) and beta2 (0.98, a memory of 50 steps). It keeps the weight decay: lr x decay x
    steps, the share of theta that decay removes, is then as in the papers (1.2e-3 against 2e-3).

    Args:
        model: One of `MODELS`.
        task: Name of a task of `suite`.
        method: One of `METHODS`, or `full`: `nonlinear` with a head that trains along.
        suite: One of `SUITES`.
        init: One of `INITS`.
        head: `"zero_shot"`, `"trained"` or `"probe"`; `None` is what fits the model.
        seed: Order of the images.
        steps: Instead of the recipe's. A tenth of the steps is warm-up, as in the papers.
        batch_size: Instead of the recipe's.
        probe: Instead of the recipe's.
        precision: One of `PRECISIONS`.

    Raises:
        TasklabError: If a choice does not exist or a number is not possible.
    """
    _choose("method", method, EDITS)  # `FineTune` then says what 'posthoc' is
    if head is not None:
        _choose("head", head, USUAL_HEADS)
    _choose_model(model)
    mini = model in SHIPPED_LR
    usual = MINI_STEPS * LONGER.get(model, 1) if mini else PAPER_STEPS
    steps = whole("steps", usual if steps is None else steps, 1)
    if batch_size is None:
        batch_size = MINI_BATCH if mini else PAPER_BATCH
    rates = dict(SHIPPED_LR.get(model, {}))
    rates.setdefault(FULL, rates.get("nonlinear", 0.0))
    if head == "probe" or method == FULL:
        rates |= CLOSED_LR.get(model, {})
    special = {"lr": rates[method], "beta2": 0.98} if mini and method in rates else {}
    usual_head = "trained" if closed(model) else "zero_shot"
    head = usual_head if head is None else head
    if method == FULL:
        method, head = "nonlinear", "zero_shot_trained" if head == "zero_shot" else "trained"
    return FineTune(
        task=task,
        method=method,
        model=model,
        init=init,
        suite=suite,
        head=head,
        seed=seed,
        steps=steps,
        batch_size=batch_size,
        warmup=steps // 10,
        probe=probe or Probe(lr=PROBE_LR if mini else None),
        precision=precision,
        **special,
    )


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
        _choose_model(self.model)
        _choose("init", self.init, INITS)
        _choose("preset", self.preset, PRESETS)
        if self.head is not None:
            _choose("head", self.head, USUAL_HEADS)
        if self.precision is not None:
            _choose("precision", self.precision, PRECISIONS)
        if self.head == "zero_shot" and closed(self.model):
            raise TasklabError(
                f"model {self.model!r} has no text tower to make a zero-shot head: take "
                "head='probe'."
            )
        fitting = ("mini_text",) if self.model in TEXT_MODELS else ("mini", "paper", OWN)
        suite = fitting[0] if self.suite is None else self.suite
        _choose("suite", suite, SUITES if suite != OWN else (OWN,))
        if suite not in fitting:
            raise TasklabError(
                f"model {self.model!r} does not read suite {suite!r}: leave it out, or give "
                f"{fitting[0]!r}."
            )
        settled = {
            "suite": suite,
            "seeds": _seeds(self.seeds, self.preset),
            "steps": None if self.steps is None else whole("steps", self.steps, 1),
            "lr": None if self.lr is None else _real("lr", self.lr),
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


def closed(model: str) -> bool:
    """Return whether a model has no text tower."""
    return model in CLOSED_MODELS or model.startswith(TIMM)


def family(model: str) -> dict[str, str]:
    """Return the models that a model is compared with, by role; a model of timm's has none.

    >>> family("vitb16")["large"]
    'vitl14'
    """
    _choose_model(model)
    return next((dict(roles) for roles in FAMILIES if model in roles.values()), {})


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


def _choose_model(name: object) -> None:
    """Raise if there is no such model; whether timm has one by that name is seen on loading it."""
    if not (isinstance(name, str) and re.fullmatch(re.escape(TIMM) + r"[\w.-]+", name)):
        _choose("model", name, MODELS)


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
