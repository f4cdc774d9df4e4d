from .papers import (
    beside as beside,
)
from .papers import (
    box_means as box_means,
)
from .papers import (
    combine as combine,
)
from .papers import (
    tidy as tidy,
)
from .papers import (
    verdicts as verdicts,
)
