from .clip import build as build
from .clip import tokenize as tokenize
from .sampling import sample as sample
from .shipped import card as card
from .shipped import weights_path as weights_path
from .text import TEXT_VERSION as TEXT_VERSION
from .text import sample_text as sample_text
from .worlds import VERSION as VERSION
