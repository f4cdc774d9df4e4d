"""Recorded results: a chapter's experiments in the preset `full`, as files with their origin.

A chapter has parts, each a file of its own: `editing` (its tables), `maps` (disentanglement), ...
"""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from tasklab import experiments
from tasklab.chapters import CHAPTERS, SCHEMES, SORTS
from tasklab.chapters import chapter as chapter_of
from tasklab.errors import TasklabError, choose, whole
from tasklab.experiments import Lab
from tasklab.experiments.parameters import Parameters
from tasklab.models.zoo import FAMILIES
from tasklab.progress import track
from tasklab.records import papers
from tasklab.study.comparisons import schemes, sides
from tasklab.tuning.methods import JOINT, POSTHOC

PARADIGMS = ("attention", "attention_bias", "attention_mlp", "attention_mlp_bias")
RECORDED = Path(__file__).parent / "recorded"


@dataclasses.dataclass(frozen=True)
class Work:
    """Experiments on one model.

    Attributes:
        methods: What they compare; none for an experiment that fine-tunes nothing.
        names: Of the experiments in `tasklab.experiments`, each with its options.
        changes: Of the study's parameters, e.g. another model.
        seeds: Only the first so many of the study's seeds; `None` for all.
        metrics: Only these metrics are recorded; `None` for all.
    """

    methods: Sequence[str]
    names: Mapping[str, Mapping[str, Any]]
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int | None = None
    metrics: Sequence[str] | None = None


_TANGENT = CHAPTERS["tangent"].methods
_TABLES = {"single": {}, "addition": {}}
_ONE_PAIR = {"disentanglement": {"n_pairs": 1}}
# The paper's further models: sizes, a convolutional network, a closed vocabulary, text; and an
# untrained one. Of each: what is compared in sums, what in maps, and how many seeds.
FAMILY = {
    "mini_s": (_TANGENT, ("nonlinear", "posthoc"), 2),
    "mini_xs": (_TANGENT, ("nonlinear", "posthoc"), 2),
    "mini_convnext": (("nonlinear", "linearized"), ("nonlinear", "linearized"), 1),
    "mini_sup_few": (("nonlinear", "linearized"), ("nonlinear", "posthoc"), 1),
    "mini_t5": (("nonlinear",), ("nonlinear", "linearized"), 1),
}
_XI = ("xi_classifier",)
# Cross-task linearity in the middle of all pairs, and what it may foretell.
_PAIRS = {"cross_task": {"alphas": (0.5,)}, "pair_errors": {"coefficients": (0.5,)}}
_EPOCHS = (0, 1, 2, 5, 10, 20)
_RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)
_EMERGENCE = {
    "pretraining": _EPOCHS,
    "finetuning": _EPOCHS[1:],
    "pretraining samples": _RATIOS,
    "other samples": _RATIOS,
}
_RANDOM = {"init": "random"}
# Pre-training schemes with probed heads: all of them, and one of each sort.
_PROBED = {role: {"model": FAMILIES[0][role], "head": "probe"} for role in SCHEMES}
_SORTS = {role: _PROBED[role] for role in SORTS}
_UNTRAINED = {**_PROBED["sup_few"], **_RANDOM}
_SHARES = ("single", "absolute", "normalised", "lambda")  # without the seconds they took
_LARGE = ("sup_large", "clip_large")  # take three times as long: fewer seeds
_SUMS = {"closed_addition": {}}
PARTS: dict[str, dict[str, tuple[Work, ...]]] = {
    "tangent": {
        "editing": (
            Work(_TANGENT, {"single": {}, "addition": {}, "negation": {}}),
            Work(_TANGENT, {"own_coefficients": {}}, seeds=1),
            Work(("posthoc", "linearized"), {"exact_alpha": {}}, seeds=1),
        ),
        "family": (
            *(Work(sums, _TABLES, {"model": m}, n) for m, (sums, _, n) in FAMILY.items()),
            Work(("nonlinear", "linearized"), _TABLES, _RANDOM, 1),
        ),
        "maps": (
            Work(_TANGENT, {"disentanglement": {}}, seeds=1, metrics=_XI),
            Work(_TANGENT, _ONE_PAIR, metrics=_XI),
            *(Work(maps, _ONE_PAIR, {"model": m}, n, _XI) for m, (_, maps, n) in FAMILY.items()),
            Work(("nonlinear",), _ONE_PAIR, _RANDOM, 1, _XI),
        ),
        "kernels": (Work((), {"localization": {}}),),
    },
    "linear_layers": {
        "editing": (
            Work((*CHAPTERS["linear_layers"].methods, "attention_posthoc"), _TABLES),
            Work(PARADIGMS[1:], {"single": {}, "addition": {"n_tasks": (8,)}}, seeds=1),
        ),
        "maps": (
            Work(
                CHAPTERS["linear_layers"].methods,
                {"disentanglement": {"reach": 2.0, "points": 15}},
                seeds=1,
            ),
        ),
        "cost": (Work((), {"step_cost": {}}),),
        "layers": (
            Work(
                ("nonlinear", "linearized", "attention"),
                {"cosines": {}, "alignment": {}},
                metrics=("cosine", "norm", "predicted_ratio", "change_ratio", "lost"),
            ),
            Work(("nonlinear", "linearized", "attention"), {"linear_gaps": {}}),
        ),
    },
    "ctl": {
        "editing": (
            Work(
                ("nonlinear",),
                {"cross_task_addition": {}, "cross_task_negation": {}, "cross_task_sum": {}},
            ),
            Work((), {"averaging": {}}),
        ),
        "methods": (
            Work(
                CHAPTERS["ctl"].methods,
                _PAIRS,
                metrics=("distance", "base", "coef", "xi_pair", "lost"),
            ),
            Work(("nonlinear",), _PAIRS, {"model": "mini_sup_few"}, 1),
        ),
        "text": (
            Work(
                ("nonlinear",),
                {"cross_task_addition": {}, "cross_task_negation": {}},
                {"model": "mini_t5"},
                2,
            ),
        ),
        "stitching": (
            Work(("nonlinear",), {"stitched_addition": {}, "stitched_negation": {}}, seeds=2),
        ),
        "scratch": (
            *(
                Work((), {"scratch_linearity": {"network": name}, "segments": {"network": name}})
                for name in ("mlp", "resnet18")
            ),
            *(Work((), {"emergence": {"what": k, "values": v}}) for k, v in _EMERGENCE.items()),
        ),
        "theorem": (*(Work((), {"theorem": {"network": name}}) for name in ("mlp", "resnet18")),),
    },
    "closed_vocab": {
        "editing": (
            *(Work((), {"probing": {}}, model) for model in (*_PROBED.values(), _UNTRAINED)),
            *(
                Work(("nonlinear",), _SUMS, model, 1 if role in _LARGE else None, _SHARES)
                for role, model in _PROBED.items()
            ),
            *(
                Work((JOINT,), _SUMS, model, 1 if role in _LARGE else None, _SHARES)
                for role, model in _PROBED.items()
            ),
            Work(("nonlinear",), _SUMS, _UNTRAINED, 2, _SHARES),
        ),
        "maps": (
            *(
                Work(("nonlinear",), _ONE_PAIR, model, 1 if role in _LARGE else 2, _XI)
                for role, model in _PROBED.items()
            ),
            *(Work((JOINT,), _ONE_PAIR, model, 1, _XI) for model in _SORTS.values()),
            Work(("nonlinear",), _ONE_PAIR, _UNTRAINED, 2, _XI),
        ),
        "open": (
            Work((), {"probing": {}}, {"model": FAMILIES[0]["medium"]}),
            Work(("nonlinear", JOINT), _SUMS, {"model": FAMILIES[0]["medium"]}, metrics=_SHARES),
        ),
        "subsets": (
            *(
                Work((JOINT,), {"subsets": {}}, _PROBED[role], 1)
                for role in (*_SORTS, "sup_many", "sup_large")
            ),
            *(
                Work((method,), {"subsets": {}}, _PROBED[role], 1)
                for method in ("nonlinear", "linearized")
                for role in ("sup_few", "clip_more")
            ),
        ),
        "search": (
            *(
                Work(("probe", "nonlinear", JOINT), {"learning_rates": {}}, model, 1)
                for model in _SORTS.values()
            ),
        ),
        "beyond": (
            *(
                Work(("linearized", "posthoc", "attention"), _SUMS, _PROBED[role], 1, _SHARES)
                for role in ("sup_few", "dino", "clip_more")
            ),
            *(
                Work(("nonlinear",), {"cross_task": {"alphas": (0.5,)}}, model, 1)
                for model in _PROBED.values()
            ),
        ),
    },
}


def study(
    chapter: str,
    parameters: Parameters,
    *,
    part: str = "editing",
    out: Path | None = None,
    jobs: int = 1,
) -> Path:
    """Compute a part of a chapter's records (preset `full`) and write them as a data file.

    Args:
        chapter: One of `chapters.CHAPTERS`.
        parameters: What to study.
        part: One of the chapter's parts.
        out: The CSV file; by default the recorded results that ship with the package.
        jobs: Processes that share the work and the processor's cores: with small models two with
            one core each are faster than one with two.

    Returns:
        The path of the CSV file; its provenance lies beside it as JSON.
    """
    works = _works(chapter, part)
    if parameters.rehearsal and out is None:
        raise TasklabError("a rehearsal is no result: give --out, or more steps.")
    jobs, lab = whole("jobs", jobs, 1), Lab(parameters)
    if jobs > 1:
        _share(parameters, works, jobs)
    tables = [table for work in works for table in _records(parameters, work)]
    path = out or _path(chapter, part)
    table = pd.concat(tables, ignore_index=True).drop_duplicates()
    if part == "subsets":  # every method brings the probes along: the first one's stand for all
        keys = ["model", "method", "subset", "metric", "seed"]
        table = table[(table["method"] != "probe") | ~table.duplicated(keys)]
    table = papers.tidy(table)
    if part != "editing":  # curves along alpha are many rows, and drawn of the main model only
        table = table[table["experiment"] != "sweep"]
    if chapter == "closed_vocab":  # whose curves are drawn as shares
        table = table[(table["experiment"] != "sweep") | (table["metric"] == "normalised")]
    origin = {**lab.provenance(), "jobs": jobs}
    del origin["seconds"]  # tells nothing: what was in the store took no time
    papers.write(path, table, origin)
    return path


def _works(chapter: str, part: str) -> tuple[Work, ...]:
    choose(f"part of chapter {chapter!r},", part, chapter_of(chapter).parts)
    return PARTS[chapter][part]


def _path(chapter: str, part: str) -> Path:
    return RECORDED / (f"{chapter}.csv" if part == "editing" else f"{chapter}_{part}.csv")


def _records(parameters: Parameters, work: Work, progress: bool = True) -> list[pd.DataFrame]:
    """Return the tables of some work, from the store where they are there."""
    seeds = parameters.seeds[: work.seeds]
    changes = {"suite": None, **work.changes} if "model" in work.changes else dict(work.changes)
    lab = Lab(dataclasses.replace(parameters, seeds=seeds, **changes), progress=progress)
    methods = [work.methods] if work.methods else []
    tables = [getattr(experiments, n)(lab, *methods, **more) for n, more in work.names.items()]
    if work.metrics is None:
        return tables
    return [table[table["metric"].isin(work.metrics)] for table in tables]


def _share(parameters: Parameters, works: Sequence[Work], jobs: int) -> None:
    """Fill the store by several processes, one method and seed at a time in each."""
    items = [
        (dataclasses.replace(work, methods=methods), seed)
        for work in works
        # a post-hoc vector is a non-linear one: last, it needs no training
        for methods in ([(m,) for m in sorted(work.methods, key=POSTHOC.__contains__)] or [()])
        for seed in parameters.seeds[: work.seeds]
    ]
    threads = max(1, torch.get_num_threads() // jobs)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = [pool.submit(_one_share, parameters, *item, threads) for item in items]
        done = track(as_completed(waiting), len(items), "methods and seeds", unit="run")
        for future in done:
            future.result()


def _one_share(parameters: Parameters, work: Work, seed: int, threads: int) -> None:
    torch.set_num_threads(threads)
    _records(dataclasses.replace(parameters, seeds=(seed,)), work, progress=False)


def recorded(chapter: str, part: str = "editing") -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the recorded results of the full preset that ship with the package.

    Args:
        chapter: One of `chapters.CHAPTERS`.
        part: One of the chapter's parts.

    Returns:
        Tidy records, and their provenance.

    Raises:
        TasklabError: If there are none.
    """
    _works(chapter, part)
    path = _path(chapter, part)
    if not path.exists():
        raise TasklabError(
            f"there are no recorded results at {path}: make them with "
            f"python -m tasklab study {chapter} --part {part}"
        )
    return papers.read(path)


def evidence(chapter: str) -> pd.DataFrame:
    """Return all recorded results by which a chapter's claims are judged, maps as their box means.

    Raises:
        TasklabError: If a part was not recorded.
    """
    parts = [(chapter, part) for part in PARTS[chapter]]
    parts += [("linear_layers", "cost")] if chapter == "tangent" else []
    tables = [recorded(*part)[0] for part in parts]
    box = (-1.0, 1.0) if chapter == "closed_vocab" else (0.0, 1.0)  # as each paper draws it
    boxes = [papers.box_means(t, *box) for t in tables if "alpha1" in t]
    found = papers.combine(*(t for t in tables if "alpha1" not in t), *boxes)
    if chapter == "closed_vocab":
        return pd.concat([found, schemes(found)], ignore_index=True)
    return sides(found) if chapter == "ctl" else found
