from . import packing as packing
from . import sliders as sliders
from .live import editor as editor
from .network import network as network
from .sliders import coefficients as coefficients
