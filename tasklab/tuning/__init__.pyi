from . import dual as dual
from . import finetune as finetune
from . import forward_mode as forward_mode
from . import memory as memory
from . import probes as probes
from . import tangent as tangent
