"""Record a chapter's experiments in the preset `full`, as files with their origin.

A chapter has parts, each a file of its own: `editing` (its tables), `maps` (disentanglement), ...
"""

from __future__ import annotations

import dataclasses
import errno
import inspect
import itertools
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch

from tasklab.bench.parameters import Parameters
from tasklab.errors import TasklabError, whole
from tasklab.evidence.chapters import Work
from tasklab.evidence.chapters import chapter as chapter_of
from tasklab.evidence.experiments import Lab
from tasklab.evidence.experiments.registry import find
from tasklab.evidence.experiments.runner import KIND
from tasklab.evidence.records import table as records
from tasklab.evidence.study import sittings, workers
from tasklab.evidence.study.results import path_of
from tasklab.storage.store import Artifact, Store, noting
from tasklab.tuning import multitask
from tasklab.tuning.methods import POSTHOC

_RUN = "finetune"  # kind of artifact
# What a run is about, not how it is run; the rest is told elsewhere in the provenance.
_ABOUT = {"task", "seed", "classes", "prompts", "data", "others", "algorithm", "probe"}


def study(
    chapter: str,
    parameters: Parameters,
    *,
    part: str = "editing",
    out: Path | None = None,
    jobs: int = 1,
    add: bool = False,
) -> Path:
    """Compute a part of a chapter's records (preset `full`) and write them as a data file.

    Args:
        chapter: Name of the chapter.
        parameters: Parameters of the notebook.
        part: One of its recorded parts.
        out: The CSV file; by default the recorded results that ship with the package.
        jobs: Processes that share the work and the processor's cores: with small models two with
            one core each are faster than one with two.
        add: Whether to keep the file that is there and compute what it lacks, perhaps on another
            machine: seeds, methods or learning rates. Provenance has an entry for each sitting.

    Returns:
        The path of the CSV file; its provenance lies beside it as JSON.

    Raises:
        TasklabError: If the file cannot be written (nothing is computed then), or a worker process
            was ended from outside; with `add` also if there is nothing to add to, or the file is of
            other choices.
    """
    works = chapter_of(chapter).works(part)
    if parameters.rehearsal and out is None:
        raise TasklabError("a rehearsal is no result: give --out, or more steps.")
    path = out or path_of(chapter, part)
    _writable(path, installed=out is None)
    jobs, lab = whole("jobs", jobs, 1), Lab(_of_all(works, parameters))
    items, earlier = asked(chapter, part, parameters, to=path if add else None)
    if jobs > 1:
        _share(parameters, items, jobs)
    with noting() as found:
        tables = [table for item in items for table in _records(parameters, *item)]
    table = pd.concat(tables, ignore_index=True).drop_duplicates()
    if part == "subsets":  # every method brings the probes along: the first one's stand for all
        keys = ["model", "method", "subset", "metric", "seed"]
        table = table[(table["method"] != "probe") | ~table.duplicated(keys)]
    table = records.tidy(table)
    if part != "editing":  # curves along alpha are many rows, and drawn of the main model only
        table = table[table["experiment"] != "sweep"]
    if chapter == "closed_vocab":  # whose curves are drawn as shares
        table = table[(table["experiment"] != "sweep") | (table["metric"] == "normalised")]
    made = sorted(int(seed) for seed in table["seed"].unique())  # parts need not have all asked for
    origin = {**lab.provenance(), "seeds": made, "jobs": jobs, **behind(found, lab.store)}
    origin["machine"] = origin["machine"] | {"threads": _threads(jobs)}  # of each process
    del origin["seconds"]  # tells nothing: what was in the store took no time
    if earlier is not None:
        table, origin = earlier.joined(table, origin)
    records.write(path, table, origin)
    return path


def asked(
    chapter: str, part: str, parameters: Parameters, *, to: Path | None = None
) -> tuple[list[tuple[Work, tuple[int, ...]]], sittings.Earlier | None]:
    """Return the works of a part with their seeds, and the records to which they are added.

    Args:
        chapter: Name of the chapter.
        part: One of its recorded parts.
        parameters: Parameters of the notebook.
        to: The file of these records; existing ones are not measured again.

    Raises:
        TasklabError: If it has everything, cannot be read, or is of other choices.
    """
    works = chapter_of(chapter).works(part)
    earlier = sittings.Earlier.read(to, Lab(_of_all(works, parameters))) if to else None
    items = [item for work in works for item in _lacking(work, parameters, earlier)]
    if to and earlier and not items:
        more = set(_seeds(parameters)) <= set(earlier.seeds)
        hint = "give more of them by --seeds" if more else "this part is recorded with no more"
        there = ", ".join(map(str, earlier.seeds))
        raise TasklabError(f"{to.name} has the seeds {there} already: {hint}.")
    return items, earlier


_COLUMNS = {"merges": "merge", "rates": "lr"}  # options whose values records tell, and where


def _of_all(works: Sequence[Work], parameters: Parameters) -> Parameters:
    first, *others = works
    alike = all(work.changes == first.changes for work in others)
    return first.applied(parameters, _seeds(parameters)) if alike else parameters


def _lacking(
    work: Work, parameters: Parameters, earlier: sittings.Earlier | None
) -> list[tuple[Work, tuple[int, ...]]]:
    """Split a work by the seeds that are not recorded, of the study's first few.

    They are looked up for each method, experiment, and merge or learning rate that is asked for.
    """
    model, asked = work.changes.get("model", parameters.model), _seeds(parameters)
    if earlier is None:
        return [(work, asked[: work.seeds])]
    missing: dict[tuple[tuple[int, ...], str], dict[str, list[Any]]] = {}
    for method, name in itertools.product(work.methods or ("",), work.names):
        option, values = _listed(name, work.names[name])
        for value in values:
            where = {_COLUMNS[option]: value} if option else {}
            there = earlier.seeds_of(model, method, find(name).records, where)
            every = [*there, *(seed for seed in asked if seed not in there)][: work.seeds]
            if seeds := tuple(every[len(there) :]):
                missing.setdefault((seeds, method), {}).setdefault(name, []).append(value)
    alike: dict[str, tuple[Work, tuple[int, ...]]] = {}  # methods that lack the same
    for (seeds, method), lacks in missing.items():
        others = alike[key][0].methods if (key := repr((seeds, lacks))) in alike else ()
        names = {name: _only(name, work.names[name], values) for name, values in lacks.items()}
        methods = tuple(filter(None, (*others, method)))
        alike[key] = dataclasses.replace(work, methods=methods, names=names), seeds
    return list(alike.values())


def _listed(name: str, options: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
    """Return the option of an experiment that records list value by value, and its values.

    Learning rates that a call leaves open may depend on the method: they are not looked up.
    """
    entry = find(name)
    for option, column in _COLUMNS.items():
        default = inspect.signature(entry.call).parameters.get(option)
        given = options.get(option, default.default if default and option == "merges" else None)
        if given and any(column in rows.columns for rows in entry.records.values()):
            return option, given
    return "", (None,)


def _only(name: str, options: Mapping[str, Any], values: Sequence[Any]) -> dict[str, Any]:
    option, _ = _listed(name, options)
    return {**options, option: tuple(values)} if option else dict(options)


def _seeds(parameters: Parameters) -> tuple[int, ...]:
    return cast("tuple[int, ...]", parameters.seeds)


def _writable(path: Path, *, installed: bool) -> None:
    """Raise a `TasklabError` if a file cannot be written, or belongs to an installed package."""
    if installed and {"site-packages", "dist-packages"} & set(path.parts):
        raise TasklabError(
            f"{path.parent} belongs to the installed package: say by --out where to write."
        )
    records.provenance_path(path)  # a name that cannot be is refused before anything is computed
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise TasklabError(f"cannot write records to {path}: {error.strerror}.") from error


def _records(
    parameters: Parameters, work: Work, seeds: Sequence[int], progress: bool = True
) -> list[pd.DataFrame]:
    lab = Lab(work.applied(parameters, seeds), progress=progress, tasks=work.tasks)
    methods = [work.methods] if work.methods else []
    tables = [find(name).call(lab, *methods, **more) for name, more in work.names.items()]
    if work.metrics is None:
        return tables
    return [table[table["metric"].isin(work.metrics)] for table in tables]


def _share(parameters: Parameters, items: Sequence[tuple[Work, Sequence[int]]], jobs: int) -> None:
    """Fill the store by several processes, one method and seed at a time in each."""
    tasks = []
    for work, seeds in items:
        # a post-hoc vector is a non-linear one: last, it needs no training
        ordered = sorted(work.methods, key=POSTHOC.__contains__)
        each: list[tuple[str, ...]] = [(method,) for method in ordered] or [()]
        shares = [(dataclasses.replace(work, methods=m), seed) for m in each for seed in seeds]
        tasks += [(parameters, *share, _threads(jobs)) for share in shares]
    workers.share(_one_share, tasks, jobs, title="methods and seeds", unit="run", helped=True)


def _threads(jobs: int) -> int:
    return max(1, torch.get_num_threads() // jobs)


def _one_share(parameters: Parameters, work: Work, seed: int, threads: int) -> None:
    torch.set_num_threads(threads)
    _records(parameters, work, [seed], progress=False)


def behind(asked: Mapping[tuple[str, str], Artifact], store: Store) -> dict[str, Any]:
    """Return the sources of records, as entries of a provenance.

    Args:
        asked: Artifacts that the store was asked for while the records were collected.

    Returns:
        recipe: the choices that all fine-tuning runs share, if there are runs, the weights that
        they begin with among them; recipes: those in which they differ, by model and method, as
        lists where they were varied; fine_tuning: how
        many runs there are, and the seconds of training in all of them, whenever that was;
        measuring: the same of measurements with them, `timed` those whose seconds are known.
    """
    measured = [artifact for (kind, _), artifact in asked.items() if kind == KIND]
    times = [artifact.seconds for artifact in measured if artifact.seconds is not None]
    measuring = {"runs": len(measured), "timed": len(times), "seconds": round(sum(times), 1)}
    joint = [  # in the order of the tasks' turns, which a stored configuration does not keep
        [a.config["runs"][row["task"]] for row in a.record["rows"]]
        for a in measured
        if multitask.KIND in a.config
    ]
    runs = {
        store.key(identity): identity
        for artifact in measured
        for identity in artifact.config.get("runs", {}).values()
    }
    runs |= {key: artifact.config for (kind, key), artifact in asked.items() if kind == _RUN}
    if not runs:
        tuned = {"runs": 0, "seconds": 0.0}
        return {"recipe": None, "fine_tuning": tuned, "measuring": measuring}
    whole = [(multitask.KIND, multitask.known_by(tasks)) for tasks in joint]
    kept = whole or [(_RUN, one) for one in runs.values()]  # a part is of one sort
    found = [artifact for one in kept if (artifact := store.find(*one))]
    seconds = round(sum(artifact.record["seconds"] for artifact in found), 1)
    return {
        **_recipes(runs.values()),
        "fine_tuning": {"runs": len(found), "seconds": seconds},
        "measuring": measuring,
    }


def _recipes(runs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    every = [{k: v for k, v in run.items() if k not in _ABOUT} for run in runs]
    fields = dict.fromkeys(name for run in every for name in run)
    shared = {n: every[0].get(n) for n in fields if len({repr(run.get(n)) for run in every}) == 1}
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in every:
        name = " ".join(str(run[n]) for n in sittings.NAMES if n in run and n not in shared)
        groups.setdefault(name or str(run["method"]), []).append(run)
    varied = {}
    for name, group in groups.items():
        own = {}
        for field in fields:
            values = {repr(run[field]): run[field] for run in group if field in run}
            if field not in shared and field not in sittings.NAMES and values:
                several = sorted(values.values(), key=lambda v: (str(type(v)), v))
                own[field] = several[0] if len(several) == 1 else several
        varied[name] = own
    return {"recipe": shared, "recipes": varied}
