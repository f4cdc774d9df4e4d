"""From the sources of chapters and pages to the rendered site, with one execution of each.

A chapter, or a page of text with code in it, is executed by papermill, so that its progress can be
watched and a failure leaves a notebook to look at; several are executed at once where one thread
each is faster. The executed copy is a result like any other: the store keeps it under its cells,
the parameters and the state of the package, so that nothing runs again until one of these changes.
Its outputs are handed to the cache in which Jupyter Book looks before it executes anything: the
site is built from them, and a later `jupyter-book build book/` finds them too. That cache knows a
notebook by its code cells only, so it is emptied when the package behind those cells has changed,
and when its files are not those that were put there.
"""

import lazy_loader

from tasklab.errors.advice import advising

__getattr__, __dir__, __all__ = advising(__name__, lazy_loader.attach_stub(__name__, __file__))
