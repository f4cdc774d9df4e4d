"""The evidence on the papers' claims: experiments, records, verdicts and figures.

`records` has rows, claims and verdicts, `declared` what experiments record, `experiments` measure,
`chapters` declare what their notebooks compare, `figures` draw, and a `study` records. The library
below knows none of them.
"""

import lazy_loader

from tasklab.errors.advice import advising
from tasklab.evidence.records import schema

__getattr__, __dir__, __all__ = advising(__name__, lazy_loader.attach_stub(__name__, __file__))


def _declarations() -> None:
    from tasklab.evidence import declared  # pandas

    declared.load()


schema.declarations(_declarations)
