from . import contest as contest
from . import explore as explore
from . import judging as judging
from . import page as page
from . import report as report
from . import warm as warm
