"""What experiments record, and the sides of claims about it: declarations, read without torch.

Each module has the name of the module of experiments that measures its records.
"""

import functools
import importlib
import pkgutil


@functools.cache
def load() -> None:
    """Import every module of this room, each of which declares records."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
