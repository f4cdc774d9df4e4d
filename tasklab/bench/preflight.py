"""Check for missing weights, images, memory and disk space before loading."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tasklab import machine
from tasklab.bench.parameters import Parameters, folder
from tasklab.errors import TasklabError
from tasklab.models import loading
from tasklab.models.zoo import family, spec
from tasklab.storage import folders
from tasklab.tasks import images as pictures_of
from tasklab.tasks.suites import Suite
from tasklab.tuning import footprint

if TYPE_CHECKING:
    from tasklab.tasks.images.loader import DecodedImages

_EVALUATED = 3  # copies of theta in memory: theta_0, a vector, the edited model


def complete(
    parameters: Parameters,
    pictures: DecodedImages | None,
    needs: Sequence[str] = (),
    *,
    use: str = "train",
    tasks: Sequence[str] | None = None,
    weights: bool = True,
) -> None:
    """Raise one `TasklabError` that names everything that is missing, within seconds.

    Weights that could be fetched are not missing, and are not fetched before the images are there.

    Args:
        parameters: Of the study.
        pictures: Of its suite (`images_of`); `None` where all are embedded.
        needs: Roles of further models; those that the model's family does not have are left out.
        use: `"train"` needs memory and disk for fine-tuning, `"evaluate"` memory for the model,
            `"plan"` neither.
        tasks: Only images of these must be there; `None` for all.
        weights: Whether the model's own weights must be there.

    Raises:
        TasklabError: With a line for everything that is missing.
    """
    roles = family(parameters.model)
    names = [parameters.model, *(roles[role] for role in needs if role in roles)]

    def problem(model: str) -> str:
        try:
            loading.locate(model, parameters.init, fetch=False)
        except TasklabError as error:
            return str(error)
        return ""

    wanted = dict.fromkeys(names if weights else names[1:])
    with ThreadPoolExecutor(len(names)) as pool:  # each may wait for the hub
        problems = [*filter(None, pool.map(problem, wanted))]
    if pictures is not None:
        problems += pictures.missing() if tasks is None else lacking(pictures, tasks)
    slow = parameters.device == "cpu" and parameters.precision == "bfloat16"
    if use == "train" and slow and not machine.fast_in_bfloat16():
        problems.append(
            "this processor is not clearly faster in bfloat16 than in float32: leave out precision."
        )
    if use != "plan":
        problems += _too_small(parameters, dict.fromkeys(names), trains=use == "train")
    if problems:
        raise TasklabError("\n".join(problems))


def images_of(
    parameters: Parameters, tasks: Suite, *, progress: bool = False
) -> DecodedImages | None:
    """Return the images of a suite, not located yet; `None` if all are embedded.

    Args:
        parameters: They have the folder of data sets.
        tasks: The suite.
        progress: Whether to show progress bars while images are decoded.
    """
    if all(task.source is None for task in (*tasks.tasks, tasks.control)):
        return None
    return pictures_of.loader.DecodedImages(
        suite=tasks, root=folder("data_root", parameters.data_root), progress=progress
    )


def lacking(pictures: DecodedImages, tasks: Sequence[str]) -> list[str]:
    """Name the missing images of some tasks in one line; empty if none are."""
    found = {task: lines for task in dict.fromkeys(tasks) if (lines := pictures.missing(task))}
    if len(found) < 2:
        return [line for lines in found.values() for line in lines]
    return [
        f"images of {', '.join(found)} are missing or wrong: "
        f"`python -m tasklab decode {pictures.suite.name}` tells what each of them needs, and with "
        "--fetch gets what the hub has."
    ]


def _too_small(parameters: Parameters, names: Iterable[str], *, trains: bool) -> list[str]:
    room = machine.free_on(str(parameters.device))
    disk = machine.disk(folders.store(parameters.store_root))
    problems = []
    for name in names:
        entry = spec(name)
        tower = entry.tower
        if tower is None:
            continue
        least = _EVALUATED * 4 * tower.parameters
        if trains and (span := footprint.span(entry)) is not None:
            least = span[0]
        if room is not None and least > room:
            takes, free = machine.too_large(least, room)
            what = ("fine-tuning", " even one image at a time") if trains else ("evaluating", "")
            problems.append(
                f"{what[0]} {name} takes {takes} of memory{what[1]}, and {free} are free on "
                f"{parameters.device}: end other programs, or take a smaller model."
            )
        if not trains:
            continue
        kept = 4 * 4 * tower.parameters  # the vector, and a checkpoint with AdamW's moments
        if disk.free < kept:
            takes, free = machine.too_large(kept, disk.free)
            problems.append(
                f"a run of {name} takes {takes} of disk, and {disk.path} has "
                f"{free} free: free some space, or choose another folder by "
                "store_root or TASKLAB_STORE."
            )
    return problems
