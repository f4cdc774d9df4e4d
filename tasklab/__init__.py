"""Editing pre-trained models by arithmetic on their weights.

What a notebook imports; the names are listed in `__init__.pyi`, and each is loaded when it is first
used, so that the command line does not wait for torch.

    from tasklab import Lab, experiments, figures

    lab = Lab("mini")
    figures.addition_bars(experiments.addition(lab, ["nonlinear", "linearized"]))
"""

import lazy_loader

from tasklab.errors import advising

__version__ = "0.4.0"
_ADVICE = {
    "load load_model": 'models.load("mini") loads a model, TaskVector.load(path) a vector',
    "list_models": "`tasklab list models`; models.load(name) loads one",
    "METHODS methods": "`tasklab list methods`; analyses.merging.METHODS has the merge rules",
    "evaluate accuracy vector": 'Lab("mini").{name}(...)',
}
__getattr__, __dir__, __all__ = advising(
    __name__, lazy_loader.attach_stub(__name__, __file__), _ADVICE
)
