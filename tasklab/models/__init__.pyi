from . import bert as bert
from . import heads as heads
from . import loading as loading
from . import sentences as sentences
from . import text_models as text_models
from .encoder import Encoder as Encoder
from .loading import load as load
from .zoo import spec as spec
