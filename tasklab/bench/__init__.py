"""A lab: a model with its tasks and its store, to edit, merge and compare.

    from tasklab import Lab

    lab = Lab("mini")
    lab.evaluate(lab.merge("ties", search=True))

`Lab` has a model, tasks, a store, a trainer and an evaluator. `Bench` merges some task vectors on
it in every way, and `contest` compares these merges.
"""

import lazy_loader

from tasklab.errors.advice import advising

__getattr__, __dir__, __all__ = advising(__name__, lazy_loader.attach_stub(__name__, __file__))
