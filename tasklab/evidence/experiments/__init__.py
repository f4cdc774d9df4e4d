"""The experiments of the chapters: from parameters to tidy records.

    lab = Lab(model="mini", preset="quick")
    experiments.single(lab, ["nonlinear", "linearized"])

Every experiment returns records as `records.table` describes them, and keeps them in the store
under everything that determines them: no result is computed twice.

A function that a module of this folder declares with `@experiment` is a name of this package; each
is loaded when it is first used, so that the parameters can be read without torch. `make stubs`
writes `__init__.pyi`, which type checkers read.
"""

from pathlib import Path

import lazy_loader

from tasklab.errors.advice import advising
from tasklab.evidence import names

_MODULES = ("runner",)
_MORE = {  # public names that are no experiments
    "budgets": ["chosen_rate"],
    "closed_vocabulary": ["across", "scheme_models", "schemes"],
    "curvature": ["foretold"],
    "disentanglement": ["pairs"],
    "editing": ["train"],
    "kit": ["LINEAR", "Lab"],
    "merging": ["LEADING"],
    "scratch": ["conditions", "varied"],
}


_NAMES = names.declared(Path(__file__).parent, "experiment", _MORE)


def _stub() -> str:
    return names.stub(_NAMES, _MODULES)


_ADVICE = {"xi interference disentanglement_error": "experiments.disentanglement(lab, methods)"}
__getattr__, __dir__, __all__ = advising(
    __name__, lazy_loader.attach(__name__, _MODULES, _NAMES), _ADVICE
)
