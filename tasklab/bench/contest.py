"""Compare merges of a user's task vectors, on their tasks' images.

Every merge gets the same budget: its option and coefficient are chosen on validation images
(`analyses.merging.search`), and its accuracy is measured on test images. The merge to take is the
one with the highest mean accuracy on validation images, so that its test accuracy is no maximum
over merges. Without labels, all three are those of least E(tau) / E(0) on the same images
(`merge_loss`). The store keeps each evaluation, or without labels each merge, from which an
interrupted comparison resumes.
"""

from __future__ import annotations

import functools
import itertools
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasklab.analyses.evaluation import Evaluator
from tasklab.analyses.merging.registry import method as rule_of
from tasklab.analyses.merging.search import Choice
from tasklab.analyses.pair_errors import pair_errors
from tasklab.analyses.shares import packed, unpacked
from tasklab.bench.merges import Bench, Unlabelled, unlabelled
from tasklab.bench.standings import Contest as Contest
from tasklab.bench.standings import Entry as Entry
from tasklab.bench.standings import Pair as Pair
from tasklab.bench.trial import Given, Trial, more
from tasklab.progress import bar
from tasklab.storage.journal import Journal
from tasklab.tasks import drawn
from tasklab.taskvector import TaskVector

if TYPE_CHECKING:
    from tasklab.bench.lab import Lab
    from tasklab.models.heads import Head

KIND = "contest"  # of artifact
CACHE_VERSION = 3  # part of every key: raise it when the same configuration gives other results
UNLABELLED = "normalised"  # the metric of E that chooses without labels
Keep = Callable[[str, Callable[[], Any]], Any]  # the name of a number, how it is computed -> it
PAIR_IMAGES = 256  # test images of each task, at most, on which interference is measured


class _Keeper:
    """Storage of a comparison: results, and single evaluations while a result is computed."""

    def __init__(self, trial: Trial, *, labels: bool = True) -> None:
        self.trial, self.labels, lab = trial, labels, trial.lab
        prints = {task: vector.fingerprint() for task, vector in trial.vectors.items()}
        common: dict[str, Any] = {"vectors": prints, "linear": trial.linear}
        if isinstance(trial, Given) and trial.heads:
            common["heads"] = {task: _print(head) for task, head in trial.heads.items()}
        common |= {} if labels else {"chosen_by": UNLABELLED}
        self._common = {**_identity(lab, tuple(trial.vectors)), **common}

    def has(self, what: Mapping[str, Any]) -> bool:
        """Return whether a result is in the store."""
        return self.trial.lab.store.has(KIND, {**self._common, **what})

    def __call__(
        self, what: Mapping[str, Any], make: Callable[[Keep], Any], title: str = "", count: int = 1
    ) -> dict[str, Any]:
        """Return a stored result, or compute it by `make`.

        `what` is its key beside the vectors and the images; `make` is given the cache of single
        evaluations; `title` and the `count` of evaluations are for the progress bar.
        """

        def made(folder: Path) -> tuple[dict, Any]:
            journal = Journal(folder / "evaluations.jsonl")
            on = self.trial.lab.progress
            with bar(count, title, done=len(journal), unit="evaluation", on=on) as shown:

                def keep(name: str, number: Callable[[], Any]) -> Any:
                    new = name not in journal
                    value = journal(name, number)
                    shown.update(new)
                    return value

                return {}, make(keep)

        return self.trial.lab.store.get(KIND, {**self._common, **what}, made).record

    def measured(
        self,
        keep: Keep,
        vector: TaskVector,
        alpha: float,
        of: Sequence[str],
        others: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return answers on test images, also of other tasks; with labels, on validation too."""
        trial, linear = self.trial, self.trial.linear

        @functools.cache
        def edited() -> Evaluator:
            return trial.edited(vector, alpha) if isinstance(trial, Given) else trial.evaluator

        def one(task: str, split: str) -> str:
            return packed(edited().answers(vector, task, split, alpha, linear=linear))

        def answers(tasks: Sequence[str], split: str) -> dict[str, str]:
            asked = {task: functools.partial(one, task, split) for task in tasks}
            return {task: keep(f"{split} answers {task}", ask) for task, ask in asked.items()}

        found = {"hits": answers(of, "test"), "others": answers(others, "test")}
        return found | ({"held": answers(of, "val")} if self.labels else {})

    def choice(self, bench: Bench, name: str) -> tuple[dict[str, Any], TaskVector]:
        """Return the choice for a merge, and its vector before the coefficient."""
        made: list[TaskVector] = []

        def choose(keep: Keep) -> dict[str, Any]:
            began, bench.keep = time.perf_counter(), keep
            one: Choice | Unlabelled
            told: dict[str, float]
            if self.labels:
                one = bench.choose(name)
                told = {"looks": one.trials}
            else:
                (one,) = unlabelled(bench, name, [UNLABELLED])
                told = {"loss": one.loss}
            made.append(one.vector)
            about = {"alpha": one.alpha, "option": one.option, **told}
            return {**about, "seconds": round(time.perf_counter() - began, 1)}

        count = 1
        if self.labels:
            count = bench.sizes["looks"] + len(bench.options(name)) + ("val" not in bench.known)
        record = self(_key(bench, name, search=True), choose, rule_of(name).title, count)
        return record, made[0] if made else bench.merged(name, record["option"])

    def compared(
        self, bench: Bench, name: str, key: Mapping[str, Any], others: Sequence[str]
    ) -> dict[str, Any]:
        """Return the result of a merge: the choice for it, and answers on test images."""
        if self.has(key):
            return self(key, lambda _: {})
        about, vector = self.choice(bench, name)
        alpha, tasks = about["alpha"], tuple(self.trial.vectors)
        norm = abs(alpha) * vector.norm()

        def tested(keep: Keep) -> dict[str, Any]:
            every = self.measured(keep, vector, alpha, tasks, others)
            return {**every, **about, "norm": norm}

        return self(key, tested, f"{rule_of(name).title}, test images", len(tasks))


def contest(
    lab: Lab,
    vectors: Mapping[str, TaskVector],
    method: str,
    merges: Sequence[str],
    *,
    labels: bool = True,
    others: Sequence[str] = (),
    heads: Mapping[str, Head] | None = None,
) -> Contest:
    """Compare merges of some task vectors.

    Args:
        lab: Model, tasks, seeds, scale and store.
        vectors: Task vectors by task.
        method: How they were fine-tuned: a linear method's are edited in the tangent model.
        merges: Names of merge rules.
        labels: Whether accuracy on validation images chooses, and not E.
        others: Tasks of the lab's suite without a vector, whose accuracy is measured as well.
        heads: Heads that came with the vectors, by task, for a model without a text tower.
    """
    trial = Given.of(lab, vectors, method, heads)
    bench, tasks, keeper = Bench(trial), tuple(vectors), _Keeper(trial, labels=labels)
    bench.tell_memory(merges)
    also = {"others": list(others)} if others else {}
    measured, entry = keeper.measured, functools.partial(_entry, trial.evaluator)

    keys = {name: {**_key(bench, name), **also} for name in merges}
    kept = {name: keeper.has(key) for name, key in keys.items()}
    done, count, found, single = sum(kept.values()), len(tasks), [], None
    with bar(len(merges) + 3, "compare", done=done, unit="step", on=lab.progress) as shown:
        none: Mapping[str, Any] = {"vector": TaskVector({}), "alpha": 0.0, "of": tasks}
        plain = functools.partial(measured, **none, others=others)
        start = keeper({"model": "pretrained", **also}, plain, "pre-trained model", count)
        alone = {}
        for task, vector in vectors.items():
            one = functools.partial(measured, vector=vector, alpha=1.0, of=[task])
            alone[task] = entry("alone", task, keeper({"alone": task}, one, task))
        if labels:
            bench.known["val"] = np.array([alone[task].validation for task in tasks])
        shown.update()
        if labels:
            records = _on_all_tasks(keeper, vectors)
            ones = [entry("single", task, record) for task, record in records]
            single = max(ones, key=operator.attrgetter("validation"))
        shown.update()
        for name in merges:
            record = keeper.compared(bench, name, keys[name], others)
            found.append(entry(name, rule_of(name).title, record))
            shown.update(not kept[name])
        sums = [one.alpha for one in found if one.name == "arithmetic"]
        alpha, count = sums[0] if sums else 1 / count, count * (count - 1) // 2
        asked = functools.partial(_pairs, trial, alpha)
        pairs = keeper({"pairs": alpha}, asked, "pairs of vectors", count)["rows"]
        shown.update()
    chosen_by = operator.attrgetter("validation" if labels else "loss")
    return Contest(
        start=entry("pretrained", "Pre-trained", start),
        alone=alone,
        single=single,
        merges=sorted(found, key=chosen_by, reverse=labels),
        pairs=[Pair(**{**row, "tasks": tuple(row["tasks"])}) for row in pairs],
        alpha=alpha,
    )


def _on_all_tasks(
    keeper: _Keeper, vectors: Mapping[str, TaskVector]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each vector's task, and the answers of the model with it on all tasks."""
    for task, vector in vectors.items():
        every = functools.partial(keeper.measured, vector=vector, alpha=1.0, of=tuple(vectors))
        key = {"alone": task, "of": "all tasks"}
        yield task, keeper(key, every, f"{task}, all tasks", len(vectors))


def _entry(evaluator: Evaluator, name: str, title: str, record: Mapping[str, Any]) -> Entry:
    """Return a stored result as an entry: unpacked answers, copies and validation accuracy."""

    def read(hits: Mapping[str, str], split: str) -> dict[str, Any]:
        return {task: unpacked(one, evaluator.count(task, split)) for task, one in hits.items()}

    told = {key: x for key, x in record.items() if key not in ("hits", "others", "held")}
    answers = read(record["hits"], "test")
    told |= {"answers": answers, "others": read(record.get("others", {}), "test")}
    told["copies"] = {task: evaluator.copies(task, "test") for task in answers}
    if "held" in record:
        told["held"] = read(record["held"], "val")
        told["validation"] = 100 * float(np.mean([x.mean() for x in told["held"].values()]))
    return Entry(name=name, title=title, **told)


def searched(
    lab: Lab,
    vectors: Mapping[str, TaskVector],
    method: str,
    name: str,
    heads: Mapping[str, Head] | None = None,
) -> tuple[TaskVector, dict[str, Any]]:
    """Return a merge times its coefficient, and the choices by validation images.

    `name` is a merge's; the choice has alpha, option, looks and seconds.

    Args:
        lab: Model, tasks, seeds, scale and store.
        vectors: Task vectors by their tasks.
        method: How the vectors were fine-tuned: a linear method's are edited in the tangent model.
        name: One of `merging.METHODS`.
        heads: As for `contest`.
    """
    trial = Given.of(lab, vectors, method, heads)
    bench = Bench(trial)
    bench.tell_memory([name])
    about, vector = _Keeper(trial).choice(bench, name)
    return about["alpha"] * vector, about


def merged(
    lab: Lab,
    vectors: Mapping[str, TaskVector],
    method: str,
    one: Entry,
    heads: Mapping[str, Head] | None = None,
) -> TaskVector:
    """Return the vector of one of `Contest.merges`, its coefficient multiplied in.

    Args:
        lab: Model, tasks, seeds, scale and store.
        vectors: Task vectors by their tasks.
        method: How the vectors were fine-tuned: a linear method's are edited in the tangent model.
        one: One of `Contest.merges`.
        heads: As for `contest`.
    """
    return one.alpha * Bench(Given.of(lab, vectors, method, heads)).merged(one.name, one.option)


def evaluator_of(lab: Lab, tasks: Sequence[str]) -> Evaluator:
    """Return the evaluator of a comparison of these tasks' vectors, with its numbers of images."""
    return lab.evaluator.with_counts(**more(lab, tasks))


def _print(head: Head) -> str:
    tensors = {"weight": head.weight} | ({} if head.bias is None else {"bias": head.bias})
    return TaskVector(tensors).fingerprint()


def _identity(lab: Lab, tasks: Sequence[str]) -> dict[str, Any]:
    """Return all that determines answers on the tasks beside the edit, their order included."""
    data = drawn.images_of(lab.suite)
    return {
        "algorithm": CACHE_VERSION,
        **lab.clip.identity,
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
        "counts": {**lab.scale.counts, **more(lab, tasks)},
        **({"head": "probe again"} if lab.parameters.vocabulary == "closed" else {}),
    }


def _key(bench: Bench, name: str, *, search: bool = False) -> dict[str, Any]:
    key = {**bench.key(name), "fixed": dict(rule_of(name).fixed)}
    return {**key, "of": "search"} if search else key


def _pairs(trial: Trial, alpha: float, keep: Keep) -> dict[str, Any]:
    """Return the effect of two vectors on each other's task, for all pairs."""
    rows: Iterator[dict[str, Any]] | None = None

    def pair(number: int, one: str, two: str) -> dict[str, Any]:
        nonlocal rows
        if rows is None:  # those before it are kept
            asked = trial.evaluator, trial.vectors_on_device, [alpha], PAIR_IMAGES
            rows = pair_errors(*asked, linear=trial.linear, first=number)
        found = {row["metric"]: row["value"] for row in itertools.islice(rows, 2)}
        cosine = trial.vectors[one].cosine(trial.vectors[two])
        named = {"tasks": [one, two], "cosine": cosine}
        return named | {"xi": found["xi_pair"], "lost": found["lost"]}

    pairs = enumerate(itertools.combinations(trial.vectors, 2))
    return {"rows": [keep("+".join(ab), functools.partial(pair, n, *ab)) for n, ab in pairs]}
