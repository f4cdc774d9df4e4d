"""Recorded results: a chapter's experiments in the preset `full`, and the sides of its claims."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
