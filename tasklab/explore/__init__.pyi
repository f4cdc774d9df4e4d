from .live import editor as editor
from .sliders import coefficients as coefficients
