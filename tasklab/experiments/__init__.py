"""The experiments of the chapters: from parameters to tidy records.

    lab = Lab(model="mini", preset="quick")
    experiments.single(lab, ["nonlinear", "linearized"])

Every experiment returns records as `tasklab.records.table` describes them, and keeps them in the
store under everything that determines them: what was computed once is not computed again.

The names are listed in `__init__.pyi`; each is loaded when it is first used, so that the parameters
can be read without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
