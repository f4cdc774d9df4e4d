"""The experiments of the chapters: from parameters to tidy records.

    lab = Lab(model="mini", preset="quick")
    experiments.single(lab, ["nonlinear", "linearized"])

Every experiment returns records as `records.table` describes them, and keeps them in the store
under everything that determines them: what was computed once is not computed again.

A function that a module of this folder declares with `@experiment` is a name of this package; each
is loaded when it is first used, so that the parameters can be read without torch. `make stubs`
writes `__init__.pyi`, which type checkers read.
"""

import re
from pathlib import Path

import lazy_loader

from tasklab.errors import advising

_MODULES = ("runner",)
_MORE = {  # public names that are no experiments
    "budgets": ["chosen_rate"],
    "closed_vocabulary": ["across", "scheme_models", "schemes"],
    "cost": ["cost", "step_records"],
    "curvature": ["foretold"],
    "disentanglement": ["pairs"],
    "editing": ["train"],
    "kit": ["LINEAR", "Lab"],
    "merging": ["LEADING"],
    "scratch": ["conditions", "varied"],
}


def _names() -> dict[str, list[str]]:
    """Return all public names by module; read from the sources, as importing them takes seconds."""
    names = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        declared = re.findall(r"^@experiment\(.*?^def (\w+)", file.read_text("utf-8"), re.S | re.M)
        if listed := sorted([*declared, *_MORE.get(file.stem, ())]):
            names[file.stem] = listed
    return names


def _stub() -> str:
    every = [(module, name) for module, names in _names().items() for name in names]
    modules = "".join(f"from . import {name} as {name}\n" for name in _MODULES)
    return modules + "".join(f"from .{module} import {name} as {name}\n" for module, name in every)


_ADVICE = {"xi interference disentanglement_error": "experiments.disentanglement(lab, methods)"}
__getattr__, __dir__, __all__ = advising(
    __name__, lazy_loader.attach(__name__, _MODULES, _names()), _ADVICE
)
