from . import finding as finding
from . import loader as loader
