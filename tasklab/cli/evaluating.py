"""The command `tasklab evaluate`: accuracies of an edited model, beside those of the unedited."""

from __future__ import annotations

import json as writer
from pathlib import Path
from typing import Annotated, Any

import tyro

import tasklab
from tasklab.cli import request
from tasklab.cli.parsing import Given, settings
from tasklab.cli.runs import checked, suite_of
from tasklab.errors import TasklabError, choose, real, shown
from tasklab.isolation import isolated
from tasklab.models.zoo import REGISTRY
from tasklab.progress import shared, tell

Term = Annotated[tuple[str, ...], tyro.conf.arg(metavar="VECTOR[:COEFFICIENT]")]
SPLITS = ("test", "val")


@isolated
def evaluate(
    model: tyro.conf.Positional[str],
    given: Annotated[Given, settings("model")],
    *,
    add: Term = (),
    subtract: Term = (),
    task: tuple[str, ...] = (),
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK=FOLDER")] = (),
    template: tuple[str, ...] = (),
    split: str = "test",
    linear: bool = False,
    base: str | None = None,
    json: bool = False,
) -> None:
    """Add and subtract task vectors; print accuracies before and after, and the gain.

    Args:
        model: Short name, see `tasklab list models`.
        given: As in a chapter's first code cell.
        add: A vector as `tasklab merge` takes it, times a coefficient (by default 1).
        subtract: The same with the opposite sign.
        task: Only this task. By default all of the suite, and the control task.
        data: A task's own folder of images, one folder a class, in place of the suite's tasks.
        template: A prompt of the tasks of --data, e.g. "a photo of a {}."
        split: test or val.
        linear: Edit the linearized model. By default where the vectors were made for it.
        base: The checkpoint that published ones start from.
        json: Print JSON: model, suite, split, linear, edits (vector, coefficient, notes), tasks
            (task, control, images, how many are distinct, accuracy in % before and after, gain in
            points, low, high and half_interval: ends and half the width of its 95 % interval) and
            their mean without the control.
    """
    choose("split", split, SPLITS)
    if model not in REGISTRY and Path(model).expanduser().exists():
        raise TasklabError(
            f"{shown(model)} is a file or folder, and evaluate takes a model's name first: tasklab "
            f"evaluate MODEL --add {shown(model)}, or --base for whole weights."
        )
    given |= {"model": model}
    terms = [*map(_term, add), *((name, -c) for name, c in map(_term, subtract))]
    names = [name for name, _ in terms]
    asked = request.read_words("evaluate", names, given, base=base, data=data, template=template)
    there = suite_of(checked(given))
    every = tuple(asked.own) or (*there.names, there.control.name)
    chosen = tuple(dict.fromkeys(task)) or every  # each counts once
    for one in chosen:
        choose("task", one, every)
    with_them = f" with {len(names)} task vector{'s'[: len(names) != 1]}" if names else ""
    asked.check(f"evaluating {model}{with_them}")
    with asked.vectors() as vectors:
        lab = vectors.lab(chosen)
        linear = linear or any(one.linear for one in vectors.sources)
        pairs = [(one, c) for one, (_, c) in zip(vectors.sources, terms, strict=True)]
        vector = tasklab.TaskVector.sum(one.vector * c for one, c in pairs)
        heads = vectors.heads(lab) if names else None
        found = lab.evaluate(vector, chosen, split, linear=linear, heads=heads)
    edits: list[dict[str, Any]] = [
        {"vector": name, "coefficient": c, "notes": [*one.notes]}
        for name, (one, c) in zip(names, pairs, strict=True)
    ]
    if json:
        about = {"model": model, "suite": lab.parameters.suite, "split": split, "linear": linear}
        about |= {"edits": edits, "tasks": found.rows, "mean": found.mean}
        print(writer.dumps(about, indent=1))
    else:
        print(found)
        for edit in edits:
            print(f"  {edit['coefficient']:+g} {edit['vector']}")
        for note in shared({edit["vector"]: edit["notes"] for edit in edits}):
            print(f"  {note}")
    if found.harmful and not lab.reaches_far(vector):  # else the lab has told it
        tell(
            f"This edit is worse than the pre-trained model: {found.gain:+.1f} points. Give the "
            "vector a smaller coefficient (VECTOR:0.3), or merge with `tasklab merge --search`."
        )


def _term(word: str) -> tuple[str, float]:
    """Return a vector's name and its coefficient.

    >>> _term("merged.safetensors:0.3"), _term("C:/merged")
    (('merged.safetensors', 0.3), ('C:/merged', 1.0))
    """
    name, colon, number = word.rpartition(":")
    try:
        coefficient = float(number)
    except ValueError:
        if colon and Path(name).exists() and not Path(word).exists():
            problem = f"a coefficient is a number such as 0.3, not {shown(number)}"
            raise TasklabError(f"{word}: {problem}.") from None
        return word, 1.0
    return (name, real("a coefficient", coefficient, -1e6, 1e6)) if colon else (word, 1.0)
