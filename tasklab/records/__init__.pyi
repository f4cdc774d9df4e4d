from .claims import (
    verdicts as verdicts,
)
from .comparisons import (
    box_means as box_means,
)
from .papers import (
    beside as beside,
)
from .table import (
    combine as combine,
)
from .table import (
    tidy as tidy,
)
