"""Images that are not drawn: found on the disk or the hub, checked, decoded once, and served.

In the order of the flow: `formats` reads images and labels out of files, `archives` asks
torchvision's classes for those of raw archives, `layouts` tells how files lie in a folder, `checks`
whether they are whole and what the papers used, `finding` finds them and plans splits; `decoding`
makes pixels of them, `pixels` keeps those, `augment` crops, and `loader` serves.
"""

import lazy_loader

from tasklab.errors.advice import advising

__getattr__, __dir__, __all__ = advising(__name__, lazy_loader.attach_stub(__name__, __file__))
