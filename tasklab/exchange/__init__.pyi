from . import bases as bases
from . import checkpoints as checkpoints
from . import exporting as exporting
from . import importing as importing
from . import merged as merged
from . import published as published
from . import publishing as publishing
from . import reading as reading
