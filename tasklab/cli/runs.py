"""Vectors of the store's fine-tuning runs: the words TASK@METHOD and TASK@METHOD@SEED."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tasklab
from tasklab import exchange
from tasklab.bench.parameters import PRESETS, Parameters
from tasklab.cli.parsing import Given
from tasklab.errors import TasklabError, choose, path, shown, whole
from tasklab.storage.checksums import file_sha256
from tasklab.storage.store import Store
from tasklab.tasks.suites import Suite, suite
from tasklab.tuning.methods import METHODS, TABLE


def checked(given: Given) -> Parameters:
    """Return the parameters of a command, checked without torch: the device is looked at later."""
    return Parameters(**{"device": "cpu", **given})


def suite_of(parameters: Parameters) -> Suite:
    """Return the suite of some parameters."""
    assert parameters.suite is not None, "it has a default"
    return suite(parameters.suite)


def seeds_of(parameters: Parameters) -> tuple[int, ...]:
    """Return the seeds of some parameters."""
    assert isinstance(parameters.seeds, tuple), "they are a tuple once they are checked"
    return parameters.seeds


def labs(parameters: Parameters, of: Sequence[str], **about: Any) -> Iterator[tasklab.bench.Lab]:
    """Yield the labs in which runs of some tasks may have been made.

    The first has the tasks that a lab takes by default, if one of these is among them; the second
    all of the suite, if it has more: a penalty looks at the other tasks of its lab.

    Args:
        parameters: Model, suite and store.
        of: Names of tasks.
        about: Further arguments of `Lab`.
    """
    whole = suite_of(parameters)
    usual = whole.by_default().names
    if any(task in usual for task in of):
        yield tasklab.Lab(parameters, progress=False, use="evaluate", **about)
    if usual != whole.names:
        yield tasklab.Lab(parameters, progress=False, use="evaluate", **{"tasks": "all"} | about)


def is_named(name: str) -> bool:
    """Return whether a word names a run, and no file."""
    return "@" in name and not path("VECTOR", name).exists()


def of_name(name: str, given: Given) -> tuple[str, str, int]:
    """Return the task, method and seed that TASK@METHOD or TASK@METHOD@SEED stands for."""
    task, method, *seed = name.split("@")
    if ":" in method:
        raise TasklabError(f"{shown(name)} is no vector: a number follows TASK@METHOD and a colon.")
    choose("method", method, METHODS)
    if len(seed) > 1:
        raise TasklabError(f"{shown(name)} is not TASK@METHOD or TASK@METHOD@SEED.")
    parameters = checked(given)
    choose("task", task, suite_of(parameters).names)
    number = whole("SEED", seed[0], 0) if seed else seeds_of(parameters)[0]
    return task, method, number


def source(name: str, given: Given) -> exchange.merged.Source:
    """Return the vector of a run that is in the store."""
    task, method, number = of_name(name, given)
    parameters = Parameters(**given)
    # what a run learnt from is part of its identity
    seen = suite_of(parameters).names if TABLE[method].others else (task,)
    about: dict[str, Any] = {"images_of": seen}
    if parameters.vectors is not None:
        about["tasks"] = (task,)  # others need not be imported
    for lab in labs(parameters, [task], **about):
        if task not in lab.suite.names:
            continue
        if lab.published is None:
            run = lab.store.find("finetune", lab.identity(task, method, number))
        else:
            run = lab.store.find(*lab.published.place(task, method))
        if run is not None:
            break
    else:
        raise TasklabError(
            f"the run {name} is not in {lab.store.root}: {what_is_stored(lab.store, parameters)}"
        )
    names, heads = lab.clip.encoder.params, {}
    if parameters.vocabulary == "closed":
        own = lab.evaluator_of(method, number, [task]).head(task)
        head = {"weight": own.weight} | ({} if own.bias is None else {"bias": own.bias})
        heads = {} if own.normalise else {"": head}
    vector = tasklab.TaskVector({n: x for n, x in run.tensors().items() if n in names})
    return exchange.merged.Source(
        name=name, vector=exchange.merged.read_from(run.file, vector),
        model=lab.parameters.model, init=lab.parameters.init, task=task, method=method,
        weights=lab.clip.encoder.weights_hash, sha256=file_sha256(run.file), heads=heads,
    )  # fmt: skip


def what_is_stored(store: Store, parameters: Parameters) -> str:
    """Return which fine-tuning runs of a model a store has, and the option that finds them."""
    model = parameters.model
    groups: dict[tuple[str, int], dict[str, set]] = {}
    for one in store.configs("finetune"):
        if (one["model"], one["init"]) == (model, parameters.init):
            kind = one["method"], one["steps"]
            found = groups.setdefault(kind, {"tasks": set(), "seeds": set()})
            found["tasks"].add(one["task"])
            found["seeds"].add(one["seed"])
    if not groups:
        return f"it has no run of {model}. `tasklab train --model {model}` makes them."
    listed = [
        f"{method} of {', '.join(sorted(found['tasks']))} ({_option(parameters, steps)}, seeds "
        f"{', '.join(map(str, sorted(found['seeds'])))})"
        for (method, steps), found in sorted(groups.items())
    ]
    more = f"; and {len(listed) - 3} more methods or lengths" if len(listed) > 3 else ""
    return f"of {model} it has {'; '.join(listed[:3])}{more}."


def _option(parameters: Parameters, steps: int) -> str:
    """Return the option by which runs of a number of steps are found."""
    for preset in PRESETS:
        usual = Parameters(model=parameters.model, suite=parameters.suite, preset=preset)
        if usual.recipe(suite_of(usual).names[0], "nonlinear", 0).steps == steps:
            return f"--preset {preset}"
    return f"--steps {steps}"
