from . import checksums as checksums
from . import fetching as fetching
from . import files as files
from . import hub as hub
from . import state_dicts as state_dicts
from . import tensors as tensors
from . import torch_files as torch_files
from . import vectors as vectors
