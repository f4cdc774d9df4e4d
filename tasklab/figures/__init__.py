"""Records → figures. One colour and one marker for each method in the whole book.

Every function takes tidy records (`tasklab.records.table`) of one model, selects the rows it needs
and returns a matplotlib figure six inches wide, readable at a page width of 390 pixels. seaborn
draws it (`marks`); intervals are standard deviations over seeds, 95 % intervals of test images or
measured quartiles, and a figure or its caption says which.

The names are listed in `__init__.pyi`; each is loaded when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
