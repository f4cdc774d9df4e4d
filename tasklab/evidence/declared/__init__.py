"""Declared records of experiments, and the sides of claims about them; read without torch.

Each module has the name of the module of experiments that measures its records.
"""

import functools
import importlib
import pkgutil


@functools.cache
def load() -> None:
    """Import every module of this room, which declares its records then."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
