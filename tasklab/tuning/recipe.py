"""One fine-tuning run (`FineTune`), and the usual one of a model and method (`recipe`).

A run is frozen and complete, and checks itself when made, so that a misspelt choice fails in the
first cell and not after an hour. Sources of the defaults, named at each of them: *tangent* is Task
Arithmetic in the Tangent Space, appendix A; *linear layers* is Fine-Tuning Linear Layers Only,
appendix A, which repeats that protocol; *protocol* is the one both follow (Ilharco et al.).
"""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from tasklab.errors import TasklabError, choose, real, whole
from tasklab.models.zoo import CLOSED_MODELS, INITS, MODELS, choose_model, closed
from tasklab.tasks.suites import OWN, SUITES
from tasklab.tuning.methods import EDITS, FULL, METHODS, POSTHOC

UsualHead = Literal["zero_shot", "trained", "probe"]
USUAL_HEADS = get_args(UsualHead)  # of a notebook
HEADS = (*USUAL_HEADS, "zero_shot_trained")  # the last is what `full` makes of the first
SOLVERS = ("adamw", "lbfgs")
Precision = Literal["float32", "bfloat16"]
PRECISIONS = get_args(Precision)

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
        choose("solver", self.solver, SOLVERS)
        for name in ("steps", "batch_size", "images"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole(name, value, 1))
        for name in ("lr", "weight_decay"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, real(name, value))

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
        choose("method", self.method, METHODS)
        choose_model(self.model)
        choose("init", self.init, INITS)
        choose("suite", self.suite, (*SUITES, OWN))
        choose("head", self.head, HEADS)
        choose("precision", self.precision, PRECISIONS)
        least = {"seed": 0, "steps": 1, "batch_size": 1, "warmup": 0, "checkpoint_every": 1}
        for name, low in least.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), low))
        for name in ("lr", "weight_decay", "clip", "beta1", "beta2"):
            value = real(name, getattr(self, name))
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
    choose("method", method, EDITS)  # `FineTune` then says what 'posthoc' is
    if head is not None:
        choose("head", head, USUAL_HEADS)
    choose_model(model)
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
