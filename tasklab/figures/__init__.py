"""Records → figures. One colour and one marker for each method in the whole book.

Every function takes tidy records (`tasklab.records.table`) of one model, selects the rows it needs
and returns a matplotlib figure six inches wide, readable at a page width of 390 pixels. seaborn
draws it (`marks`); intervals are standard deviations over seeds, 95 % intervals of test images or
measured quartiles, and a figure or its caption says which.
"""

from tasklab.figures.budgets import budget_curves, growth, learning_rate, rate_search
from tasklab.figures.closed_vocabulary import (
    closed_cost,
    lambda_curves,
    linearity_against_addition,
    regimes,
    subset_curves,
    ways_after_probing,
)
from tasklab.figures.cost import linearization_cost, paradigm_cost
from tasklab.figures.cross_task import (
    cross_task,
    cross_task_coefficients,
    cross_task_methods,
    emergence,
    segments,
)
from tasklab.figures.crossing import crossing_table, merging_foretold
from tasklab.figures.curvature import foretelling, gap_against_bound, sum_form, transitivity
from tasklab.figures.disentanglement import (
    exact_curve,
    heatmaps,
    per_task_coefficients,
    scheme_maps,
)
from tasklab.figures.editing import (
    addition_bars,
    addition_curves,
    alone_against_sum,
    negation,
    negation_per_task,
    nonlinear_advantage,
    per_task,
    single_task,
)
from tasklab.figures.forest import forest
from tasklab.figures.kernels import localization, ring
from tasklab.figures.layers import (
    alignment_against_interference,
    cosine_by_block,
    cosine_matrices,
    layer_alignment,
    linearity,
)
from tasklab.figures.merge_protocols import merge_table, printed_merges, published_merges
from tasklab.figures.merged_models import (
    merge_cost_table,
    merge_models,
    merge_rates,
    merge_rates_table,
)
from tasklab.figures.merging import (
    MERGE_LABEL,
    merge_accuracy,
    merge_distance,
    merge_gains_table,
    merge_ways,
)
from tasklab.figures.schemes import closed_table, open_table, price, scheme, subset_cost
from tasklab.figures.stitching import (
    averaging,
    stitched_addition,
    stitched_depth,
    stitched_negation,
)
from tasklab.figures.style import COLOURS, MARKERS, METHOD_LABEL, WIDTH, book_figure, once_recorded
from tasklab.figures.tables import (
    editing_table,
    matched_table,
    origin_table,
    pretraining_table,
    table,
)
from tasklab.figures.training import contact_sheet, loss_curve
from tasklab.figures.verdict_list import verdict_list

__all__ = [
    "COLOURS", "MARKERS", "MERGE_LABEL", "METHOD_LABEL", "WIDTH", "addition_bars",
    "addition_curves", "alignment_against_interference", "alone_against_sum", "averaging",
    "book_figure", "budget_curves", "closed_cost", "closed_table", "contact_sheet",
    "cosine_by_block", "cosine_matrices", "cross_task", "cross_task_coefficients",
    "cross_task_methods", "crossing_table", "editing_table", "emergence", "exact_curve", "forest",
    "foretelling", "gap_against_bound", "growth", "heatmaps", "lambda_curves", "layer_alignment",
    "learning_rate", "linearity", "linearity_against_addition", "linearization_cost",
    "localization", "loss_curve", "merge_accuracy", "merge_cost_table", "merge_distance",
    "merge_gains_table", "merge_models", "merge_rates", "merge_rates_table", "merge_table",
    "merge_ways",
    "merging_foretold", "negation", "negation_per_task", "nonlinear_advantage", "once_recorded",
    "open_table", "origin_table", "paradigm_cost", "per_task", "per_task_coefficients",
    "matched_table", "pretraining_table", "price", "printed_merges", "published_merges",
    "rate_search", "regimes",
    "ring", "scheme", "scheme_maps", "segments", "single_task", "stitched_addition",
    "stitched_depth", "stitched_negation", "subset_cost", "subset_curves", "sum_form", "table",
    "transitivity", "verdict_list", "ways_after_probing",
]  # fmt: skip
