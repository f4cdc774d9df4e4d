"""Records → figures. One colour and one marker for each method in the whole book.

Every function takes tidy records (`records.table`) of one model, selects the rows it needs and
returns a matplotlib figure six inches wide: an SVG on the site, a PNG in a notebook (`pictures`).
seaborn draws it (`marks`): means over tasks and seeds, with bars or bands of the standard deviation
over seeds (and small dots for the seeds) where a figure does not say 95 % interval or quartiles.

The names are listed in `__init__.pyi`; each is loaded when it is first used.
"""

import lazy_loader

from tasklab.errors import advising

__getattr__, __dir__, __all__ = advising(__name__, lazy_loader.attach_stub(__name__, __file__))
