"""The methods of merging by name. A new one is an entry of `METHODS` and its test."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tasklab.errors import TasklabError, choose, folded, unknown
from tasklab.isolation import isolated

if TYPE_CHECKING:
    from tasklab.analyses.merging.vectors import Vectors
    from tasklab.taskvector import TaskVector


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """A merge rule."""

    #: The module and the function of it that merges; loaded when it is first used, so that names
    #: can be listed without torch.
    place: str
    title: str
    text: str
    paper: str  #: Number on arXiv; empty for the book's own
    #: The option that takes what images tell of the tasks (`images.of_images`); empty for none.
    needs: str = ""
    pool: str = ""  #: The function that sums these up, task by task; empty where all are held
    #: The option that is chosen on validation images (`search`); empty if there is none.
    searched: str = ""
    values: tuple[float, ...] = ()  #: Those of it that are tried: the paper's and its neighbours
    #: Number of vectors -> the coefficient, and the value of `searched`, that validation images
    #: chose on the model `mini`: of the recorded runs (`study.results`) the value that was chosen
    #: most often, and the median coefficient at it.
    chosen: Mapping[int, tuple[float, float | None]] = dataclasses.field(default_factory=dict)
    like: str = ""  #: A variant whose `chosen` serves numbers at which this one is not recorded
    fixed: Mapping[str, float] = dataclasses.field(default_factory=dict)  #: Further options to take
    recorded: Mapping[str, float] = dataclasses.field(default_factory=dict)  #: Those of experiments

    @property
    def function(self) -> Callable[..., TaskVector]:
        """Task vectors, and options by name -> one task vector."""
        return _loaded(self.place)

    def pooled(self, vectors: Vectors, each: Iterable[Any]) -> Any:
        """Return the option `needs` from what images tell of each task, in the vectors' order."""
        return _loaded(self.pool)(vectors, each) if self.pool else list(each)

    @property
    def source(self) -> str:
        """Where the method is from."""
        return f"arXiv:{self.paper}" if self.paper else "this package"

    @property
    def options(self) -> dict[str, Any]:
        """What it takes beside the vectors, with the defaults."""
        parameters = inspect.signature(self.function).parameters
        return {name: p.default for name, p in list(parameters.items())[1:]}

    def recommended(self, count: int) -> dict[str, float]:
        """Return the coefficient and options to take for a number of vectors, without a search.

        Between recorded numbers of vectors the coefficient is interpolated on logarithmic scales;
        beyond them its trend goes on where it falls. A single number serves its neighbours.

        Raises:
            TasklabError: If the method is not recorded at such a number.

        >>> METHODS["arithmetic"].recommended(8), METHODS["ties"].recommended(3)
        ({'alpha': 0.288}, {'alpha': 1.13, 'keep': 0.2})
        """
        chosen = self._serving(count)
        if not chosen:
            there = ", ".join(map(str, self.chosen)) or "no number"
            raise TasklabError(
                f"{self.title} has no recommended coefficient for {count} vectors (recorded with "
                f"{there}): give alpha, or let validation images choose it (search)."
            )
        known = sorted(chosen)
        _, option = chosen[min(known, key=lambda n: abs(math.log(n / count)))]
        low, high = next(
            ((a, b) for a, b in itertools.pairwise(known) if count <= b), (known[-2:][0], known[-1])
        )
        (first, _), (last, _) = chosen[low], chosen[high]
        slope = 0.0 if low == high else math.log(last / first) / math.log(high / low)
        if count > high:
            alpha = last * (count / high) ** min(0.0, slope)
        else:
            alpha = first * (max(count, low) / low) ** slope
        found = {"alpha": float(f"{alpha:.3g}")}
        return found | ({self.searched: option} if option is not None else {}) | dict(self.fixed)

    def usual(self, count: int, options: Mapping[str, Any]) -> dict[str, float]:
        """Return the recommended options beside given ones; only fixed ones if alpha is given."""
        known = self._serving(count) or "alpha" not in {**self.fixed, **options}
        return self.recommended(count) if known else dict(self.fixed)

    def _serving(self, count: int) -> Mapping[int, tuple[float, float | None]]:
        """Return the chosen values by recorded number, if these serve a number of vectors."""
        chosen = {**(METHODS[self.like].chosen if self.like else {}), **self.chosen}
        near = all(2 / 3 <= count / number <= 3 / 2 for number in chosen)
        return chosen if len(chosen) > 1 or near else {}


def _loaded(place: str) -> Callable[..., Any]:
    module, name = place.split(".")
    return getattr(importlib.import_module(f"tasklab.analyses.merging.{module}"), name)


RECOMMENDED = "validation images of the model mini"  # where `Method.recommended` is from
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "average": Method(
            place="sums.average", title="Average", text="the mean", paper="2203.05482",
            chosen={2: (1.5, None), 4: (1.779, None), 8: (2.306, None)},
        ),
        "arithmetic": Method(
            place="sums.arithmetic", title="Task arithmetic", text="the sum", paper="2212.04089",
            chosen={2: (0.75, None), 4: (0.445, None), 8: (0.288, None)},
        ),
        "lines": Method(
            place="sums.lines", title="LiNeS", text="the sum, more of it in deeper blocks",
            paper="2410.17146",
            searched="beta", values=(0.5, 2.0, 8.0),
            chosen={2: (0.716, 0.5), 4: (0.448, 0.5), 8: (0.137, 2.0)},
        ),
        "ties": Method(
            place="masks.ties", title="TIES",
            text="trims small entries, elects signs, averages those that agree", paper="2306.01708",
            searched="keep", values=(0.1, 0.2, 0.3),
            chosen={2: (1.214, 0.3), 4: (1.073, 0.2), 8: (0.997, 0.1)},
        ),
        "dare": Method(
            place="masks.dare", title="DARE", text="drops entries at random and rescales the rest",
            paper="2311.03099",
            searched="drop", values=(0.5, 0.7, 0.9), recorded={"by_place": 1},
            chosen={2: (0.674, 0.5), 4: (0.452, 0.5), 8: (0.265, 0.5)},
        ),
        "breadcrumbs": Method(
            place="masks.breadcrumbs", title="Breadcrumbs",
            text="drops the smallest and the largest entries of each row", paper="2312.06795",
            searched="small", values=(0.7, 0.85, 0.95),
            like="breadcrumbs_tensor",
            chosen={8: (0.623, 0.85)},
        ),
        "breadcrumbs_tensor": Method(
            place="masks.breadcrumbs_tensor", title="Breadcrumbs of tensors",
            text="drops the smallest and the largest entries of each tensor", paper="2312.06795",
            searched="small", values=(0.7, 0.85, 0.95),
            chosen={2: (1.034, 0.7), 4: (0.655, 0.7), 8: (0.389, 0.7)},
        ),
        "consensus": Method(
            place="masks.consensus", title="Consensus",
            text="keeps the sum where it matters to several tasks", paper="2405.07813",
            searched="threshold", values=(0.2, 0.4, 0.6),
            chosen={2: (1.521, 0.4), 4: (0.685, 0.4), 8: (0.271, 0.2)},
        ),
        "pcb": Method(
            place="masks.pcb", title="PCB", text="weighs entries by their balanced competition",
            paper="2410.02396",
            searched="keep", values=(0.05, 0.1, 0.2),
            chosen={2: (1.406, 0.2), 4: (2.113, 0.05), 8: (1.113, 0.05)},
        ),
        "tsv_m": Method(
            place="singular.tsv_m", title="TSV-M",
            text="orthogonalises the leading singular directions of each task", paper="2412.00081",
            chosen={2: (1.261, None), 4: (1.116, None), 8: (1.048, None)},
        ),
        "iso_c": Method(
            place="singular.iso_c", title="Iso-C",
            text="the sum, with one singular value for all directions", paper="2502.04959",
            chosen={2: (2.066, None), 4: (1.72, None), 8: (1.054, None)},
        ),
        "iso_cts": Method(
            place="singular.iso_cts", title="Iso-CTS",
            text="common and task-specific directions, one singular value", paper="2502.04959",
            searched="common", values=(0.6, 0.8, 0.9),
            chosen={2: (2.156, 0.9), 4: (2.089, 0.8), 8: (1.388, 0.6)},
        ),
        "boosting": Method(
            place="singular.boosting", title="Subspace Boosting",
            text="the sum, with small singular values raised", paper="2506.16506",
            searched="beta", values=(0.01, 0.1, 0.3),
            chosen={8: (0.174, 0.01)},
        ),
        "essential": Method(
            place="directions.essential", title="Essential Subspace",
            text="TSV-M with the directions that change a layer's outputs most",
            paper="2606.19164",
            needs="grams", pool="directions.pooled_directions",
            chosen={8: (0.738, None)},
        ),
        "fisher": Method(
            place="quadratic.fisher", title="Fisher",
            text="averages weighted by Fisher information", paper="2111.09832",
            needs="diagonals", pool="pooled.pooled_diagonals",
            chosen={2: (1.291, None), 4: (0.864, None), 8: (0.759, None)},
        ),
        "regmean": Method(
            place="quadratic.regmean", title="RegMean",
            text="least squares on each linear layer's inputs", paper="2212.09849",
            needs="grams", pool="pooled.pooled_grams",
            searched="ratio", values=(0.3, 0.6, 0.9),
            fixed={"ridge": 0.01},
            chosen={2: (1.145, 0.9), 4: (1.507, 0.6), 8: (1.587, 0.9)},
        ),
        "regmean_plusplus": Method(
            place="quadratic.regmean_plusplus", title="RegMean++",
            text="RegMean block by block, on what the merged blocks before give",
            paper="2508.03121",
            needs="readers",
            searched="ratio", values=(0.3, 0.6, 0.9),
            fixed={"ridge": 0.01},
            like="regmean",
            chosen={8: (1.504, 0.9)},
        ),
        "lot": Method(
            place="quadratic.lot", title="LOT",
            text="the least drift of each layer's features, in closed form", paper="2505.23859",
            needs="grams", pool="pooled.pooled_grams",
            chosen={8: (1.37, None)},
        ),
        "wudi": Method(
            place="quadratic.wudi", title="WUDI",
            text="reduces interference of linear layers by 300 Adam steps", paper="2503.08099",
            like="wudi_descent",
            chosen={8: (0.334, None)},
        ),
        "wudi_exact": Method(
            place="quadratic.wudi_exact", title="WUDI's minimum",
            text="the closed-form minimum of WUDI's interference", paper="2503.08099",
            chosen={2: (0.994, None), 4: (0.011, None), 8: (0.826, None)},
        ),
        "wudi_descent": Method(
            place="quadratic.wudi_descent", title="WUDI, FusionBench",
            text="WUDI as FusionBench implements it", paper="2503.08099",
            chosen={2: (1.022, None), 4: (0.623, None), 8: (0.36, None)},
        ),
    }
)  # fmt: skip
# Solved for on images of every task: in the tangent model, in the three metrics of `best`
# (`minimum`), or in the network by gradient steps (`distilling`). It takes minutes of a GPU, or up
# to hours of a processor. They run where they are named.
SOLVED: Mapping[str, Method] = MappingProxyType(
    {
        name: Method(
            place="minimum.least", title=title, text=text, paper=paper, needs="solution",
            fixed={"alpha": 1.0},
        )
        for name, title, text, paper in (
            (
                "least_few", "least E, 256 images",
                "loses least in the tangent model, in features, on 256 images of each task", "",
            ),
            (
                "least_features", "least E over all weights",
                "loses least in the tangent model, in features", "",
            ),
            (
                "least_normalised", "least E, tasks alike",
                "loses least in the tangent model, in features, each task's share alike", "",
            ),
            (
                "least_logits", "least E of logits",
                "loses least in the tangent model, in the metric of logits", "",
            ),
            (
                "distillation", "Distillation, 256 images",
                "trained to give each task's own features on 256 images of each", "",
            ),
            (
                "prodistill", "ProDistill, 256 images",
                "a coefficient of every entry, trained block by block to give each task's own "
                "block's outputs on 256 images of each", "2502.12706",
            ),
            (
                "mats", "MaTS, 256 images",
                "matches models in the space of each layer's Fisher information, on 256 images of "
                "each task", "2312.04339",
            ),
        )
    }
)  # fmt: skip
_ALL: Mapping[str, Method] = {**METHODS, **SOLVED}
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
        ("best_span", "best_loss"),
        "is solved for on images, as a mark for the others: `experiments.merging` does it",
    ),
}


@isolated
def merge(name: str, vectors: Vectors, **options: Any) -> TaskVector:
    """Return the task vectors of several tasks merged into one.

    Args:
        **options: Of the method: alpha, and what its function takes beside.

    >>> import torch
    >>> from tasklab.taskvector import TaskVector
    >>> one, two = (TaskVector({"w": torch.tensor(x)}) for x in ([2.0, 0.0], [4.0, 2.0]))
    >>> merge("average", [one, two])["w"]
    tensor([3., 1.])
    """
    return check(name, options).function(vectors, **options)


def check(name: str, options: Iterable[str]) -> Method:
    """Return a method, or raise a `TasklabError` if it or one of the options does not exist."""
    chosen = method(name)
    if wrong := [option for option in options if option not in chosen.options]:
        raise unknown(f"option of {name}", wrong[0], chosen.options)
    return chosen


def method(name: str) -> Method:
    """Return a method by its name (`named`)."""
    return _ALL[named(name)]


def named(name: str) -> str:
    """Return the name of a method, given in any case and with any hyphens.

    Raises:
        TasklabError: If there is none of that name, with the nearest one.

    >>> named("TIES"), named("TSV-M")
    ('ties', 'tsv_m')
    """
    if isinstance(name, Iterable) and not isinstance(name, str):
        raise TasklabError('first the method, then vectors: merge("ties", [a, b]).')
    known = {folded(one): one for one in (*_ALL, *_OTHER)}
    found = known.get(folded(name), name) if isinstance(name, str) else name
    if found in _OTHER:
        raise TasklabError(f"{found} {_OTHER[found]}.")
    choose("method of merging", found, _ALL)
    return found


def several(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return methods by their names, in the order of `METHODS`; `"all"` or `None` for all of these.

    Raises:
        TasklabError: If one does not exist, with the nearest name.
    """
    asked = ["all"] if names is None else [one.strip() for one in names]
    asked = [one if one == "all" else named(one) for one in asked]
    every = METHODS if "all" in asked else ()
    return tuple(name for name in _ALL if name in every or name in asked)
