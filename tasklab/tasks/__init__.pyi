from . import own as own
