"""Move coefficients and see what the edited model does: in a page, and by widgets of a notebook."""

import lazy_loader

from tasklab.errors import advising

__getattr__, __dir__, __all__ = advising(__name__, lazy_loader.attach_stub(__name__, __file__))
