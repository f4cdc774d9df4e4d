"""Published checkpoints, as others use them: `from tasklab import checkpoints`.

Exported model cards name `checkpoints.load`, so that these names stay where modules move.
"""

from tasklab.exchange.importing import add, compare, imported, load, read, vector_of
from tasklab.exchange.places import listed

__all__ = ["add", "compare", "imported", "listed", "load", "read", "vector_of"]
