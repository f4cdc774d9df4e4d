from .foretelling import (
    foretelling as foretelling,
)
from .foretelling import (
    left_out as left_out,
)
from .gains import (
    gains as gains,
)
from .judgement import (
    verdicts as verdicts,
)
from .maps import (
    box_means as box_means,
)
from .papers import (
    beside as beside,
)
from .rates import (
    over_rates as over_rates,
)
from .replication import (
    counted as counted,
)
from .replication import (
    replication as replication,
)
from .statements import (
    both_scopes as both_scopes,
)
from .statements import (
    correction as correction,
)
from .statements import (
    verdict_rows as verdict_rows,
)
from .table import (
    combine as combine,
)
from .table import (
    provenance as provenance,
)
from .table import (
    tidy as tidy,
)
