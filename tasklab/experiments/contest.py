"""Compare merges of task vectors that somebody brings, on their tasks' images.

Every merge gets the same budget: its option and coefficient are chosen on validation images
(`analyses.merging.search`), and its accuracy is measured on test images. The merge to take is the
one with the highest mean accuracy on validation images, so that its test accuracy is no maximum
over merges. Without labels, all three are those of least E(tau) / E(0) on the same images
(`merge_loss`). Each finished merge is kept in the store; an interrupted comparison goes on there.

Letters: T tasks, N test images of one task.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasklab.analyses.merging import METHODS, registry, search, timing
from tasklab.analyses.pair_errors import pair_errors
from tasklab.experiments.answers import Answers, interval, paired
from tasklab.experiments.estimate import TANGENT, pace
from tasklab.experiments.lab import Lab
from tasklab.experiments.merge_loss import unlabelled
from tasklab.experiments.merging import Bench
from tasklab.experiments.runner import Given, Trial
from tasklab.progress import bar
from tasklab.records.images import packed, unpacked
from tasklab.tasks import drawn
from tasklab.taskvector import TaskVector

KIND = "contest"  # of artifact
CACHE_VERSION = 1  # part of every key: raise it when the same configuration gives other results
UNLABELLED = "normalised"  # the metric of E that chooses without labels
PAIR_IMAGES = 256  # test images of each task, at most, on which interference is measured


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """One model and its answers on test images."""

    name: str  #: `"pretrained"`, or one of `merging.METHODS`
    title: str  #: For people
    answers: Answers  #: Task -> which test images it classifies correctly (N,)
    validation: float | None = None  #: Mean accuracy on validation images in %; `None`: not read
    loss: float | None = None  #: E(tau) / E(0) there, where it chose in the place of labels
    alpha: float = 0.0  #: Coefficient of the merged vector
    option: float | None = None  #: Value of the method's option, if it has one
    looks: int = 0  #: Evaluations on validation images behind the choice
    seconds: float = 0.0  #: That merging and choosing took
    norm: float = 0.0  #: Of the merged vector times its coefficient

    def accuracy(self, task: str) -> float:
        """Return the accuracy in % on a task's test images."""
        return 100 * float(self.answers[task].mean())

    @property
    def mean(self) -> tuple[float, float]:
        """Mean accuracy over tasks in %, and half its 95 % interval: tasks fixed, images drawn."""
        return interval([*self.answers.values()])

    def gain(self, start: Entry) -> tuple[float, float]:
        """Return the mean gain over another model in points, and half its interval (paired)."""
        return paired(self.answers, start.answers)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two vectors: their cosine, and what one does to the other at a common coefficient."""

    tasks: tuple[str, str]  #: Their tasks
    cosine: float  #: Of the two vectors
    #: Share of predictions that the other vector changes (tangent, equation 3), mean over both
    #: tasks, in %.
    xi: float
    lost: float  #: Accuracy that it costs, mean over both tasks, in points


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Contest:
    """What a comparison found."""

    start: Entry  #: The pre-trained model
    alone: Mapping[str, Entry]  #: Task -> the model with its own vector, with answers on that task
    merges: Sequence[Entry]  #: Every merge, best on validation images first, or of least E
    pairs: Sequence[Pair]  #: All pairs of vectors
    alpha: float  #: Coefficient at which pairs were measured: that of the plain sum

    @property
    def best(self) -> Entry:
        """The merge with the highest mean accuracy on validation images, or of least E."""
        return self.merges[0]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return tuple(self.alone)

    @property
    def labels(self) -> bool:
        """Whether labels of validation images chose."""
        return self.best.loss is None

    def useless(self) -> list[str]:
        """Return the tasks whose own vector does not surely raise their accuracy."""
        gains = {task: one.gain(self.start) for task, one in self.alone.items()}
        return [task for task, (gain, half) in gains.items() if gain - half <= 0]


def merges_for(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the merges that are compared, in the order of `merging.METHODS`; `None` is all.

    Args:
        names: Any of them.

    Raises:
        TasklabError: If one does not exist, with the nearest name.
    """
    chosen = METHODS if names is None else [registry.method(name) and name for name in names]
    return tuple(name for name in METHODS if name in chosen)


def seconds(
    lab: Lab,
    vectors: Mapping[str, TaskVector],
    merges: Sequence[str],
    *,
    linear: bool,
    labels: bool = True,
) -> float:
    """Return about how long a comparison takes on this machine, from a few images and numbers."""
    tasks = lab.suite.names
    val, test = (sum(lab.evaluator.count(t, split) for t in tasks) for split in ("val", "test"))
    bench = Bench(Given.of(lab, {}, "nonlinear"))
    tries = TANGENT * (1 if linear else 2) * val
    tries += 0 if linear else labels * (bench.sizes["looks"] + 1) * val + test
    pairs = len(tasks) * len(tasks) * min(PAIR_IMAGES, test // len(tasks))
    seen = [TANGENT * bench.read(needs) for name in merges if (needs := METHODS[name].needs)]
    passed = len(merges) * tries + len(tasks) * sum(seen) + TANGENT * val + 2 * test + pairs
    return pace(lab).passed * passed + sum(timing.seconds(vectors, name) for name in merges)


def contest(
    lab: Lab,
    vectors: Mapping[str, TaskVector],
    method: str,
    merges: Sequence[str],
    *,
    labels: bool = True,
) -> Contest:
    """Compare merges of some task vectors.

    Args:
        lab: The model they start from, with their tasks and images.
        vectors: One for each task of the lab.
        method: How they were fine-tuned: a linear method's are edited in the tangent model.
        merges: Names of `merging.METHODS`.
        labels: Whether accuracy on validation images chooses, and not E.

    Raises:
        TasklabError: If vectors do not fit, or a model's features are not finite.
    """
    trial = Given.of(lab, vectors, method)
    bench, linear, tasks = Bench(trial), trial.linear, tuple(vectors)
    prints = {task: vector.fingerprint() for task, vector in vectors.items()}

    def kept(what: Mapping[str, Any], make: Any) -> dict[str, Any]:
        rule = {} if labels else {"chosen_by": UNLABELLED}
        config = {**_identity(lab, tasks), "vectors": prints, "linear": linear, **rule, **what}
        return lab.store.get(KIND, config, lambda _: ({}, make())).record

    def measured(vector: TaskVector, alpha: float, of: Sequence[str]) -> dict[str, Any]:
        edit = functools.partial(trial.evaluator.answers, vector, alpha=alpha, linear=linear)
        hits = {task: packed(edit(task, "test")) for task in of}
        if not labels:
            return {"hits": hits}
        accuracy = float(np.mean([100 * edit(task, "val").mean() for task in of]))
        return {"hits": hits, "validation": accuracy}

    def entry(name: str, title: str, record: Mapping[str, Any]) -> Entry:
        sizes = {task: lab.evaluator.count(task, "test") for task in record["hits"]}
        answers = {task: unpacked(hits, sizes[task]) for task, hits in record["hits"].items()}
        told = {key: x for key, x in record.items() if key != "hits"}
        return Entry(name=name, title=title, answers=answers, **told)

    def chosen(name: str) -> dict[str, Any]:
        began = time.perf_counter()
        if labels:
            choice = bench.choose(name)
            told = {"looks": choice.trials}
        else:
            (choice,) = unlabelled(bench, name, [UNLABELLED])
            told = {"loss": choice.loss}
        spent = time.perf_counter() - began
        return {
            **measured(choice.vector, choice.alpha, tasks),
            **told,
            "alpha": choice.alpha,
            "option": choice.option,
            "seconds": round(spent, 1),
            "norm": abs(choice.alpha) * choice.vector.norm(),
        }

    found = []
    with bar(len(merges) + 2, "compare", unit="step", on=lab.progress) as shown:
        start = kept({"model": "pretrained"}, lambda: measured(TaskVector({}), 0.0, tasks))
        alone = {
            task: kept({"alone": task}, functools.partial(measured, vector, 1.0, [task]))
            for task, vector in vectors.items()
        }
        shown.update()
        for name in merges:
            shown.set_postfix_str(METHODS[name].title)
            key = {**bench.key(name), "fixed": dict(METHODS[name].fixed)}
            record = kept(key, functools.partial(chosen, name))
            found.append(entry(name, METHODS[name].title, record))
            shown.update()
        sums = [one.alpha for one in found if one.name == "arithmetic"]
        alpha = sums[0] if sums else 1 / len(tasks)
        pairs = kept({"pairs": alpha}, lambda: {"rows": _pairs(trial, alpha)})["rows"]
        shown.update()
    return Contest(
        start=entry("pretrained", "Pre-trained", start),
        alone={task: entry("alone", task, record) for task, record in alone.items()},
        merges=sorted(found, key=lambda one: -one.validation if labels else one.loss),
        pairs=[Pair(**{**row, "tasks": tuple(row["tasks"])}) for row in pairs],
        alpha=alpha,
    )


def searched(lab: Lab, vectors: Mapping[str, TaskVector], method: str, name: str) -> search.Choice:
    """Return a merge whose coefficient and option validation images chose.

    Args:
        name: One of `merging.METHODS`.
    """
    return Bench(Given.of(lab, vectors, method)).choose(name)


def merged(lab: Lab, vectors: Mapping[str, TaskVector], method: str, one: Entry) -> TaskVector:
    """Return the vector of a compared merge, its coefficient multiplied in.

    Args:
        one: One of `Contest.merges`.
    """
    bench = Bench(Given.of(lab, vectors, method))
    return one.alpha * bench.merged(one.name, one.option)


def _identity(lab: Lab, tasks: Sequence[str]) -> dict[str, Any]:
    """Return all that determines answers on the tasks beside the edit, their order included."""
    data = drawn.images_of(lab.suite)
    return {
        "algorithm": CACHE_VERSION,
        "weights": lab.clip.encoder.weights_hash,
        "model": [lab.parameters.model, lab.parameters.init],
        "tasks": {
            task: {
                "classes": list(lab.suite[task].classes),
                "prompts": lab.suite[task].prompts(),
                "data": [data.version(task, split) for split in ("train", "val", "test")],
            }
            for task in tasks
        },
        "order": list(tasks),
        "counts": dict(lab.scale.counts),
        **({"head": "probe"} if lab.parameters.vocabulary == "closed" else {}),
    }


def _pairs(trial: Trial, alpha: float) -> list[dict[str, Any]]:
    vectors = trial.vectors_on_device
    rows: dict[str, dict[str, float]] = {}
    found = pair_errors(trial.evaluator, vectors, [alpha], PAIR_IMAGES, linear=trial.linear)
    for row in found:
        rows.setdefault(row["task"], {})[row["metric"]] = row["value"]
    return [
        {
            "tasks": [one, two],
            "cosine": trial.vectors[one].cosine(trial.vectors[two]),
            "xi": rows[f"{one}+{two}"]["xi_pair"],
            "lost": rows[f"{one}+{two}"]["lost"],
        }
        for one, two in itertools.combinations(trial.vectors, 2)
    ]
