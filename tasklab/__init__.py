"""Editing pre-trained models by arithmetic on their weights.

What a notebook imports; each name is loaded when it is first used, so that the command line does
not wait for torch.
"""

from __future__ import annotations

import importlib

_HOME = {
    "FineTune": "config",
    "Lab": "experiments",
    "Parameters": "parameters",
    "Store": "store",
    "TaskVector": "taskvector",
    "TasklabError": "errors",
    "evidence": "study",
    "experiments": "experiments",
    "finetune": "finetune",
    "heads": "heads",
    "load": "models",
    "own": "own",
    "plots": "plots",
    "recipe": "config",
    "recorded": "study",
    "results": "results",
    "suite": "tasks",
    "tangent": "tangent",
}
_MODULES = {"experiments", "finetune", "heads", "own", "plots", "results", "tangent"}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'tasklab' has no attribute {name!r}")
    module = importlib.import_module(f"tasklab.{_HOME[name]}")
    return module if name in _MODULES else getattr(module, name)
