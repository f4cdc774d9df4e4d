from .comparisons import gains as gains
from .comparisons import r_squared as r_squared
from .findings import findings as findings
from .recording import study as study
from .results import evidence as evidence
from .results import how_many_recorded as how_many_recorded
from .results import recorded as recorded
from .results import seeds_of_parts as seeds_of_parts
