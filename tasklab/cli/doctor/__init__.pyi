from . import needs as needs
from . import readiness as readiness
