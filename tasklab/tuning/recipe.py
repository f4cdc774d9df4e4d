"""One fine-tuning run (`FineTune`), and the usual one of a model and method (`recipe`).

A run is frozen and complete, and checks itself when made. Sources of the defaults, named at each of
them: *tangent* is Task Arithmetic in the Tangent Space, appendix A; *linear layers* is Fine-Tuning
Linear Layers Only, appendix A, which repeats that protocol; *protocol* is the one both follow
(Ilharco et al.).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

from tasklab import machine
from tasklab.errors import TasklabError, choose, positive, real, texts, whole
from tasklab.models.zoo import INITS, REGISTRY, Spec, choose_model, closed, small, text_suite
from tasklab.tasks.suites import GLOSSES, OWN, SUITES
from tasklab.tasks.suites import suite as suite_of
from tasklab.tuning.methods import JOINT, METHODS, POSTHOC, TABLE, penalised
from tasklab.tuning.methods import method as entry_of

UsualHead = Literal["zero_shot", "trained", "probe"]
USUAL_HEADS = get_args(UsualHead)  # of a notebook
HEADS = (*USUAL_HEADS, "zero_shot_trained")  # the last is what `JOINT` makes of the first
SOLVERS = ("adamw", "lbfgs")
Precision = Literal["float32", "bfloat16"]
PRECISIONS = get_args(Precision)
Extent = Literal["quick", "full", "rehearsal"]

MINI_STEPS, PAPER_STEPS = 240, 2000
MINI_BATCH, PAPER_BATCH = 64, 128
TEXT_STEPS, TEXT_BATCH = 150, 32  # of sentence encoders
QUICK_STEPS, QUICK_BATCH = 45, 32  # of a shipped model, so that a report takes minutes
QUICK_TEXT_STEPS = 16  # of sentence encoders, which learn faster and take longer
# Of a published model, a quarter of the papers' steps. Eight tasks by three methods then take a
# ViT-L/14 within an hour, on one GPU that computes 400 TFLOP/s (40 % of an H100's bfloat16 peak:
# 0.16 s for a step of 128 images), and a ViT-B/32 minutes.
QUICK_PAPER_STEPS = 500
REHEARSAL_STEPS, REHEARSAL_BATCH = 10, 2  # runs of fewer steps only show that the code runs
# A rate of probes that the search of appendix C supports for all shipped models, by validation.
PROBE_LR = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """How a linear probe is fitted to the features of a task's training images."""

    #: `"adamw"`: the paper's protocol (closed vocabulary, appendix C); `"lbfgs"`: to the minimum of
    #: a convex problem, without learning rate, steps, batches or seed, in six times the time.
    solver: str = "adamw"
    #: Of AdamW; `None` searches `probes.RATES` on the stand-in for Cars, as the paper does.
    lr: float | None = None
    #: Of AdamW, 2,000 (appendix C), a tenth of them warm-up, then a cosine.
    steps: int = PAPER_STEPS
    batch_size: int = PAPER_BATCH  #: 128 (appendix C)
    weight_decay: float = 0.1  #: Of AdamW, 0.1 (protocol)
    images: int | None = None  #: Only the first so many training images; `None` for all

    def __post_init__(self) -> None:
        choose("solver", self.solver, SOLVERS)
        for name in ("steps", "batch_size", "images"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole(name, value, 1))
        if self.lr is not None:
            object.__setattr__(self, "lr", positive("lr", self.lr))
        object.__setattr__(self, "weight_decay", real("weight_decay", self.weight_decay))

    def identity(self) -> dict[str, str | int | float | None]:
        """Return the fields that determine the result, for the key of the store."""
        if self.solver == "lbfgs":
            return {"solver": self.solver, "images": self.images}
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTune:
    """One fine-tuning run of one task."""

    task: str  #: Name of a task of `suite`
    method: str = "nonlinear"  #: Which parameters train, and in which model; one of `METHODS`
    #: One of `MODELS`, or the name of one of timm's, as in `"timm/resnet50.a1_in1k"`.
    model: str = "mini"
    init: str = "pretrained"  #: `"pretrained"`, or `"random"` for an untrained image encoder
    suite: str = "mini"  #: One of `SUITES`
    #: `"zero_shot"`: made of prompts and frozen; `"trained"`: random, and trained with the encoder
    #: (tangent, appendix D.6); `"probe"`: fitted to the pre-trained features, then frozen (closed
    #: vocabulary, section 3.1); `"zero_shot_trained"`: made of prompts, and trained with the
    #: encoder (closed vocabulary, appendix H).
    head: str = "zero_shot"
    seed: int = 0  #: Order of the images, and the random head
    steps: int = PAPER_STEPS  #: 2,000 (tangent; linear layers)
    batch_size: int = 128  #: 128 (tangent; linear layers)
    #: Highest learning rate, 1e-5 (tangent; linear layers). `None`: searched on the stand-in for
    #: Cars (closed vocabulary, appendix C; `rates`).
    lr: float | None = 1e-5
    #: 0.1 (protocol). It decays theta, not theta - theta_0, in every method.
    weight_decay: float = 0.1
    warmup: int = 200  #: Steps of linear warm-up before the cosine, 200 (tangent; linear layers)
    clip: float | None = 1.0  #: Largest gradient norm, 1.0 (protocol); `None` for no limit
    beta1: float = 0.9  #: AdamW's, 0.9 (its usual value; the papers name no other)
    beta2: float = 0.999  #: AdamW's, 0.999 (likewise)
    #: Of matrix products: `"float32"` or `"bfloat16"` (autocast); weights, gradients and the
    #: optimiser's state are float32.
    precision: str = "float32"
    #: How the head `"probe"` is fitted; of no use to other heads.
    probe: Probe = dataclasses.field(default_factory=Probe)
    checkpoint_every: int = 50  #: Steps between checkpoints. Changes no result.
    #: lambda, how much of the method's penalty is added to the loss (`penalties`). By default the
    #: method's own; 0 is the method without it; `None` if it has none.
    penalty: float | None = None
    #: Names of other tasks of `suite` whose images the penalty looks at.
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.task, str) and self.task):
            raise TasklabError(f"task must be the name of a task, not {self.task!r}.")
        if self.method in POSTHOC:
            raise TasklabError(
                f"{self.method!r} is not a way to train: fine-tune with method "
                f"{POSTHOC[self.method]!r} and evaluate the task vector in the linearized model."
            )
        if self.method == JOINT:
            raise TasklabError(
                f"{JOINT!r} is no method of its own: fine-tune by 'nonlinear' with head='trained'."
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
        if self.lr is not None:
            object.__setattr__(self, "lr", positive("lr", self.lr))
        for name in ("weight_decay", "clip", "beta1", "beta2"):
            if name == "clip" and self.clip is None:
                continue
            value = real(name, getattr(self, name))
            if name.startswith("beta") and value >= 1:
                raise TasklabError(f"{name} must be below 1, not {value}.")
            object.__setattr__(self, name, value)
        self._check_penalty()
        if self.clip == 0:
            raise TasklabError("clip is the largest gradient norm: 0 would stop all training.")

    @property
    def peak(self) -> float:
        """The highest learning rate, once it is known."""
        if self.lr is None:
            raise TasklabError(f"the learning rate of {self.task} is not searched yet: give lr.")
        return self.lr

    def _check_penalty(self) -> None:
        entry = TABLE[self.method]
        others = texts("others", self.others) if self.others else ()
        if self.penalty or others:
            penalised(self.method)
        penalty = None  # so that a changed method gets its own
        if entry.penalty:
            penalty = entry.weight if self.penalty is None else real("penalty", self.penalty)
        if entry.others and not others:
            raise TasklabError(
                f"method {self.method!r} needs images of tasks other than {self.task!r}: give at "
                "least two tasks."
            )
        if self.task in others or (others and not entry.others):
            able = " or ".join(repr(name) for name, one in TABLE.items() if one.others)
            raise TasklabError(f"others must be other tasks than {self.task!r}, for {able}.")
        object.__setattr__(self, "penalty", penalty)
        object.__setattr__(self, "others", tuple(others))

    def identity(self) -> dict[str, Any]:
        """Return the fields that determine the result, for the key of the store."""
        fields = dataclasses.asdict(self)
        del fields["checkpoint_every"]  # a resumed run equals an uninterrupted one
        if self.head == "zero_shot":
            del fields["head"]  # what was computed before there was a choice is still valid
        if not TABLE[self.method].penalty:
            del fields["penalty"]  # likewise
        if not self.others:
            del fields["others"]
        entry = TABLE[self.method]
        fields["method"] = (
            entry.key or self.method
        )  # what stored runs were called when they were made
        if self.method == "ortho_reg":
            fields["penalised"] = "orthonormal"
        if entry.published:
            fields["published"] = dataclasses.asdict(entry.published)
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
    lr: float | None = None,
    precision: str | None = None,
    preset: Extent = "full",
    device: str = "cpu",
    others: Sequence[str] | None = None,
) -> FineTune:
    """Return the complete configuration of the usual run of a method.

    It is the papers' protocol; sentence encoders train for 150 steps of 32 texts at rates of their
    own. The recipe of shipped models differs from it in steps (240), batch
    (64), learning rate (`models.zoo`) and beta2 (0.98, a memory of 50 steps). It keeps the weight
    decay of 0.1: lr x decay x steps, the share of theta that it removes, is then 1e-2 to
    4e-2, against 2e-3 in the papers.

    Args:
        model: Short name of the model.
        task: Name of a task.
        method: One of `METHODS`, or `JOINT`: `nonlinear` with a head that trains along.
        suite: Its suite.
        init: `"pretrained"` or `"random"`.
        head: `"zero_shot"`, `"trained"` or `"probe"`; `None` is the usual one of the model.
        seed: Of the order of images and of a random head.
        steps: Number of steps; by default the recipe's.
        lr: Instead of the recipe's, for every method. The recipe's own is searched (`rates`) for a
            published model in the preset `full`, after a probe or with a head that trains along.
        precision: One of `PRECISIONS`. `None` is bfloat16 where the device is fast at it
            (`usual_precision`), else float32.
        preset: `"quick"`: fewer steps and images; `"rehearsal"`: `steps` tiny steps.
        device: `"cpu"`, `"cuda"`, ...
        others: Tasks whose images a penalty looks at; `None` is all others of the suite.
    """
    rate = entry_of(method).rates or method  # `FineTune` then says what 'posthoc' is
    choose("preset", preset, get_args(Extent))
    if head is not None:
        choose("head", head, USUAL_HEADS)
    choose_model(model)
    sentences = text_suite(model) == GLOSSES  # all of them have the recipe of one
    entry, mini = REGISTRY.get("minilm" if sentences else model), small(model)  # none of timm's
    batch_size, usual, probe = _extent(preset, mini=mini, sentences=sentences)
    steps = whole("steps", usual * (entry.longer if entry else 1) if steps is None else steps, 1)
    usual_head = "trained" if closed(model) else "zero_shot"
    head = usual_head if head is None else head
    rates = _rates(entry, head, method) if entry and mini else {}
    special: dict[str, Any] = {"lr": rates[rate]} if rate in rates else {}
    if special and not sentences:
        special["beta2"] = 0.98
    if not mini and preset == "full" and (head == "probe" or method == JOINT):
        special["lr"] = None  # searched: closed vocabulary, appendix C
    if TABLE[method].others and others is None:
        others = suite_of(suite).names if suite in SUITES else ()
    if TABLE[method].others:
        special["others"] = tuple(name for name in others or () if name != task)
    warmup = steps // 10
    if own := TABLE[method].published:
        special = {"lr": own.lr} | special | {"clip": own.clip}
        warmup = steps * own.warmup // PAPER_STEPS
    if lr is not None:
        special["lr"] = lr
    if method == JOINT:
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
        warmup=warmup,
        probe=probe,
        precision=precision or usual_precision(device),
        **special,
    )


def _extent(preset: str, *, mini: bool, sentences: bool) -> tuple[int, int, Probe]:
    """Return the batch size, the usual number of steps, and how a probe is fitted."""
    batch_size, usual = (MINI_BATCH, MINI_STEPS) if mini else (PAPER_BATCH, PAPER_STEPS)
    if sentences:
        batch_size, usual = TEXT_BATCH, TEXT_STEPS
    if preset == "rehearsal":
        size = REHEARSAL_BATCH if mini else 1  # a full-size model takes long for an image
        return size, usual, Probe(steps=2, batch_size=REHEARSAL_BATCH, images=8)
    if preset == "quick" and mini:
        usual = QUICK_TEXT_STEPS if sentences else QUICK_STEPS
        return QUICK_BATCH, usual, Probe(lr=PROBE_LR, steps=500, images=1500)
    if preset == "quick":
        usual = QUICK_PAPER_STEPS
    return batch_size, usual, Probe(lr=PROBE_LR if mini else None)


def _rates(entry: Spec, head: str, method: str) -> dict[str, float]:
    """Return a shipped model's learning rate of every method, with this head.

    A random head that trains along takes every method as much further as it takes the non-linear.
    """
    rates = dict(entry.rates) | {JOINT: entry.rates["nonlinear"]}
    if head == "probe" or method == JOINT:
        return {**rates, **entry.closed_rates}
    if head == "trained":
        rates.update(entry.closed_rates)
        further = rates[JOINT] / rates["nonlinear"]
        return {name: rate if name == JOINT else rate * further for name, rate in rates.items()}
    return rates


def usual_precision(device: str) -> str:
    """Return in which precision matrix products of fine-tuning are fast on a device.

    bfloat16 on CUDA devices that do not emulate it, and on a processor that is clearly faster in it
    (`machine.fast_in_bfloat16`); float32 elsewhere.
    """
    if not device.startswith("cuda"):
        return "bfloat16" if machine.fast_in_bfloat16() else "float32"
    import torch  # here, so that reading a configuration does not cost seconds

    # Of this device, which need not be the current one, about which PyTorch tells the same.
    return "bfloat16" if torch.cuda.get_device_capability(device) >= machine.BFLOAT16 else "float32"
