"""Merge rules for the task vectors of several tasks, and the best possible merge.

    merged = merging.merge("ties", [tau_1, tau_2], keep=0.2, alpha=0.5)
    theta = merged.apply(encoder.params)

Every method is a pure function of task vectors. Coefficients, and statistics of images where a
method needs them, are given by name; `METHODS` lists the methods. Tau Jp and OrthoReg are no merges
but penalties in fine-tuning (`tasklab.tuning.penalties`).
"""

import lazy_loader

from tasklab.errors.advice import advising

__getattr__, __dir__, __all__ = advising(__name__, lazy_loader.attach_stub(__name__, __file__))
