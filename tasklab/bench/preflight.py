"""List missing weights, images, memory and disk space before loading.

Doctor, chapters, `record`, `paper` and grids of runs all ask here and `inventory`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from tasklab import machine
from tasklab.bench import inventory
from tasklab.bench.parameters import Parameters, folder
from tasklab.errors import TasklabError
from tasklab.models.zoo import family, spec
from tasklab.storage import folders
from tasklab.tasks import images as pictures_of
from tasklab.tasks.suites import Suite
from tasklab.tuning import footprint

if TYPE_CHECKING:
    from tasklab.tasks.images.loader import DecodedImages

_EVALUATED = 3  # copies of theta in memory: theta_0, a vector, the edited model


class Lack(NamedTuple):
    """One thing that something cannot run without."""

    kind: str  #: `"weights"`, `"images"`, `"precision"`, `"memory"` or `"disk"`
    what: str  #: The model, or the tasks
    why: str  #: A sentence with a way out


def missing(
    parameters: Parameters,
    pictures: DecodedImages | None,
    needs: Sequence[str] = (),
    *,
    use: str = "train",
    tasks: Sequence[str] | None = None,
    weights: bool = True,
) -> list[Lack]:
    """List all missing weights, images, memory and disk space, within seconds.

    Weights that could be fetched are not missing, and are not fetched.

    Args:
        parameters: Of the study.
        pictures: Of its suite (`images_of`); `None` where all are embedded.
        needs: Roles of further models; roles that the model's family lacks are left out.
        use: `"train"` needs memory and disk for fine-tuning, `"evaluate"` memory for the model,
            `"plan"` neither.
        tasks: Only images of these must be there; `None` for all.
        weights: Whether the model's own weights must be there.
    """
    roles = family(parameters.model)
    names = [parameters.model, *(roles[role] for role in needs if role in roles)]
    wanted = list(dict.fromkeys(names if weights else names[1:]))
    find = functools.partial(inventory.find_weights, init=parameters.init)
    with ThreadPoolExecutor(len(names)) as pool:  # each may wait for the hub
        found = pool.map(find, map(spec, wanted))
    lacks = [Lack("weights", one.model, one.problem) for one in found if one.problem]
    if pictures is not None:
        absent = pictures.missing() if tasks is None else lacking(pictures, tasks)
        lacks += [Lack("images", pictures.suite.name, line) for line in absent]
    slow = parameters.device == "cpu" and parameters.precision == "bfloat16"
    if use == "train" and slow and not machine.fast_in_bfloat16():
        why = (
            "this processor is not clearly faster in bfloat16 than in float32: leave out precision."
        )
        lacks.append(Lack("precision", "bfloat16", why))
    if use != "plan":
        lacks += _too_small(parameters, dict.fromkeys(names), trains=use == "train")
    return lacks


def complete(
    parameters: Parameters, pictures: DecodedImages | None, *given: Any, **more: Any
) -> None:
    """Raise one `TasklabError` with a line for everything that is `missing`.

    Args:
        parameters: Of the study.
        pictures: Of its suite (`images_of`); `None` where all are embedded.
        *given: As for `missing`.
        **more: As for `missing`.
    """
    if lacks := missing(parameters, pictures, *given, **more):
        raise TasklabError("\n".join(one.why for one in lacks))


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


def _too_small(parameters: Parameters, names: Iterable[str], *, trains: bool) -> list[Lack]:
    room = machine.free_on(str(parameters.device))
    disk = machine.disk(folders.store(parameters.store_root))
    lacks = []
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
            why = (
                f"{what[0]} {name} takes {takes} of memory{what[1]}, and {free} are free on "
                f"{parameters.device}: end other programs, or take a smaller model."
            )
            lacks.append(Lack("memory", name, why))
        if not trains:
            continue
        kept = 4 * 4 * tower.parameters  # the vector, and a checkpoint with AdamW's moments
        if disk.free < kept:
            takes, free = machine.too_large(kept, disk.free)
            why = (
                f"a run of {name} takes {takes} of disk, and {disk.path} has "
                f"{free} free: free some space, or choose another folder by "
                "store_root or TASKLAB_STORE."
            )
            lacks.append(Lack("disk", name, why))
    return lacks
