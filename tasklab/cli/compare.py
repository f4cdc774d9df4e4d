"""The command `tasklab compare`: which merge of some task vectors is the best one."""

from __future__ import annotations

import json as writer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from tasklab.analyses.merging import registry
from tasklab.cli.parsing import settings
from tasklab.cli.vectors import (
    TOGETHER,
    check_several,
    check_target,
    check_tasks,
    check_words,
    lab_of,
    named,
    own_tasks,
    print_notes,
    row_of,
    sources_of,
    tell_time,
)
from tasklab.errors import TasklabError, path
from tasklab.exchange import places
from tasklab.storage import rooms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tasklab.exchange.merged import Source
    from tasklab.exchange.places import Target
    from tasklab.experiments import Lab
    from tasklab.experiments.contest import Contest
    from tasklab.tasks.suites import Task

if TYPE_CHECKING:
    Settings = dict[str, Any]
else:
    Settings = settings()


def compare(
    vector: tyro.conf.Positional[tuple[str, ...]],
    given: Settings,
    *,
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK=FOLDER")] = (),
    methods: str = "all",
    without_labels: bool = False,
    template: tuple[str, ...] = (),
    base: str | None = None,
    out: Path | str = "report.html",
    merged: Path | str | None = None,
    model_out: Path | str | None = None,
    csv: Path | str | None = None,
    json: bool = False,
) -> None:
    """Compare merges of task vectors on their tasks' images, and write a report.

    Args:
        vector: Files or folders of task vectors or published checkpoints, names of imported ones,
            or TASK@METHOD for runs of the store; TASK=VECTOR gives one its task.
        given: As in a chapter's first code cell.
        data: A task's folder of images, one folder a class. By default the suite's images. Heads
            are zero-shot, made of the class names; for a model without a text tower, linear probes.
        template: A prompt of the tasks of --data, e.g. "a photo of a {}."; give several for their
            mean.
        methods: Merges to compare, separated by commas; a wrong name shows all.
        without_labels: Choose options, coefficients and the merge by what they lose in the tangent
            model on unlabelled validation images, E(tau) / E(0). Labels of test images only report.
        base: The checkpoint that published ones start from.
        out: The report to write, one HTML file.
        merged: Write the best merge as a task vector, with its coefficient.
        model_out: Write the best merged model, with a card: NAME.safetensors or NAME.pt for
            open_clip, or a folder for transformers.
        csv: Write accuracies and gains of every model on every task.
        json: Print JSON: best, model, tasks, merges (merge, mean, half_interval, gain, alpha,
            option, validation, loss, seconds), useless (tasks whose vector does not help), written.
    """
    check_several("compare", vector)
    targets = {"--out": path("--out", out)}
    targets |= {
        name: path(name, one) for name, one in (("--merged", merged), ("--csv", csv)) if one
    }
    if len({target.resolve() for target in targets.values()}) < len(targets):
        raise TasklabError(f"{' and '.join(targets)} must be different files.")
    for name, target in targets.items():
        check_target(name, target)
    if merged:
        places.check_free(targets["--merged"], [named(word)[1] for word in vector])
    model = given.get("model")
    into = None if model_out is None else places.target(path("--model-out", model_out), model)
    chosen = registry.several(None if methods == "all" else methods.split(","))
    own = own_tasks(data, template)
    check_tasks({task: task for task, _ in map(named, vector) if task}, own, given)
    of = f" of {model}" if model else ""
    doing = f"comparing {len(chosen)} merges of {len(vector)} task vectors{of}"
    check_words(doing, vector, given, base)
    from tasklab.exchange import publishing  # start-up: torch
    from tasklab.experiments import contest as contests

    if into is not None and given.get("model"):  # before vectors are read
        publishing.check_model(into, given["model"], given.get("init") or "pretrained", base)

    drafts = [*targets.values(), *([into.place, *into.beside.values()] if into else [])]
    with rooms.room(targets["--out"].parent, ".merge-", drafts) as room:
        sources = sources_of(vector, given, base, room, heads=True)
        method = sources[0].method
        of_task = _by_task(sources, own, given)
        start = {**given, "model": sources[0].model, "init": sources[0].init}
        lab = lab_of(start, list(of_task), own, base, sources)
        if into is not None:
            if sources[0].linear:
                raise TasklabError(f"{sources[0].name} {TOGETHER}: leave --model-out out.")
            if not given.get("model"):
                publishing.check_model(into, sources[0].model, sources[0].init)
        vectors = {task: one.vector for task, one in of_task.items()}
        asked = {"labels": not without_labels}
        about = contests.seconds(lab, vectors, method, chosen, **asked)
        tell_time(f"{len(chosen)} merges of {len(vectors)} vectors", about, kept=True)
        found = contests.contest(lab, vectors, method, chosen, **asked)
        written = _write(targets, into, found, lab, of_task, method)
    answer = {
        "best": found.best.name,
        "model": lab.parameters.model,
        "tasks": list(found.tasks),
        "merges": [
            {
                "merge": one.name,
                "mean": one.mean[0],
                "half_interval": one.mean[1],
                "gain": one.gain(found.start)[0],
                "alpha": one.alpha,
                "option": one.option,
                "validation": one.validation,
                "loss": one.loss,
                "seconds": one.seconds,
            }
            for one in found.merges
        ],
        "useless": found.useless(),
        "written": {name: str(target) for name, target in targets.items()},
    }
    if json:
        print(writer.dumps(answer, indent=1))
        return
    width = max(len(one.title) for one in (*found.merges, found.start))
    print(f"{'merge':<{width}}  test accuracy, %   gain  coefficient")
    for one in found.merges:
        (mean, half), (gain, _) = one.mean, one.gain(found.start)
        print(
            f"{one.title:<{width}}    {mean:5.1f} +- {half:3.1f}    {gain:+6.1f}  {one.alpha:.3g}"
        )
    mean, half = found.start.mean
    print(f"{found.start.title:<{width}}    {mean:5.1f} +- {half:3.1f}")
    print_notes({one.name: one.notes for one in of_task.values()})
    for task in found.useless():
        print(
            f"the vector of {task} does not surely raise the accuracy on it: is it the right one?"
        )
    rule = "Best on validation images" if found.labels else "Least E on unlabelled images"
    print(f"{rule}: {found.best.title}. Written: {', '.join(written)}.")


def _by_task(
    sources: Sequence[Source], own: Mapping[str, Task], given: dict[str, Any]
) -> dict[str, Source]:
    """Return the vectors by the task whose images belong to them."""
    found: dict[str, Source] = {}
    check_tasks({one.task: one.name for one in sources}, own, {**given, "model": sources[0].model})
    for one in sources:
        if one.task in found:
            raise TasklabError(
                f"{found[one.task].name} and {one.name} are both of the task {one.task}: give one "
                "vector for a task, or TASK=VECTOR."
            )
        found[one.task] = one
    if idle := [task for task in own if task not in found]:
        raise TasklabError(f"--data {idle[0]}=... has no vector: TASK=VECTOR gives it one.")
    return found


def _write(
    targets: dict[str, Path],
    into: Target | None,
    found: Contest,
    lab: Lab,
    of_task: dict[str, Source],
    method: str,
) -> list[str]:
    """Write the report and what else is asked for; each file is there whole, or not at all."""
    from tasklab.analyses.merging import METHODS
    from tasklab.book import contest as report
    from tasklab.exchange import merged, publishing
    from tasklab.experiments import contest as contests
    from tasklab.machine import gib
    from tasklab.storage import atomic
    from tasklab.taskvector import TaskVector

    sources, best = list(of_task.values()), found.best
    vectors = {task: one.vector for task, one in of_task.items()}
    rows = [row_of(one) for one in sources]
    asked = into is not None or "--merged" in targets
    result = contests.merged(lab, vectors, method, best) if asked else TaskVector({})
    options = {"alpha": best.alpha}
    if best.option is not None:
        options[METHODS[best.name].searched] = best.option
    if into is not None:
        encoder, p = lab.clip.encoder, lab.parameters
        about: dict[str, Any] = {
            "method": best.name,
            "title": best.title,
            "paper": METHODS[best.name].paper,
            "base": str(lab.base or f"{p.model} ({p.init})"),
            "options": options,
            "vectors": rows,
            "weights": encoder.weights_hash,
        }
        with publishing.written(into, result.apply(encoder.params), encoder, about, lab.base):
            pass
    if target := targets.get("--merged"):
        merged.write(target, result, sources, {"method": best.name, "options": options})
    if target := targets.get("--csv"):
        import pandas as pd

        text = pd.DataFrame(report.rows(found)).to_csv(index=False, lineterminator="\n")
        atomic.write(target, text)
    p, splits = lab.parameters, ("val", "test")
    about = {
        "model": p.model,
        "suite": p.suite,
        "vectors": rows,
        "images": {t: {s: lab.evaluator.count(t, s) for s in splits} for t in found.tasks},
        "written": [*map(str, targets.values()), *([str(into.place)] if into else [])],
        "provenance": lab.provenance(),
        "memory": gib(_peak(lab.device)),
    }
    atomic.write(targets["--out"], report.page(found, about))
    return about["written"]


def _peak(device: Any) -> int:
    """Return the most bytes that this process has had, on a CUDA device those of tensors there."""
    if device.type == "cuda":
        import torch  # start-up

        return torch.cuda.max_memory_allocated(device)
    import resource  # not on Windows

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
