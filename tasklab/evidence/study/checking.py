"""Recorded rows, measured again: a sample of all parts, and how many come out bit for bit.

A row can come out where it was measured on this make of processor, on images that are drawn today,
and after fine-tuning in a precision that this processor is fast in. Results go into a store of
their own: no recorded result is read, and the same call goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from tasklab.bench.parameters import Parameters
from tasklab.errors import TasklabError
from tasklab.evidence.chapters import CHAPTERS, Work
from tasklab.evidence.chapters import chapter as chapter_of
from tasklab.evidence.experiments import Lab
from tasklab.evidence.experiments.registry import find
from tasklab.evidence.records import table as records
from tasklab.evidence.records.schema import MEASURED, NETWORKS
from tasklab.evidence.study.results import recorded
from tasklab.evidence.study.sittings import each_of, former_images, rows_of
from tasklab.tuning.recipe import usual_precision

# Metrics of time and memory, which come out once.
SPENT = {"solving", "time_ratio", "peak_memory", "memory_ratio"}
_NARROWED = {"merges": "merge", "n_tasks": "n_tasks"}  # options that leave other rows as they are


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A recorded row, and the experiment that measures it."""

    chapter: str
    part: str
    number: int  #: Its place in the part's file, from 0
    told: Mapping[str, Any]  #: Its columns
    work: Work  #: Of the part, with this row's method and experiment alone
    threads: int  #: That it was measured with
    reason: str  #: Why it cannot come out here; empty if it can

    @property
    def where(self) -> str:
        """Chapter, part and place."""
        return f"{self.chapter}/{self.part} row {self.number}"

    def lab(self, parameters: Parameters, **more: Any) -> Lab:
        """Return the lab of the row's seed."""
        seed = self.told["seed"]  # none where no seed matters
        applied = self.work.applied(parameters, (0 if pd.isna(seed) else int(seed),))
        return Lab(applied, progress=False, tasks=self.work.tasks, **more)

    def steps(self, parameters: Parameters) -> int:
        """Return the number of fine-tuning steps missing in the store."""
        lab, ((name, options),) = self.lab(parameters, use="plan"), self.work.names.items()
        runs = find(name).runs(lab, list(self.work.methods), **options)
        return sum(run.recipe.steps for run in runs if not run.kept)

    def now(self, parameters: Parameters) -> float | None:
        """Return the value that is measured now; `None` if no row has these columns."""
        ((name, options),) = self.work.names.items()
        methods = [list(self.work.methods)] if self.work.methods else []
        usual = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            table = records.tidy(find(name).call(self.lab(parameters), *methods, **options))
        finally:
            torch.set_num_threads(usual)
        for column, value in self.told.items():
            if column in MEASURED or pd.isna(value) or value == "":
                continue
            if column not in table:
                return None
            table = table[table[column] == value]
        return float(table["value"].iloc[0]) if len(table) else None


def sample(
    count: int,
    parameters: Parameters,
    *,
    seed: int = 0,
    chapters: Sequence[str] = tuple(CHAPTERS),
    others: bool = False,
) -> tuple[list[Row], Counter[str]]:
    """Draw rows that can come out here, from one part after another in random order.

    Args:
        count: Of rows.
        parameters: The preset `full`, with the device of this machine and the store of the check.
        seed: Of the draw: the same rows for the same seed and the same records.
        chapters: Those to draw from.
        others: Whether to draw from the rows that cannot come out here, too.

    Returns:
        The rows whose models are here, those first that need the fewest steps of fine-tuning, and
        the number of recorded rows by the reason why they cannot come out here, or `""`.
    """
    draw, reasons = random.Random(seed), Counter[str]()
    able: dict[tuple[str, str], list[int]] = {}
    for chapter in chapters:
        for part in chapter_of(chapter).parts:
            why = _reasons(*recorded(chapter, part), parameters)
            reasons.update(why)
            if places := [place for place, one in enumerate(why) if others or not one]:
                able[chapter, part] = places
    parts = draw.sample(sorted(able), len(able))
    rows: list[Row] = []
    costs: dict[str, int] = {}
    for chapter, part in itertools.islice(itertools.cycle(parts), 20 * count if parts else 0):
        if len(rows) == count:
            break
        row = _row(chapter, part, draw.choice(able[chapter, part]), parameters)
        if row is None or row.where in costs:
            continue
        with contextlib.suppress(TasklabError):  # of a model whose weights are not here
            costs[row.where] = row.steps(parameters)
            rows.append(row)
    return sorted(rows, key=lambda row: costs[row.where]), reasons


def measured_again(rows: Sequence[Row], parameters: Parameters) -> Iterator[tuple[Row, str, bool]]:
    """Measure recorded rows again; yield each with its new value, or the reason for none."""
    for row in rows:
        try:
            value = row.now(parameters)
        except TasklabError as error:
            yield row, f"none: {error}", False
        else:
            told = "none: no such row" if value is None else repr(value)
            yield row, told, value == row.told["value"]


def _reasons(table: pd.DataFrame, origin: Mapping[str, Any], parameters: Parameters) -> list[str]:
    """Return for each row why it cannot come out here; empty if it can."""
    why = pd.Series("unknown sitting", index=table.index)
    for sitting in reversed(each_of(origin) if origin else []):
        why[rows_of(sitting, table)] = _reason(sitting, parameters)
    why[table["metric"].map(is_cost).astype(bool)] = "a time or memory"
    return why.tolist()


def is_cost(metric: str) -> bool:
    """Return whether a metric is a time or memory.

    >>> is_cost("seconds_per_step"), is_cost("absolute")
    (True, False)
    """
    return metric in SPENT or metric.startswith("seconds")


def _reason(sitting: Mapping[str, Any], parameters: Parameters) -> str:
    here = _make(records.provenance()["machine"])
    there = _make(sitting["machine"])
    if former_images(sitting):
        return "former images"
    if there != here:
        return f"measured on {there}, this is {here}"
    precision = parameters.precision or usual_precision(str(parameters.device))
    if sitting.get("precision", precision) != precision:
        return f"fine-tuned in {sitting['precision']}, here it is {precision}"
    if sitting["torch"].partition("+")[0] != torch.__version__.partition("+")[0]:
        return f"torch {sitting['torch']}, here it is {torch.__version__}"
    return ""


def _make(machine: Mapping[str, Any]) -> str:
    """Return the accelerator's name, or the make of the processor."""
    told = f"{machine.get('make') or ''} {machine.get('cpu') or 'unknown processor'}".strip()
    return machine.get("gpu") or next((one for one in ("AMD", "Intel") if one in told), told)


def _row(chapter: str, part: str, place: int, parameters: Parameters) -> Row | None:
    """Return a recorded row with the work that measures it, if the part still declares one."""
    table, origin = recorded(chapter, part)
    told = table.iloc[place].to_dict()
    sitting = next(one for one in each_of(origin) if rows_of(one, table.iloc[[place]]).all())
    for work in chapter_of(chapter).works(part):
        model = work.changes.get("model", origin["model"])
        init = work.changes.get("init", origin["init"])
        if told["model"] not in NETWORKS and (model, init) != (told["model"], told["init"]):
            continue
        methods = [told["method"]] if told["method"] in work.methods else list(work.methods[:1])
        if work.methods and told["method"] not in (*work.methods, "pretrained", "probe"):
            continue
        for name, options in work.names.items():
            if options.get("network", told["model"]) != told["model"]:
                continue
            if told["experiment"] in find(name).records:
                own = {name: _narrowed(name, options, told)}
                return Row(
                    chapter=chapter, part=part, number=place, told=told,
                    work=dataclasses.replace(work, methods=tuple(methods), names=own),
                    threads=int(sitting["machine"].get("threads") or 1),
                    reason=_reason(sitting, parameters),
                )  # fmt: skip
    return None


def _narrowed(name: str, options: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    takes, own = inspect.signature(find(name).call).parameters, dict(options)
    for option, column in _NARROWED.items():
        value = told.get(column)
        if option not in takes or value is None or pd.isna(value):
            continue
        known = own.get(option, takes[option].default)
        if known is None or value in known:
            own[option] = (value if isinstance(value, str) else int(value),)
    return own
