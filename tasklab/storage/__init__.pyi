from . import state_dicts as state_dicts
from . import torch_files as torch_files
