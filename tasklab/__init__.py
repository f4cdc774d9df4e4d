"""Editing pre-trained models by arithmetic on their weights.

What a notebook imports; each name is loaded when it is first used, so that the command line does
not wait for torch.
"""

from __future__ import annotations

import importlib

_HOME = {
    "FineTune": "tuning.recipe",
    "Lab": "experiments",
    "Parameters": "experiments.parameters",
    "Store": "storage.store",
    "TaskVector": "taskvector",
    "TasklabError": "errors",
    "checkpoints": "exchange.importing",
    "evidence": "study.recording",
    "experiments": "experiments",
    "figures": "figures",
    "finetune": "tuning.finetune",
    "heads": "models.heads",
    "load": "models.loading",
    "own": "tasks.own",
    "recipe": "tuning.recipe",
    "recorded": "study.recording",
    "results": "records.papers",
    "suite": "tasks.suites",
    "tangent": "tuning.tangent",
}
_MODULES = {
    "checkpoints", "experiments", "figures", "finetune", "heads", "own", "results", "tangent",
}  # fmt: skip
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'tasklab' has no attribute {name!r}")
    module = importlib.import_module(f"tasklab.{_HOME[name]}")
    return module if name in _MODULES else getattr(module, name)
