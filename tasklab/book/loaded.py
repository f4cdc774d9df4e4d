"""Imports of chapters and pages, loaded once by the process whose forks run them (`warm`).

Nothing here may start a thread or a GPU, which a fork would lose.
"""

import ipykernel.kernelapp as _  # noqa: F401
import matplotlib_inline.backend_inline as __  # noqa: F401

import tasklab
from tasklab import analyses
from tasklab.book import explore
from tasklab.evidence import experiments, figures, records, study
from tasklab.evidence.study.judged import package

for room in (tasklab, analyses, analyses.merging, experiments, explore, figures, records, study):
    for name in room.__all__:
        getattr(room, name)
package()  # parses and hashes the code that judges: seconds in every kernel
