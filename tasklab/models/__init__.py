"""Pre-trained models: one table of them, their weights, encoders, blocks and heads."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submod_attrs={"encoder": ["Encoder"], "loading": ["load"]}
)
