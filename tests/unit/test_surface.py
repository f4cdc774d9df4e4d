"""The public names: what `dir` lists exists."""

import tasklab


def test_the_names_are_those_that_exist():
    assert dir(tasklab) == sorted(tasklab.__all__) and 15 <= len(dir(tasklab)) <= 25
    for name in dir(tasklab):
        assert getattr(tasklab, name) is not None
    assert {"checkpoints", "models", "tangent"} <= {*dir(tasklab)}  # exported cards name them
    assert tasklab.__version__
