from . import heads as heads
from . import loading as loading
from .encoder import Encoder as Encoder
from .loading import load as load
from .zoo import spec as spec
