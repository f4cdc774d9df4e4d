"""Looks that end early say what whole ones say, of all that matters."""

import math

import numpy as np
import pytest

from tasklab.analyses import editing
from tasklab.analyses.evaluation import Evaluator
from tasklab.analyses.merging.search import ROUNDS, Looks
from tasklab.models import loading
from tasklab.storage.store import Store
from tasklab.tasks.suites import suite
from tests.vectors import noise

TASKS, ALONE = ("Signs", "Scenes"), np.array([80.0, 90.0])


def relative(accuracies):
    return float(editing.normalised(accuracies, ALONE).mean())


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory):
    clip, store = loading.load("mini_xs"), Store(tmp_path_factory.mktemp("store"))
    return Evaluator(clip, suite("mini"), store, counts={"val": 43}, batch_size=5)


@pytest.fixture(scope="module")
def vectors(evaluator):
    params = evaluator.clip.encoder.params
    return [noise(params, seed, size) for seed, size in enumerate((0.005, 0.02, 0.05))]


def whole(evaluator, vector, alpha):
    found = [evaluator.evaluate(vector, task, "val", alpha, linear=False) for task in TASKS]
    return relative(np.array(found))


def test_looks_are_accuracies_and_end_where_they_are_worse(evaluator, vectors):
    looks = Looks(evaluator, TASKS, "val", relative)
    for _ in range(2):  # the second time wrong ones come first
        for vector in vectors:
            assert looks(vector, 0.5) == whole(evaluator, vector, 0.5)
    assert looks.seen == 6 * len(TASKS) * 43
    looks = Looks(evaluator, TASKS, "val", relative)
    scores = [whole(evaluator, vector, 1.0) for vector in vectors]
    assert len(set(scores)) == 3
    for vector, score in zip(vectors, scores, strict=True):
        assert looks(vector, 1.0, score) == score  # as good as the best so far: seen wholly
        assert looks(vector, 1.0, np.nextafter(score, math.inf)) == -math.inf
    score = whole(evaluator, vectors[0], 0.5)
    looks, above = Looks(evaluator, TASKS, "val", relative), np.nextafter(score, math.inf)
    passed = []
    for _ in range(2):  # the first time in the order of the images
        before = looks.seen
        assert looks(vectors[0], 0.5, above) == -math.inf
        passed.append(looks.seen - before)
    assert passed[1] < passed[0]


def test_fewer_images_than_rounds(vectors, tmp_path):
    counts = {"val": ROUNDS - 2}
    few = Evaluator(loading.load("mini_xs"), suite("mini"), Store(tmp_path), counts=counts)
    assert Looks(few, TASKS, "val", relative)(vectors[0], 1.0) == whole(few, vectors[0], 1.0)
