"""What recorded results rest on: how its models were fine-tuned, and how long all of it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tasklab.experiments.runner import KIND
from tasklab.storage.store import Artifact, Store
from tasklab.study.sittings import NAMES
from tasklab.tuning import multitask

_RUN = "finetune"  # kind of artifact
# What a run is about, not how it is run; the rest is told elsewhere in the provenance.
_ABOUT = {"task", "seed", "classes", "prompts", "data", "others", "algorithm", "probe"}


def behind(asked: Mapping[tuple[str, str], Artifact], store: Store) -> dict[str, Any]:
    """Return the sources of records, as entries of a provenance.

    Args:
        asked: Artifacts that the store was asked for while the records were collected.
        store: The one that has them.

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
        name = " ".join(str(run[n]) for n in NAMES if n in run and n not in shared)
        groups.setdefault(name or str(run["method"]), []).append(run)
    varied = {}
    for name, group in groups.items():
        own = {}
        for field in fields:
            values = {repr(run[field]): run[field] for run in group if field in run}
            if field not in shared and field not in NAMES and values:
                several = sorted(values.values(), key=lambda v: (str(type(v)), v))
                own[field] = several[0] if len(several) == 1 else several
        varied[name] = own
    return {"recipe": shared, "recipes": varied}
