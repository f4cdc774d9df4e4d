from . import finetune as finetune
from . import memory as memory
from . import probes as probes
from . import tangent as tangent
