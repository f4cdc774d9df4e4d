from . import analyses as analyses
from . import mini as mini
from . import models as models
from .analyses.merging.anything import merge as merge
from .bench.lab import Lab as Lab
from .bench.parameters import Parameters as Parameters
from .book import explore as explore
from .book import page as page
from .errors import TasklabError as TasklabError
from .evidence import chapters as chapters
from .evidence import experiments as experiments
from .evidence import figures as figures
from .evidence import records as records
from .evidence import study as study
from .evidence.study.results import recorded as recorded
from .exchange import checkpoints as checkpoints
from .storage.store import Store as Store
from .tasks import own as own
from .tasks.suites import suite as suite
from .taskvector import TaskVector as TaskVector
from .tuning import finetune as finetune
from .tuning import tangent as tangent
from .tuning.recipe import FineTune as FineTune
from .tuning.recipe import recipe as recipe

__version__: str
