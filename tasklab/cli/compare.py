"""The command `tasklab compare`: which merge of some task vectors is the best one."""

from __future__ import annotations

import json as writer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from tasklab import analyses, bench, book, models
from tasklab.analyses.merging import order, registry
from tasklab.cli import idle, request, spreadsheet
from tasklab.cli.parsing import Given, settings
from tasklab.cli.request import Request
from tasklab.cli.runs import checked, suite_of
from tasklab.cli.vectors import Vectors
from tasklab.errors import TasklabError, texts
from tasklab.exchange import places
from tasklab.isolation import isolated
from tasklab.machine import gib
from tasklab.progress import columns, shared, tell
from tasklab.tasks import icons
from tasklab.tasks.suites import inputs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tasklab.analyses.shares import Estimate

_SHIPPED = ("mini", icons.NAME)  # suites of pictures; `tasks.drawn` takes seconds to import
_PAGE = places.Format(".html", b"task vectors</title>")
_CSV = places.Format(".csv", b"model,task,accuracy,")


@isolated
def compare(
    vector: tyro.conf.Positional[tuple[str, ...]],
    given: Annotated[Given, settings()],
    *,
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK=FOLDER")] = (),
    methods: str = "all",
    fast: bool = False,
    without_labels: bool = False,
    forget: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK")] = (),
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
            are zero-shot, made of the class names; for a model without a text tower those of the
            checkpoints, or linear probes.
        forget: A task without a vector whose accuracy before and after is measured too: one of
            the suite or its control task, or one of --data. By default the control task of a
            suite that comes with this package.
        template: A prompt of the tasks of --data, e.g. "a photo of a {}."; give several for their
            mean.
        methods: Merges to compare, separated by commas; a wrong name shows all. `all` leaves out
            those that are solved for on many images; all,least_few adds one.
        fast: Try three of them, those with the largest gains in recorded runs, and rules of one's
            own; the command says how often these had the best merge.
        without_labels: Choose options, coefficients and the merge by the loss E(tau) / E(0) in the
            tangent model on unlabelled validation images. Labels of test images only report.
        base: The checkpoint that published ones start from.
        out: The report to write, one HTML file.
        merged: Write the best merge as a task vector, with its coefficient.
        model_out: Write the best merged model, with a card: NAME.safetensors or NAME.pt for
            open_clip or timm, or a folder for transformers.
        csv: Write accuracies and gains of every model on every task.
        json: Print JSON: best (the merge to take), leader (the best on validation images), alike
            (merges that these cannot tell from it), model, tasks, images (of each task, by
            split), gains (whether the best merge is better than the pre-trained model, by what
            chose it), single (the best fine-tuned model on all tasks: task, mean, and probability
            that the best merge beats it), merges (merge, mean, mean_low, mean_high,
            half_interval, gain, gain_low, gain_high, alpha, option, validation, loss,
            seconds, forgot: task and points), useless (tasks whose vector does not surely help),
            written; with --fast also fast (untried: names; recorded: how good the first three
            were). Names in _low and _high are the ends of 95 % intervals.
    """
    asked = request.read_words(
        "compare", vector, given, base=base, data=data, template=template, model_out=model_out,
        files={"--out": (out, _PAGE), "--merged": (merged, places.VECTOR), "--csv": (csv, _CSV)},
    )  # fmt: skip
    every = registry.several(methods.split(","))
    chosen = _first(every, methods.split(",")) if fast else every
    if fast and len(chosen) == len(every):
        idle.refuse({"fast": fast}, f"it tries three merges, and --methods names {len(every)}")
    asked.check_tasks()
    others = _others(forget, asked)
    count = f"{len(chosen)} merge{'s'[: len(chosen) != 1]} of {len(vector)} task vectors"
    asked.check(f"comparing {count}" + (f" of {asked.model}" if asked.model else ""))
    with asked.vectors() as vectors:
        vectors.check_tasks()
        of_task = vectors.of_task()
        _check_named(forget, asked, of_task, others)
        vectors.check_model_out()
        lab = vectors.lab([*of_task, *others])
        depths = analyses.merging.sums.depths
        if "all" in methods.split(",") and not any(depths(next(iter(of_task.values()))).values()):
            chosen = tuple(name for name in chosen if name != "lines")
            tell("LiNeS is left out: it needs the parameters of at least two blocks.")
        about: dict[str, Any] = {"labels": not without_labels, "others": others}
        about["heads"] = vectors.heads(lab)
        if fast:
            tell(order.told(len(chosen), len(every)))
        found = bench.contest.contest(lab, of_task, vectors.method, chosen, **about)
        _write(vectors, found, lab, about["heads"])
    written = asked.outputs.written
    if json:
        answer = _answer(found, lab, written)
        if fast:
            left = [name for name in every if name not in chosen]
            answer["fast"] = {"untried": left, "recorded": order.odds()._asdict()}
        print(writer.dumps(answer, indent=1))
        return
    for line in _told(found, lab, vectors, others):
        print(line)
    print(f"Written: {', '.join(written.values())}.")
    if not found.gains:
        print("No merge is better than the pre-trained model there: keep the single models.")


def _check_named(
    forget: Sequence[str], asked: Request, of_task: Collection[str], others: Sequence[str]
) -> None:
    """Raise for a task to forget that has a vector, and for images of a task without one."""
    if wrong := [task for task in forget if task in of_task]:
        raise TasklabError(f"--forget {wrong[0]}: it has a vector, so it is measured anyway.")
    if idle := [task for task in asked.own if task not in (*of_task, *others)]:
        raise TasklabError(f"--data {idle[0]}=... has no vector: TASK=VECTOR gives it one.")


def _told(
    found: bench.contest.Contest, lab: bench.Lab, vectors: Vectors, others: Sequence[str]
) -> Iterator[str]:
    """Yield the table of merges, notes on vectors and images, and the merge to take."""
    rows = [["merge", "test accuracy, %", "95 % interval", "gain", "coefficient"]]
    for one in (*found.merges, found.start):
        mean, gain = one.mean, one.gain(found.start).value
        more = [f"{gain:+.1f}", f"{one.alpha:.3g}"] if one is not found.start else ["", ""]
        rows.append([one.title, f"{mean.value:.1f}", f"{mean.low:.1f} to {mean.high:.1f}", *more])
    yield from columns(rows, right=True)
    yield from (f"  {note}" for note in shared({x.name: x.notes for x in vectors.sources}))
    read = inputs(lab.suite.name)
    if useless := found.useless():
        idle = (f"{task} ({found.distinct(task)} test {read})" for task in useless)
        yield (
            f"not surely better on its task with its vector: {', '.join(idle)}. Is each the right "
            f"vector, and are there enough {read}?"
        )
    for task in others:
        lost = found.best.forgot(found.start, task)
        yield f"{task}, which has no vector, changes by {_points(lost)} with {found.best.title}."
    yield _chosen(found, f"{min(_images(lab, found)['val'].values())} validation {read}")


def _first(every: Sequence[str], named: Sequence[str]) -> tuple[str, ...]:
    """Return the merges that --fast tries."""
    return order.first(every, [registry.named(one.strip()) for one in named if one != "all"])


def _chosen(found: bench.contest.Contest, counted: str) -> str:
    """Return the recommended merge, and its certainty."""
    if not found.labels:
        return f"Least E without labels: {found.best.title}."
    text = f"The merge to take, by {counted} of each task: {found.best.title}."
    if others := [one.title for one in found.alike if one is not found.best]:
        text += f" They cannot tell {', '.join(others)} from it; it costs least."
    assert found.single is not None and found.over_single is not None, "labels chose"
    return text + (
        f"\nIt beats the best single model on all tasks ({found.single.title}, "
        f"{found.single.mean.value:.1f} %) with a probability of {100 * found.over_single:.0f} %."
    )


def _points(one: Estimate) -> str:
    return f"{one.value:+.1f} points ({one.low:+.1f} to {one.high:+.1f})"


def _images(lab: bench.Lab, found: bench.contest.Contest) -> dict[str, dict[str, int]]:
    evaluator = bench.contest.evaluator_of(lab, found.tasks)
    return {s: {t: evaluator.count(t, s) for t in found.tasks} for s in ("val", "test")}


def _others(forget: Sequence[str], asked: Request) -> tuple[str, ...]:
    """Return the tasks without a vector that are measured."""
    parameters, own = checked(asked.given), asked.own
    suite = suite_of(parameters)
    if parameters.vocabulary == "closed":
        if forget:
            raise TasklabError("--forget needs heads made of prompts: take a model with text.")
        return ()
    if not forget:
        return () if own or parameters.suite not in _SHIPPED else (suite.control.name,)
    there = tuple(own) or (*suite.names, suite.control.name)
    return tuple(dict.fromkeys(texts("--forget", forget, there)))


def _answer(
    found: bench.contest.Contest, lab: bench.Lab, written: Mapping[str, str]
) -> dict[str, Any]:
    plain = ("alpha", "option", "validation", "loss", "seconds")
    merges = [
        {"merge": one.name, **one.mean.named("mean"), "half_interval": one.mean.half}
        | one.gain(found.start).named("gain")
        | {name: getattr(one, name) for name in plain}
        | {"forgot": {task: one.forgot(found.start, task).value for task in one.others}}
        for one in found.merges
    ]
    single = found.single and {
        **{"task": found.single.title, "mean": found.single.mean.value},
        "probability": found.over_single,
    }
    return {
        **{"best": found.best.name, "leader": found.leader.name},
        **{"alike": [one.name for one in found.alike], "images": _images(lab, found)},
        "single": single,
        **{"model": lab.parameters.model, "tasks": list(found.tasks)},
        **{"gains": found.gains, "merges": merges, "useless": found.useless()},
        "written": written,
    }


def _write(
    vectors: Vectors,
    found: bench.contest.Contest,
    lab: bench.Lab,
    heads: Mapping[str, models.heads.Head],
) -> None:
    """Write the report and further files, each atomically."""
    best, p, written = found.best, lab.parameters, vectors.outputs.written
    rule, result = registry.method(best.name), None
    if "--merged" in written or places.OPTION in written:
        given = vectors.of_task()
        result = bench.contest.merged(lab, given, vectors.method, best, heads)
    options = {"alpha": best.alpha} | ({} if best.option is None else {rule.searched: best.option})
    texts: dict[str, str] = {}
    if "--csv" in written:
        import pandas as pd

        texts["--csv"] = spreadsheet.csv(pd.DataFrame(book.contest.rows(found)))
    about: dict[str, Any] = {"model": p.model, "suite": p.suite, "vectors": vectors.rows()}
    counts = _images(lab, found)
    about["images"] = {task: {s: of[task] for s, of in counts.items()} for task in found.tasks}
    about |= {"written": [*written.values()], "provenance": lab.provenance()}
    about["memory"] = gib(_peak(lab.device))
    texts["--out"] = book.contest.page(found, about)
    more = {"vectors": about["vectors"]}
    vectors.write(result, best.name, options, vector="--merged", lab=lab, more=more, texts=texts)


def _peak(device: Any) -> int:
    """Return this process's peak of bytes; on a CUDA device, of tensors."""
    if device.type == "cuda":
        import torch  # start-up

        return torch.cuda.max_memory_allocated(device)
    import resource  # not on Windows

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
