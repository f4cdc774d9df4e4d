"""Recorded results: a chapter's experiments in the preset `full`, and the sides of its claims."""

import lazy_loader

from tasklab.errors.advice import advising

_ADVICE = {"verdicts": "study.judged(chapter), or records.verdicts(table)"}
__getattr__, __dir__, __all__ = advising(
    __name__, lazy_loader.attach_stub(__name__, __file__), _ADVICE
)
