"""A rule of one's own on the recorded worlds, by the protocol that the recorded merges had.

The vectors of each world are those of its recorded runs: fine-tuned by the same recipe, at the same
seeds, once into the store. The rule's coefficient is chosen in as many looks at validation images.
Its accuracy on test images is then compared with that of recorded merges at the same seed, on the
same set of tasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from tasklab.analyses.merging import registry
from tasklab.bench.lab import Lab
from tasklab.bench.merges import Bench
from tasklab.errors import TasklabError, texts, whole
from tasklab.evidence.chapters.chapter import ICONS
from tasklab.evidence.experiments.merging import merging_of
from tasklab.evidence.experiments.runner import Trial
from tasklab.evidence.records import targets
from tasklab.evidence.records.intervals import Interval
from tasklab.evidence.study import results
from tasklab.progress import bar, track
from tasklab.tasks import icons

METHOD, COUNT = "nonlinear", 8
WORLDS = ("mini", ICONS["model"])
AGAINST = ("arithmetic", "tsv_m")
_PARTS = {"mini": ("editing",), ICONS["model"]: ("icons", "sets")}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Judgement:
    """Accuracy of a rule in one world."""

    world: str  #: Its model
    rule: str
    rows: pd.DataFrame  #: Accuracy in % by merge, seed, subset and task; the rule's and recorded
    #: Against each of `AGAINST`: the mean gain in points with its interval for other tasks, and for
    #: other sets of tasks where the rule was judged on several.
    gains: dict[str, dict[str, Interval]]
    places: pd.Series  #: Mean accuracy in % of all merges on the default tasks, the best first

    @property
    def mean(self) -> float:
        """Mean accuracy in % on the default tasks."""
        return float(self.places[self.rule])

    @property
    def place(self) -> int:
        """Place among the recorded merges on the default tasks, 1 for the best."""
        return 1 + int((self.places > self.mean).sum())


def runs(
    worlds: Sequence[str] | str = WORLDS, *, seeds: int | str = 3, sets: int | str = 3, **given: Any
) -> list[tuple[Lab, list[Trial]]]:
    """Return the lab of each world, and the trials that a rule is judged in.

    Args:
        worlds: Names of models.
        seeds: Of fine-tuning, from 0 on.
        sets: Recorded sets of eight of the second world's 24 tasks, beside the default ones.
        given: Further arguments of the labs.
    """
    found = []
    for world in texts("worlds", worlds, WORLDS):
        many = whole("sets", sets, 0) if world == WORLDS[1] else 0
        drawn = [one for one in icons.sets()[COUNT] if one != icons.usual()][:many]
        about: dict[str, Any] = {
            "preset": "full",
            "seeds": range(whole("seeds", seeds, 1)),
            **given,
        }
        lab = Lab(world, tasks="all" if many else None, **about)
        usual = icons.usual() if many else lab.suite.names
        named = {"lab": lab, "experiment": "merging", "method": METHOD}
        trials = [
            Trial(**named, seed=seed, tasks=tasks)  # type: ignore[arg-type]
            for seed in lab.seeds
            for tasks in (usual, *drawn)
        ]
        found.append((lab, trials))
    return found


def untrained(there: Sequence[tuple[Lab, list[Trial]]]) -> int:
    """Count the vectors that are to be fine-tuned first."""
    asked = {
        (lab.parameters.model, task, trial.seed): lab
        for lab, trials in there
        for trial in trials
        for task in trial.tasks or lab.suite.names
    }
    return sum(
        not lab.store.has("finetune", lab.identity(task, METHOD, seed))
        for (_, task, seed), lab in asked.items()
    )


def fine_tune(there: Sequence[tuple[Lab, list[Trial]]]) -> None:
    """Fine-tune the vectors that the store lacks."""
    runs = {(lab, seed): dict[str, None]() for lab, _ in there for seed in lab.seeds}
    for lab, trials in there:
        for trial in trials:
            runs[lab, trial.seed] |= dict.fromkeys(trial.tasks or lab.suite.names)
    on = all(lab.progress for lab, _ in there)
    for (lab, seed), tasks in track([*runs.items()], len(runs), "vectors", unit="seed", on=on):
        lab.vectors(METHOD, seed, tasks)


def judge(rule: str, there: Sequence[tuple[Lab, list[Trial]]]) -> list[Judgement]:
    """Judge a rule, or a method by its name, in each world of `runs`."""
    rule = registry.named(rule)
    if untrained(there):  # before searches, whose time is another
        fine_tune(there)
    found = []
    for lab, trials in there:
        rows: list[dict] = []
        for trial in track(trials, len(trials), "judging", unit="run", on=lab.progress):
            made = _searched(Bench(trial), rule)
            rows += [row for row in made if row["metric"] == "absolute"]
        found.append(_judged(lab.parameters.model, rule, pd.DataFrame(rows)))
    return found


def _searched(bench: Bench, rule: str) -> list[dict]:
    """Return the records of a rule, counting its evaluations in the line of progress."""
    keep, count = bench.keep, bench.sizes["looks"] + len(bench.options(rule)) + 2
    with bar(count, "search", unit="evaluation", on=bench.trial.lab.progress) as shown:

        def counted(name: str, make: Callable[[], Any]) -> Any:
            made = keep(name, make)
            shown.update()
            return made

        bench.keep = counted
        return merging_of(bench, rule)


def _judged(world: str, rule: str, rows: pd.DataFrame) -> Judgement:
    own = _plain(rows.assign(merge=rule))
    parts = [results.recorded("merging", part)[0] for part in _PARTS[world]]
    known = pd.concat(parts).query("experiment == 'merging' and method == @METHOD")
    known = _plain(known[known["n_tasks"] == COUNT])
    known = known[known["merge"] != rule]  # a method by its name is measured anew
    keys = ["seed", "subset", "task"]
    same = known.merge(own[keys], on=keys)
    gains: dict[str, dict[str, Interval]] = {}
    for other in AGAINST:
        pairs = own.merge(same[same["merge"] == other], on=keys, suffixes=("", "_of"))
        if pairs.empty:
            continue
        pairs = pairs.assign(difference=pairs["accuracy"] - pairs["accuracy_of"])
        kinds = [targets.TASKS] + [targets.SETS] * (pairs["subset"].nunique() > 1)
        gains[other] = {kind: targets.interval(pairs, kind) for kind in kinds}
    every = pd.concat([own, same])
    usual = every[every["subset"] == own["subset"].iloc[0]]
    places = usual.groupby("merge")["accuracy"].mean().sort_values(ascending=False, kind="stable")
    return Judgement(world=world, rule=rule, rows=every, gains=gains, places=places)


def _plain(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[(rows["metric"] == "absolute") & (rows["split"] == "test")]
    if rows.empty:
        raise TasklabError("no merges are recorded of this world.")
    usual = "+".join(icons.usual())
    subset = rows["subset"].fillna("")
    subset = subset.mask((subset == "") & rows["model"].eq(WORLDS[1]), usual)
    columns = {"merge": rows["merge"], "seed": rows["seed"].astype(int), "subset": subset}
    columns |= {"task": rows["task"], "accuracy": rows["value"]}
    return pd.DataFrame(columns)
