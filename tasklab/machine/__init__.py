"""Versions, processor, memory, devices and disks of this machine.

Each part loads when it is first used; only `cards` imports torch. An unknown value is `None`.
"""

import lazy_loader

from tasklab.errors.advice import advising

__getattr__, __dir__, __all__ = advising(__name__, lazy_loader.attach_stub(__name__, __file__))
