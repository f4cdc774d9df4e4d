"""The chapters: what each compares, with which models, and which results of it are recorded.

The one table that the notebooks, `doctor`, the studies and the experiments read. It holds names of
methods (`tuning.methods`) and of roles in a family of models (`models.zoo`), and needs no torch.
"""

from __future__ import annotations

import dataclasses

from tasklab.errors import TasklabError, choose
from tasklab.models.zoo import REGISTRY
from tasklab.tuning.methods import JOINT

# Pre-training schemes of the closed-vocabulary paper, by role: one of each sort (figure 1), and all
# that its table 2 has.
SORTS = ("sup_few", "mae", "dino", "clip_more")
SCHEMES = (
    "sup_few", "sup_many", "mae", "dino", "clip_less", "clip_more", "sup_large", "clip_large",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chapter:
    """One notebook and what belongs to it.

    Attributes:
        title: Its first heading.
        methods: Those it compares.
        parts: Of its recorded results, each a file; the first holds its tables.
        relatives: Roles of the models that it also needs.
        all_relatives: The same in the preset `full`; `None` is no more than `relatives`.
        attention: Whether its model must have attention.
    """

    title: str
    methods: tuple[str, ...]
    parts: tuple[str, ...]
    relatives: tuple[str, ...] = ()
    all_relatives: tuple[str, ...] | None = None
    attention: bool = False

    def needs(self, preset: str) -> tuple[str, ...]:
        """Return the roles of the models that a preset compares with the given one."""
        return self.all_relatives or self.relatives if preset == "full" else self.relatives


CHAPTERS = {
    "tangent": Chapter(
        title="Fine-tuning in the tangent space",
        methods=("nonlinear", "posthoc", "linearized"),
        parts=(
            *("editing", "rates", "text_rates", "budgets", "lengths"),
            *("pretraining", "replicas", "family", "maps", "text", "kernels"),
        ),
        relatives=("small", "medium", "large", "convnext", "closed", "text"),
    ),
    "linear_layers": Chapter(
        title="Fine-tuning the attention projections only",
        methods=("nonlinear", "posthoc", "linearized", "attention"),
        parts=("editing", "maps", "budgets", "lengths", "cost", "layers"),
        attention=True,
    ),
    "ctl": Chapter(
        title="Cross-task linearity",
        methods=("nonlinear", "linearized", "attention"),
        parts=("editing", "methods", "text", "stitching", "scratch", "theorem"),
        relatives=("small", "text", "sup_few"),
    ),
    "closed_vocab": Chapter(
        title="Models without a text tower",
        methods=("nonlinear", JOINT),
        parts=("editing", "together", "rates", "maps", "open", "subsets", "search", "beyond"),
        relatives=SORTS,
        all_relatives=SCHEMES,
    ),
    "merging": Chapter(
        title="Other ways of merging",
        methods=("nonlinear",),
        parts=(
            *("editing", "fewer", "ways", "encoders", "models"),
            *("joint", "joint_encoders", "rates", "fewer_rates", "strengths", "matrix"),
        ),
        relatives=("small", "closed"),
    ),
}


def chapter(name: str) -> Chapter:
    """Return the chapter of that name, or raise a `TasklabError` with the nearest one."""
    choose("chapter", name, CHAPTERS)
    return CHAPTERS[name]


def has_attention(model: str) -> bool:
    """Return whether a model of the registry has attention; others are looked at when loaded."""
    return model not in REGISTRY or "stages" not in REGISTRY[model].block


def check(name: str, model: str) -> None:
    """Raise a `TasklabError` if a chapter cannot be read with a model.

    Args:
        name: Of the chapter.
        model: Short name.
    """
    if chapter(name).attention and not has_attention(model):
        able = [one for one in REGISTRY if has_attention(one) and REGISTRY[one].kind == "clip"]
        raise TasklabError(
            f"the chapter {name!r} fine-tunes attention, which model {model!r} does not have: take "
            f"one of {', '.join(able)}."
        )
