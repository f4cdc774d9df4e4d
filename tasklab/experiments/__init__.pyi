from .budgets import (
    budgets as budgets,
)
from .budgets import (
    chosen_rate as chosen_rate,
)
from .budgets import (
    rate_search as rate_search,
)
from .closed_vocabulary import (
    across as across,
)
from .closed_vocabulary import (
    closed_addition as closed_addition,
)
from .closed_vocabulary import (
    closed_cost as closed_cost,
)
from .closed_vocabulary import (
    probing as probing,
)
from .closed_vocabulary import (
    scheme_models as scheme_models,
)
from .closed_vocabulary import (
    schemes as schemes,
)
from .cost import (
    cost as cost,
)
from .cost import (
    step_cost as step_cost,
)
from .cost import (
    step_records as step_records,
)
from .cross_task import (
    cross_task as cross_task,
)
from .cross_task import (
    cross_task_addition as cross_task_addition,
)
from .cross_task import (
    cross_task_negation as cross_task_negation,
)
from .cross_task import (
    cross_task_sum as cross_task_sum,
)
from .crossing import (
    crossing as crossing,
)
from .curvature import (
    foretold as foretold,
)
from .curvature import (
    pair_errors as pair_errors,
)
from .curvature import (
    theorem as theorem,
)
from .disentanglement import (
    disentanglement as disentanglement,
)
from .disentanglement import (
    exact_alpha as exact_alpha,
)
from .disentanglement import (
    own_coefficients as own_coefficients,
)
from .disentanglement import (
    pairs as pairs,
)
from .disentanglement import (
    search_box as search_box,
)
from .editing import (
    addition as addition,
)
from .editing import (
    exact_negation as exact_negation,
)
from .editing import (
    negation as negation,
)
from .editing import (
    single as single,
)
from .editing import (
    train as train,
)
from .joint import (
    joint as joint,
)
from .kernels import (
    localization as localization,
)
from .lab import (
    LINEAR as LINEAR,
)
from .lab import (
    Lab as Lab,
)
from .layers import (
    alignment as alignment,
)
from .layers import (
    cosines as cosines,
)
from .layers import (
    linear_gaps as linear_gaps,
)
from .learning_rates import (
    learning_rates as learning_rates,
)
from .merged import (
    merged as merged,
)
from .merged import (
    merging_cost as merging_cost,
)
from .merging import (
    LEADING as LEADING,
)
from .merging import (
    merging as merging,
)
from .merging_rates import (
    merging_rates as merging_rates,
)
from .penalty_strengths import (
    penalty_strengths as penalty_strengths,
)
from .scale import (
    FULL as FULL,
)
from .scale import (
    QUICK as QUICK,
)
from .scale import (
    REHEARSAL as REHEARSAL,
)
from .scale import (
    Scale as Scale,
)
from .scratch import (
    conditions as conditions,
)
from .scratch import (
    emergence as emergence,
)
from .scratch import (
    scratch_linearity as scratch_linearity,
)
from .scratch import (
    segments as segments,
)
from .scratch import (
    varied as varied,
)
from .stitching import (
    averaging as averaging,
)
from .stitching import (
    stitched_addition as stitched_addition,
)
from .stitching import (
    stitched_negation as stitched_negation,
)
from .subsets import (
    subsets as subsets,
)
