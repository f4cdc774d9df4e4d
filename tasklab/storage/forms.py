"""Names of tensors that stand for weights in another form: parametrised, sharded, quantised."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from tasklab.errors import TasklabError, abridged

#: Names of factors of a weight, as of weight_norm
FACTORS = "factors"
#: Pieces of many parameters in one tensor, as of FSDP
FLAT = "flat"
_OTHERS = {  # a form's names; what they are, what to do
    FACTORS: (
        re.compile(r"(^|\.)parametrizations\.|(^|\.)(weight|bias)_[gv]$"),
        "weights that are computed from others (weight_norm, spectral_norm, ...): remove these "
        "first (torch.nn.utils.parametrize.remove_parametrizations, remove_weight_norm, "
        "remove_spectral_norm)",
    ),
    "pruned": (
        re.compile(r"(^|\.)(weight|bias)_(orig|mask)$"),
        "weights that are computed from others (pruning): remove these first "
        "(torch.nn.utils.prune.remove)",
    ),
    FLAT: (
        re.compile(r"(^|\.)_?flat_param(_\d+)?$"),
        "parts of FSDP in place of parameters: save its full state dict",
    ),
    "quantised": (
        re.compile(
            r"[._](q(weight|zeros)|SCB|absmax|quant_map|weight_scale|scale_(weight|inv)|packed_params)(\.|$)"
        ),
        "quantised weights: give the checkpoint from before that",
    ),
}


def check(names: Iterable[str], forms: Collection[str] = tuple(_OTHERS)) -> None:
    """Raise a `TasklabError` for a name of a weight in another form.

    Args:
        names: Of tensors.
        forms: Which forms are refused; by default all.
    """
    for name in names:
        for form in forms:
            pattern, what = _OTHERS[form]
            if pattern.search(name):
                raise TasklabError(f"{abridged([name])} and the like are {what}.")
