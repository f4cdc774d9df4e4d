from . import finetune as finetune
from . import tangent as tangent
