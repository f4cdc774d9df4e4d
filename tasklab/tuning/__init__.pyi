from . import finetune as finetune
from . import memory as memory
from . import tangent as tangent
