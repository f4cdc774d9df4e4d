from . import drawn as drawn
from . import own as own
