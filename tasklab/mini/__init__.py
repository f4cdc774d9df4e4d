"""The embedded benchmark: a drawn world, nine tasks in it, and a small CLIP pre-trained on it.

Everything here works without a network. `sample` draws a task's images, `build` and `tokenize` give
the small CLIP and its tokenizer, `weights_path` the weights that ship with the package.
"""

import lazy_loader

from tasklab.errors.advice import advising

__getattr__, __dir__, __all__ = advising(__name__, lazy_loader.attach_stub(__name__, __file__))
