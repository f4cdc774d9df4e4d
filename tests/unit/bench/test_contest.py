"""What a comparison of merges concludes from its answers; entries are written by hand."""

import numpy as np
import pytest
import torch

from tasklab.analyses import shares
from tasklab.analyses.evaluation import Evaluator
from tasklab.analyses.merging.search import Choice
from tasklab.bench import contest as contests
from tasklab.bench.contest import Contest, Entry
from tasklab.bench.lab import Lab
from tasklab.bench.merges import Bench, Unlabelled
from tasklab.taskvector import TaskVector

TASKS = ("Signs", "Textures")
#: Of each merge: its vector's size, validation accuracy, test accuracy and loss. Each of the three
#: would choose another one, and so would the order in which they are asked for.
MERGES = {
    "average": (1.0, 0.25, 0.5, 0.7),
    "arithmetic": (2.0, 0.75, 0.25, 0.6),
    "ties": (3.0, 0.5, 0.875, 0.5),
    "tsv_m": (4.0, 0.25, 0.0, 0.3),
}


def entry(name, right, n=40, **about):
    """Return an entry that answers the first images of each task: as many as `right` has."""
    answers = {task: np.arange(n) < count for task, count in right.items()}
    return Entry(name=name, title=name.upper(), answers=answers, **about)


def contest(start, alone, *merges):
    own = {task: entry("alone", {task: count}) for task, count in alone.items()}
    first = merges or (start,)
    return Contest(start=start, alone=own, merges=first, pairs=[], alpha=0.3)


def test_a_vector_helps_if_its_gain_is_sure():
    start = entry("pretrained", {"a": 10, "b": 10, "c": 10, "d": 10})
    found = contest(start, {"a": 30, "b": 19, "c": 10, "d": 2})
    gains = {task: one.gain(start) for task, one in found.alone.items()}
    assert gains["b"].value == pytest.approx(22.5) and gains["b"].low == 0  # nine images of forty
    assert gains["a"].low > 20 and gains["d"].high <= 0
    assert found.useless() == ["b", "c", "d"]


def test_an_entry_has_the_mean_over_tasks_and_a_paired_gain():
    start, one = entry("pretrained", {"a": 20, "b": 0}), entry("ties", {"a": 30, "b": 40})
    assert one.mean.value == pytest.approx(87.5) and start.mean.value == pytest.approx(25)
    assert one.gain(start) == shares.gain(one.answers, start.answers)
    assert one.gain(start).value == pytest.approx(62.5)
    few = Entry(name="x", title="X", answers={"a": np.arange(40) < 30},
                copies={"a": np.arange(40) // 10})  # fmt: skip
    assert few.mean == shares.accuracy(few.answers, few.copies)
    assert few.mean.half > 1.5 * shares.accuracy(few.answers).half
    assert few.gain(start) == shares.gain(few.answers, start.answers, few.copies)


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A lab whose merges have the numbers of `MERGES`."""
    lab = Lab(model="mini_xs", steps=1, tasks=TASKS, progress=False, store_root=tmp_path)
    proj = lab.clip.encoder.params["proj"]
    sizes = {size: row for size, *row in MERGES.values()}

    def answers(self, vector, task, split, alpha=1.0, *, linear):
        size = alpha * float(vector["proj"].max()) if vector else 0
        val, test, _ = sizes.get(size, (0, 0, 0))
        n = self.count(task, split)
        return np.arange(n) < n * (val if split == "val" else test)

    def vector(name):
        return TaskVector(
            {"proj": MERGES[name][0] * torch.ones_like(lab.clip.encoder.params["proj"])}
        )

    def choose(bench, name):
        return Choice(vector=vector(name), alpha=1.0, option=None, scale=1, objective=1, trials=3)

    def unlabelled(bench, name, metrics):
        return [Unlabelled(vector=vector(name), alpha=1.0, option=None, loss=MERGES[name][3])]

    monkeypatch.setattr(Evaluator, "answers", answers)
    monkeypatch.setattr(Bench, "choose", choose)
    monkeypatch.setattr(contests, "unlabelled", unlabelled)
    return lab, {task: TaskVector({"proj": torch.zeros_like(proj)}) for task in TASKS}


def test_validation_images_choose_the_merge_and_test_images_do_not(told):
    lab, vectors = told
    found = contests.contest(lab, vectors, "nonlinear", [*MERGES])
    assert [one.name for one in found.merges[:2]] == ["arithmetic", "ties"]
    best = found.best
    assert (best.validation, best.mean.value, best.loss) == (75, 25, None) and found.labels
    assert max(found.merges, key=lambda one: one.mean.value).name == "ties"


def test_the_least_loss_chooses_without_labels(told):
    lab, vectors = told
    found = contests.contest(lab, vectors, "nonlinear", [*MERGES], labels=False)
    assert [one.name for one in found.merges] == ["tsv_m", "ties", "arithmetic", "average"]
    assert (found.best.loss, found.best.validation) == (0.3, None) and not found.labels
