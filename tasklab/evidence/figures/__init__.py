"""Records → figures. One colour and one marker for each method in the whole book.

Every function takes tidy records (`records.table`) of one model, selects the rows it needs and
returns a matplotlib figure six inches wide: an SVG on the site, a PNG in a notebook (`pictures`).
seaborn draws it (`marks`): means over tasks and seeds, with bars or bands of the standard deviation
over seeds (and small dots for the seeds) where a figure does not say 95 % interval or quartiles.

A function that a module of this folder decorates with `@book_figure` is a name of this package;
each is loaded when it is first used. `make stubs` writes `__init__.pyi`, which type checkers read.
"""

from pathlib import Path

import lazy_loader

from tasklab.errors.advice import advising
from tasklab.evidence import names

_MORE = {  # public names that are no figures
    "accuracies": [
        "alone_and_summed", "beside_paper", "price", "subset_cost", "texts_beside_paper",
    ],
    "budgets": ["overtraining_changes"],
    "by_experiment": ["plot"],
    "crossing": ["with_encoder"],
    "forest_plot": ["verdict_list"],
    "labels": ["MERGE_LABEL", "METRIC_LABEL"],
    "merged_models": [
        "beside_published", "merge_choice_table", "merge_rates_table", "printed_merges",
        "strength_table",
    ],
    "merging": ["gains_by_sample", "merged_accuracy", "ranged"],
    "rows": ["most_tasks"],
    "schemes": ["scheme"],
    "style": ["COLOURS", "MARKERS", "METHOD_LABEL", "WIDTH", "book_figure", "once_recorded"],
    "tables": [
        "matched_table", "pretraining_table", "side_by_side", "table", "tabulate",
    ],
    "worlds": [
        "beside_printed", "properties_table", "worlds_table",
    ],
}  # fmt: skip
_NAMES = names.declared(Path(__file__).parent, "book_figure", _MORE)


def _stub() -> str:
    return names.stub(_NAMES)


__getattr__, __dir__, __all__ = advising(__name__, lazy_loader.attach(__name__, (), _NAMES))
