"""The public names: what `dir` lists exists."""

from pathlib import Path

import pytest

import tasklab
from tasklab import analyses, models
from tasklab.evidence import experiments, figures, study


def test_the_names_are_those_that_exist():
    assert dir(tasklab) == sorted(tasklab.__all__) and 15 <= len(dir(tasklab)) <= 25
    for name in dir(tasklab):
        assert getattr(tasklab, name) is not None
    assert {"checkpoints", "models", "tangent"} <= {*dir(tasklab)}  # exported cards name them
    assert tasklab.__version__


@pytest.mark.parametrize(
    ("package", "guess", "told"),
    [
        (tasklab, "load", "models.load("),
        (tasklab, "list_models", "`tasklab list models`"),
        (tasklab, "METHODS", "analyses.merging.METHODS"),
        (tasklab, "lab", "did you mean 'Lab'?"),
        (tasklab, "compare", "`tasklab compare`"),
        (tasklab, "train", 'Lab("mini").vector("TASK")'),
        (tasklab, "ties", 'merge(base, [a, b], "ties"'),
        (tasklab, "datasets", "own.from_folder("),
        (figures, "heatmap", "did you mean 'heatmaps'?"),
        (figures, "cosine", "did you mean 'cosine_by_block'?"),
        (experiments, "xi", "experiments.disentanglement("),
        (experiments, "single_tsak", "did you mean 'single'?"),
        (analyses, "disentanglement_error", "experiments.disentanglement"),
        (study, "verdicts", "study.judged("),
        (models, "lod", "did you mean 'load'?"),
        (analyses.merging, "tie", "did you mean 'ties'?"),
    ],
)
def test_a_wrong_guess_at_a_package_is_answered_in_a_sentence(package, guess, told):
    with pytest.raises(AttributeError) as refused:
        getattr(package, guess)
    text = str(refused.value)
    assert text.startswith(f"{package.__name__} has no {guess!r}: ") and told in text


def test_every_package_answers_wrong_guesses():
    paths = Path(tasklab.__file__).parent.rglob("__init__.py")
    lazy = [path for path in paths if "lazy_loader" in path.read_text("utf-8")]
    assert len(lazy) > 15 and all("= advising(" in path.read_text("utf-8") for path in lazy)
    with pytest.raises(AttributeError, match="import tasklab.progress"):
        _ = tasklab.__getattr__("progress")
