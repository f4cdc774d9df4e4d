"""Pre-trained models: one table of them, their weights, encoders, blocks and heads."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
