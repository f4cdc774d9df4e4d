"""What a comparison of merges concludes from its answers; entries are written by hand."""

import numpy as np
import pytest

from tasklab.analyses import shares
from tasklab.experiments.contest import Contest, Entry


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
