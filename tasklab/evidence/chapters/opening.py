"""Open a chapter: check for missing files, count runs, and return its lab."""

from __future__ import annotations

from typing import Any

from tasklab.bench import preflight
from tasklab.bench.lab import Lab
from tasklab.bench.parameters import Parameters
from tasklab.bench.runs import tasks_of
from tasklab.evidence.chapters import chapter, check, outlook, page_of
from tasklab.isolation import isolated
from tasklab.progress import tell
from tasklab.tasks import own
from tasklab.tuning import finetune


@isolated
def lab_of(name: str, parameters: Parameters, *, progress: bool, **more: Any) -> Lab:
    """Return the lab of a chapter (`chapters.open`), after checking its weights and images.

    Args:
        name: The chapter, or its appendix: `"tangent"`, `"tangent_more"`.
        parameters: Of the notebook's first cell.
        progress: Whether to show bars and print the runs.
        more: Further arguments of `Lab`: `tasks`, `own`, `base` and others.

    Raises:
        TasklabError: If weights, images or text towers that the chapter needs are missing (all are
            named in one sentence), or the chapter needs attention and the model has none.
    """
    check(name, parameters.model)
    page, live = page_of(name), parameters.live or "all"
    # else the chapter takes shipped ones
    if not parameters.light and parameters.vectors is None:
        needs = chapter(name).needs(parameters.preset, live, page)
        there = tasks_of(parameters, own.listed(more.get("own", ())), more.get("tasks"))
        images, weights = preflight.images_of(parameters, there), more.get("base") is None
        preflight.complete(parameters, images, needs, weights=weights)
    if page == "more" and live != "all":
        more["use"] = "plan"  # recorded results alone: the network's libraries take seconds
    lab = Lab(parameters, progress=progress, **more)
    lab.chapter = name
    if chapter(name).attention:  # of a model no table has
        finetune.trainable(lab.clip.encoder.params, "attention", parameters.model)
    if lab.rehearsal and live == "example":
        tell("Recorded results do not change.")
    if progress and lab.published is None:
        tell(outlook.describe(lab, name))
    return lab
