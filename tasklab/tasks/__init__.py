"""Tasks (class names, prompts) and their images: drawn, decoded, or your own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
