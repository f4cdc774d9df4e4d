"""Measurements on edited models, one topic a module."""

import lazy_loader

from tasklab.errors.advice import advising

_ADVICE = {"xi disentanglement_error": "analyses.disentanglement, or experiments.disentanglement"}
__getattr__, __dir__, __all__ = advising(
    __name__, lazy_loader.attach_stub(__name__, __file__), _ADVICE
)
