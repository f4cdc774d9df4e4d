"""The methods of merging by name. A new one is an entry of `METHODS` and its test."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tasklab.analyses.merging import defaults
from tasklab.errors import TasklabError, choose, folded, unknown
from tasklab.isolation import isolated

if TYPE_CHECKING:
    from tasklab.analyses.merging.defaults import Known
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
    fixed: Mapping[str, float] = dataclasses.field(default_factory=dict)  #: Further options to take
    recorded: Mapping[str, float] = dataclasses.field(default_factory=dict)  #: Those of experiments
    digest: str = ""  #: SHA-256 of the file of a rule of one's own (`own`)

    @property
    def function(self) -> Callable[..., TaskVector]:
        """Task vectors, and options by name -> one task vector."""
        return _loaded(self.place)

    def pooled(self, vectors: Vectors, each: Iterable[Any]) -> Any:
        """Return the option `needs` from statistics of tasks' images, in the vectors' order."""
        return _loaded(self.pool)(vectors, each) if self.pool else list(each)

    @property
    def source(self) -> str:
        """Where the method is from."""
        return f"arXiv:{self.paper}" if self.paper else "this package"

    @property
    def options(self) -> dict[str, Any]:
        """Options of the rule beside the vectors, with their defaults."""
        parameters = inspect.signature(self.function).parameters
        return {name: p.default for name, p in list(parameters.items())[1:]}

    def recommended(self, known: Known | int) -> dict[str, float]:
        """Return the coefficient and options to take without a search (`defaults`).

        Args:
            known: Properties of the vectors, or their number alone.

        Raises:
            TasklabError: If recorded coefficients of the method differ too much.

        >>> few, many = (METHODS["arithmetic"].recommended(n)["alpha"] for n in (2, 20))
        >>> 0.5 < few < 0.9, 0.04 < many < 0.09
        (True, True)
        """
        found = defaults.of(self._name)
        chosen = {"alpha": float(f"{found.alpha(known):.3g}")}
        option = found.option(known if isinstance(known, int) else known.count)
        return chosen | ({self.searched: option} if option is not None else {}) | dict(self.fixed)

    def usual(self, known: Known | int, options: Mapping[str, Any]) -> dict[str, float]:
        """Return the recommended options beside given ones; only fixed ones if alpha is given."""
        given = {**self.fixed, **options}
        if "alpha" not in given or defaults.known(self._name):
            return self.recommended(known)
        return dict(self.fixed)

    @property
    def _name(self) -> str:
        return next(name for name, one in _every().items() if one is self)


def _loaded(place: str) -> Callable[..., Any]:
    module, name = place.split(".")
    return getattr(importlib.import_module(f"tasklab.analyses.merging.{module}"), name)


# Where `Method.recommended` is from
RECOMMENDED = "what validation images chose in recorded runs of two drawn worlds"
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "average": Method(
            place="sums.average", title="Average", text="the mean", paper="2203.05482",
        ),
        "arithmetic": Method(
            place="sums.arithmetic", title="Task arithmetic", text="the sum", paper="2212.04089",
        ),
        "lines": Method(
            place="sums.lines", title="LiNeS", text="the sum, more of it in deeper blocks",
            paper="2410.17146",
            searched="beta", values=(0.5, 2.0, 8.0),
        ),
        "ties": Method(
            place="masks.ties", title="TIES",
            text="trims small entries, elects signs, averages those that agree", paper="2306.01708",
            searched="keep", values=(0.1, 0.2, 0.3),
        ),
        "dare": Method(
            place="masks.dare", title="DARE", text="drops entries at random and rescales the rest",
            paper="2311.03099",
            searched="drop", values=(0.5, 0.7, 0.9), recorded={"by_place": 1},
        ),
        "breadcrumbs": Method(
            place="masks.breadcrumbs", title="Breadcrumbs",
            text="drops the smallest and the largest entries of each row", paper="2312.06795",
            searched="small", values=(0.7, 0.85, 0.95),
        ),
        "consensus": Method(
            place="masks.consensus", title="Consensus",
            text="keeps the sum where it matters to several tasks", paper="2405.07813",
            searched="threshold", values=(0.2, 0.4, 0.6),
        ),
        "pcb": Method(
            place="masks.pcb", title="PCB", text="weighs entries by their balanced competition",
            paper="2410.02396",
            searched="keep", values=(0.05, 0.1, 0.2),
        ),
        "tsv_m": Method(
            place="singular.tsv_m", title="TSV-M",
            text="orthogonalises the leading singular directions of each task", paper="2412.00081",
        ),
        "iso_c": Method(
            place="singular.iso_c", title="Iso-C",
            text="the sum, with one singular value for all directions", paper="2502.04959",
        ),
        "iso_cts": Method(
            place="singular.iso_cts", title="Iso-CTS",
            text="common and task-specific directions, one singular value", paper="2502.04959",
            searched="common", values=(0.6, 0.8, 0.9),
        ),
        "boosting": Method(
            place="singular.boosting", title="Subspace Boosting",
            text="the sum, with small singular values raised", paper="2506.16506",
            searched="beta", values=(0.01, 0.1, 0.3),
        ),
        "essential": Method(
            place="directions.essential", title="Essential Subspace",
            text="TSV-M with the directions that change a layer's outputs most",
            paper="2606.19164",
            needs="grams", pool="directions.pooled_directions",
        ),
        "fisher": Method(
            place="quadratic.fisher", title="Fisher",
            text="averages weighted by Fisher information", paper="2111.09832",
            needs="diagonals", pool="pooled.pooled_diagonals",
        ),
        "regmean": Method(
            place="quadratic.regmean", title="RegMean",
            text="least squares on each linear layer's inputs", paper="2212.09849",
            needs="grams", pool="pooled.pooled_grams",
            searched="ratio", values=(0.3, 0.6, 0.9),
            fixed={"ridge": 0.01},
        ),
        "regmean_plusplus": Method(
            place="quadratic.regmean_plusplus", title="RegMean++",
            text="RegMean block by block, on what the merged blocks before give",
            paper="2508.03121",
            needs="readers",
            searched="ratio", values=(0.3, 0.6, 0.9),
            fixed={"ridge": 0.01},
        ),
        "wudi": Method(
            place="quadratic.wudi", title="WUDI",
            text="reduces interference of linear layers by 300 Adam steps", paper="2503.08099",
        ),
        # No statement compares it; recorded rates, encoders and the cross-examination have it.
        "wudi_exact": Method(
            place="quadratic.wudi_exact", title="WUDI's minimum",
            text="the closed-form minimum of WUDI's interference", paper="2503.08099",
        ),
        "wudi_descent": Method(
            place="quadratic.wudi_descent", title="WUDI, FusionBench",
            text="WUDI as FusionBench implements it", paper="2503.08099",
        ),
    }
)  # fmt: skip
# Without images, of 2026. No chapter records them: they run where they are named.
NEWER: Mapping[str, Method] = MappingProxyType(
    {
        "ace": Method(
            place="newer.ace", title="ACE-Merging",
            text="RegMean with covariances that are estimated from the vectors alone",
            paper="2603.02945", fixed={"alpha": 1.0},
        ),
        "actmat": Method(
            place="newer.actmat", title="ACTMat",
            text="RegMean with each vector's own second moments in place of its images'",
            paper="2604.01329", fixed={"alpha": 1.0},
        ),
        "dc_merge": Method(
            place="newer.dc_merge", title="DC-Merge",
            text="the largest entries of the vectors in a basis that all tasks share",
            paper="2603.06242",
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
_ALL: Mapping[str, Method] = {**METHODS, **NEWER, **SOLVED}
_OWN: dict[str, Method] = {}  # rules from files, by the words that named them
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
    "linear": "is mergekit's mean with weights: `average` has equal ones, `arithmetic` one of each",
    **dict.fromkeys(("dare_ties", "della"), "is not here: its parts are `dare` and `ties`"),
    **dict.fromkeys(
        ("slerp", "model_stock", "karcher"),
        "moves along a sphere, which is not here: for small changes `average` is near it",
    ),
}
#: Published names of methods, beside their titles, in `folded` form.
_PUBLISHED = {
    **{"taskarithmetic": "arithmetic", "tiesmerging": "ties", "tsvmerge": "tsv_m"},
    **{"modelsoup": "average", "weightaveraging": "average", "fishermerging": "fisher"},
    **{"darelinear": "dare", "acemerging": "ace"},
}


@isolated
def merge(name: str, vectors: Vectors, **options: Any) -> TaskVector:
    """Return the task vectors of several tasks merged into one.

    Args:
        name: One of `METHODS`.
        vectors: Task vectors of one model.
        **options: Of the method: alpha, and further arguments of its function.

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
    name = named(name)  # which may read a rule of one's own
    return _every()[name]


def add(name: str, rule: Method) -> None:
    """Register a rule of one's own by a name, in this process."""
    _OWN[name] = rule


def _every() -> Mapping[str, Method]:
    return {**_ALL, **_OWN}


def costs(name: str) -> tuple[bool, bool, int]:
    """Return the key that sorts methods by cost: solved for, looking at images, their order.

    >>> sorted(["regmean", "tsv_m", "average"], key=costs)
    ['average', 'tsv_m', 'regmean']
    """
    name = named(name)
    return name in SOLVED, bool(method(name).needs), list(_every()).index(name)


def named(name: str) -> str:
    """Return the name of a method, given in any case and with any hyphens, or by its title.

    `FILE.py` and `FILE.py:FUNCTION` name a user's own rule, which is read (`own`).

    Raises:
        TasklabError: If there is none of that name, with the nearest one.

    >>> named("TIES"), named("Task Arithmetic"), named("RegMean++")
    ('ties', 'arithmetic', 'regmean_plusplus')
    """
    if isinstance(name, Iterable) and not isinstance(name, str):
        raise TasklabError('first the method, then vectors: merge("ties", [a, b]).')
    if isinstance(name, str) and ".py" in name and name not in _OWN:
        return str(_loaded("own.take")(name))
    if name in _OWN:
        return name
    known = {_folded(rule.title): one for one, rule in _ALL.items()} | _PUBLISHED
    known |= {_folded(one): one for one in (*_ALL, *_OTHER)}
    found = known.get(_folded(name), name) if isinstance(name, str) else name
    if found in _OTHER:
        raise TasklabError(f"{found} {_OTHER[found]}.")
    choose("method of merging", found, _ALL)
    return found


def _folded(name: str) -> str:
    return folded(name.replace("+", "plus"))  # RegMean++ is not RegMean


def several(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return methods by their names, in the order of `METHODS`; `"all"` or `None` for all of these.

    Raises:
        TasklabError: If one does not exist, with the nearest name.
    """
    asked = ["all"] if names is None else [one.strip() for one in names]
    asked = [one if one == "all" else named(one) for one in asked]
    every = METHODS if "all" in asked else ()
    return tuple(name for name in _every() if name in every or name in asked)
