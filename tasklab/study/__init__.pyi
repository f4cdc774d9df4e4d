from .comparisons import r_squared as r_squared
from .recording import evidence as evidence
from .recording import recorded as recorded
from .recording import study as study
