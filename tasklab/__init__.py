"""Editing pre-trained models by arithmetic on their weights.

What a notebook imports; the names are listed in `__init__.pyi`, and each is loaded when it is first
used, so that the command line does not wait for torch.

    from tasklab import Lab, experiments, figures

    lab = Lab("mini")
    figures.addition_bars(experiments.addition(lab, ["nonlinear", "linearized"]))
"""

import lazy_loader

__version__ = "0.4.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
