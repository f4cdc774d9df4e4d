from . import chapters as chapters
from . import experiments as experiments
from . import figures as figures
from . import records as records
from . import study as study
