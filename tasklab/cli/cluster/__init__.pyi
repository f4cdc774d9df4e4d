from . import grid as grid
from . import slurm as slurm
