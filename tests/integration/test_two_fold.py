"""Two-fold cross-validation: each half of the validation images reports at the other's choice."""

import dataclasses

import numpy as np
import pytest

from tasklab.analyses.editing import normalised
from tasklab.bench.parameters import Parameters
from tasklab.evidence import experiments
from tasklab.evidence.experiments.two_fold import Halves
from tasklab.evidence.records.images import unpacked
from tasklab.tasks import drawn
from tasklab.taskvector import TaskVector
from tests.helpers import refuses


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    store = tmp_path_factory.mktemp("lab")
    parameters = Parameters(model="mini_xs", steps=8, store_root=store)
    lab = experiments.Lab(parameters, progress=False, tasks=["Signs", "Textures"])
    lab.scale = dataclasses.replace(lab.scale, counts={"control": 40})
    return lab


def test_halves_are_all_validation_images_once_and_never_test_images(lab):
    own = drawn.images_of(lab.suite)
    halves = [Halves(own, reports) for reports in (0, 1)]
    for task in ("Signs", "Textures"):
        whole = own.load(task, "val")
        for one, other in (halves, halves[::-1]):
            chosen, told = one.load(task, "val"), one.load(task, "test")
            assert one.size(task, "test") == len(told.y) == other.size(task, "val")
            assert (told.x == other.load(task, "val").x).all()
            assert len(chosen.y) + len(told.y) == len(whole.y)
            assert one.version(task, "test") == other.version(task, "val")
            assert one.version(task, "test") != one.version(task, "val")
        assert (halves[0].load(task, "test").x == whole.x[::2]).all()
        assert len(halves[0].load(task, "test", n=3).y) == 3
        assert (halves[0].load(task, "train", n=5).x == own.load(task, "train", n=5).x).all()


def test_accuracies_are_those_at_the_coefficient_of_the_other_half(lab):
    table = experiments.two_fold(lab, ["nonlinear"], n_tasks=(2,))
    assert {*table["split"]} == {"validation"} and {*table["experiment"]} == {"two_fold"}
    rows = table[table["method"] == "nonlinear"].set_index(["metric", "task"])
    vectors, alphas = lab.vectors(), lab.scale.alphas
    total, tasks = TaskVector.sum(vectors.values()), [*vectors]
    size = drawn.images_of(lab.suite).size("Signs", "val")
    whole = lab.evaluator.with_counts(val=size)

    def answered(vector, task, alpha):
        return whole.answers(vector, task, "val", alpha, linear=False)

    alone = [answered(vectors[task], task, 1.0) for task in tasks]
    along = np.array([[answered(total, task, a) for task in tasks] for a in alphas])
    chosen = []
    for half in (0, 1):
        single = np.array([100 * right[half::2].mean() for right in alone])
        curve = normalised(100 * along[:, :, half::2].mean(-1), single).mean(-1)
        chosen.append(int(curve.argmax()))
    for place, task in enumerate(tasks):
        single, added = rows.loc[("single", task)], rows.loc[("absolute", task)]
        told = [along[chosen[1], place, 0::2], along[chosen[0], place, 1::2]]
        assert single["value"] == pytest.approx(100 * alone[place].mean())
        assert added["value"] == pytest.approx(100 * np.concatenate(told).mean())
        assert added["n"] == single["n"] == size
        assert (unpacked(added["hits"], size) == np.concatenate(told)).all()
        assert added["alpha"] == pytest.approx(np.mean([alphas[one] for one in chosen]))
    assert {*rows.index.get_level_values("metric")} == {"single", "absolute", "target", "control"}


def test_linear_models_and_merges_count_every_image_once(lab):
    table = experiments.two_fold(lab, ["linearized"], ("single", "addition"), ("arithmetic",), (2,))
    rows = table[table["method"] == "linearized"]
    assert rows.groupby("metric").size().to_dict() == {"absolute": 4, "single": 2}
    assert rows[rows["metric"] == "absolute"].groupby("merge").size().to_dict() == {"arithmetic": 2}
    assert rows["n"].eq(drawn.images_of(lab.suite).size("Signs", "val")).all()
    refuses("multiplied", experiments.two_fold, lab, ["nonlinear"], "multiplied")
