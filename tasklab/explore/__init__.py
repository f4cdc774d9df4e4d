"""Move coefficients and see what the edited model does: in a page, and by widgets of a notebook."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
