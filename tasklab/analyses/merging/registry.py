"""The methods of merging by name. A new one is an entry of `METHODS` and its test."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tasklab.errors import TasklabError, unknown

if TYPE_CHECKING:
    from tasklab.analyses.merging.vectors import Vectors
    from tasklab.taskvector import TaskVector


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """A way of merging.

    Attributes:
        place: The module and the function of it that merges; loaded when it is first used, so that
            names can be listed without torch.
        title: In tables and figures.
        text: What it does, in a line.
        paper: Number on arXiv.
        needs: The option that takes what images tell of the tasks; empty if none is needed.
        searched: The option that is chosen on validation images (`search`); empty if there is none.
        values: Those of it that are tried: the paper's and its neighbours.
    """

    place: str
    title: str
    text: str
    paper: str
    needs: str = ""
    searched: str = ""
    values: tuple[float, ...] = ()

    @property
    def function(self) -> Callable[..., TaskVector]:
        """Task vectors, and options by name -> one task vector."""
        module, name = self.place.split(".")
        return getattr(importlib.import_module(f"tasklab.analyses.merging.{module}"), name)

    @property
    def options(self) -> dict[str, Any]:
        """What it takes beside the vectors, with the defaults."""
        parameters = inspect.signature(self.function).parameters
        return {name: p.default for name, p in list(parameters.items())[1:]}


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "average": Method(
            place="sums.average", title="Average", text="the mean", paper="2203.05482"
        ),
        "arithmetic": Method(
            place="sums.arithmetic", title="Task arithmetic", text="the sum", paper="2212.04089"
        ),
        "lines": Method(
            place="sums.lines", title="LiNeS", text="the sum, more of it in deeper blocks",
            paper="2410.17146",
            searched="beta", values=(0.5, 2.0, 8.0),
        ),
        "ties": Method(
            place="masks.ties", title="TIES", text="the largest numbers, of the elected sign",
            paper="2306.01708",
            searched="keep", values=(0.1, 0.2, 0.3),
        ),
        "dare": Method(
            place="masks.dare", title="DARE", text="numbers drawn at random, rescaled",
            paper="2311.03099",
            searched="drop", values=(0.5, 0.7, 0.9),
        ),
        "breadcrumbs": Method(
            place="masks.breadcrumbs", title="Breadcrumbs",
            text="neither the smallest nor the largest numbers of a row", paper="2312.06795",
            searched="small", values=(0.7, 0.85, 0.95),
        ),
        "breadcrumbs_tensor": Method(
            place="masks.breadcrumbs_tensor", title="Breadcrumbs of tensors",
            text="neither the smallest nor the largest numbers of a tensor", paper="2312.06795",
            searched="small", values=(0.7, 0.85, 0.95),
        ),
        "consensus": Method(
            place="masks.consensus", title="Consensus",
            text="the sum, where it matters to several tasks", paper="2405.07813",
            searched="threshold", values=(0.2, 0.4, 0.6),
        ),
        "pcb": Method(
            place="masks.pcb", title="PCB", text="numbers weighed by competition",
            paper="2410.02396",
            searched="keep", values=(0.05, 0.1, 0.2),
        ),
        "tsv_m": Method(
            place="singular.tsv_m", title="TSV-M",
            text="leading singular directions of each task, made orthogonal", paper="2412.00081",
        ),
        "iso_c": Method(
            place="singular.iso_c", title="Iso-C", text="the sum, all its directions of one size",
            paper="2502.04959",
        ),
        "iso_cts": Method(
            place="singular.iso_cts", title="Iso-CTS",
            text="common directions and the tasks' own, all of one size", paper="2502.04959",
            searched="common", values=(0.6, 0.8, 0.9),
        ),
        "fisher": Method(
            place="quadratic.fisher", title="Fisher", text="numbers weighed by Fisher information",
            paper="2111.09832", needs="diagonals",
        ),
        "regmean": Method(
            place="quadratic.regmean", title="RegMean",
            text="matrices that give what each task's gives on its images", paper="2212.09849",
            needs="grams",
            searched="ratio", values=(0.3, 0.6, 0.9),
        ),
        "wudi": Method(
            place="quadratic.wudi", title="WUDI",
            text="linear layers that interfere little with the tasks' own", paper="2503.08099",
        ),
        "wudi_exact": Method(
            place="quadratic.wudi_exact", title="WUDI's minimum",
            text="matrices that interfere least with the tasks' own", paper="2503.08099",
        ),
        "wudi_descent": Method(
            place="quadratic.wudi_descent", title="WUDI, FusionBench",
            text="the same by 300 steps, as FusionBench has it", paper="2503.08099",
        ),
    }
)  # fmt: skip
# What goes by the same name and is left out, with the reason.
_OTHER = {
    "tall_masks": "keeps a mask for each task and is no single model; `consensus` is the merge",
    "emr": "keeps a mask for each task and is no single model",
    "tsv_c": "keeps directions for each task and is no single model; `tsv_m` is the merge",
    "wemoe": "chooses weights for each image and is no single model",
    "adamerging": "learns its coefficients from unlabelled test images",
    **dict.fromkeys(
        ("tau_jp", "ortho_reg"), "is a way of fine-tuning: merge vectors that were trained so"
    ),
    **dict.fromkeys(
        ("best", "best_span", "best_loss"),
        "is solved for on images, as a mark for the others: `experiments.merging` does it",
    ),
}


def merge(name: str, vectors: Vectors, **options: Any) -> TaskVector:
    """Return the task vectors of several tasks merged into one.

    Args:
        name: One of `METHODS`.
        vectors: Of one model, in a row or by their tasks' names.
        **options: Of the method: alpha, and what its function takes beside.

    Raises:
        TasklabError: If there is no such method or option, or as the method raises.

    >>> import torch
    >>> from tasklab.taskvector import TaskVector
    >>> one, two = (TaskVector({"w": torch.tensor(x)}) for x in ([2.0, 0.0], [4.0, 2.0]))
    >>> merge("average", [one, two])["w"]
    tensor([3., 1.])
    """
    chosen = method(name)
    if wrong := [option for option in options if option not in chosen.options]:
        raise unknown(f"option of {name}", wrong[0], chosen.options)
    return chosen.function(vectors, **options)


def method(name: str) -> Method:
    """Return a method by its name, or raise a `TasklabError` that suggests the nearest one."""
    if name in _OTHER:
        raise TasklabError(f"{name} {_OTHER[name]}.")
    if not isinstance(name, str) or name not in METHODS:
        raise unknown("method of merging", name, METHODS)
    return METHODS[name]
