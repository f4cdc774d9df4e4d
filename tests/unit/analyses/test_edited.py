"""Models of which no copy is kept."""

import torch

from tasklab.analyses.edited import Edited, Line, line
from tasklab.storage import placement
from tasklab.taskvector import TaskVector, merged
from tests.helpers import refuses


def test_lines_and_sweeps_make_each_model(monkeypatch):
    theta = {"w": torch.randn(3, 2), "b": torch.randn(2), "fixed": torch.randn(1)}
    vector = TaskVector({"w": torch.randn(3, 2), "b": torch.randn(2)})
    model = Edited(theta, vector, -0.3)
    made = vector.apply(theta, -0.3)
    assert list(model) == list(theta) and len(model) == 3 and "c" not in model
    assert all(torch.equal(model[name], made[name]) for name in theta)
    assert model["fixed"] is theta["fixed"] and model["w"] is not model["w"]
    made_of, usual = [], Edited.__getitem__
    monkeypatch.setattr(Edited, "__getitem__", lambda m, n: made_of.append(n) or usual(m, n))
    both = merged([model, Edited(theta, vector, 0.7)], [0.5, 0.5])
    assert sorted(made_of) == sorted([*theta] * 2)  # each once, none to look at its shape
    plain = merged([made, vector.apply(theta, 0.7)], [0.5, 0.5])
    assert list(both) == list(plain) and all(torch.equal(both[name], plain[name]) for name in theta)
    refuses("lack c", lambda: Edited(theta, {"c": torch.ones(1)}))
    refuses("shapes differ", lambda: Edited(theta, {"b": torch.ones(3)}))
    theta = {"w": torch.randn(3, 2), "b": torch.randn(2), "fixed": torch.randn(1)}
    other = {name: tensor + 1 for name, tensor in theta.items()}
    vector = TaskVector({"b": torch.randn(2), "w": torch.randn(3, 2)})
    line = Line(theta, vector)
    for start in (theta, other, theta):
        for alpha in (-0.5, 0.0, 2.0):
            model, made = line.begin(start).at(alpha), vector.apply(start, alpha)
            assert model.keys() == made.keys()
            assert all(torch.equal(model[name], made[name]) for name in made)
    refuses("coefficient", lambda: line.at(float("nan")))
    refuses("lack c", lambda: Line(theta, {"c": torch.ones(1)}))


def test_a_vector_elsewhere_is_moved_once_if_it_fits(monkeypatch):
    moves, usual = [], TaskVector.to
    monkeypatch.setattr(TaskVector, "to", lambda self, *a: moves.append(a) or usual(self, *a))
    theta = {"w": torch.ones(2, device="meta"), "b": torch.ones(1, device="meta")}
    vector = TaskVector({"w": torch.ones(2)})
    edited = Edited(theta, vector, 2.0)
    assert edited["w"].device.type == edited["w"].device.type == "meta" and len(moves) == 1
    monkeypatch.setattr("tasklab.analyses.edited.fits", lambda size, device: size < 8)
    assert Edited(theta, vector)["w"].device.type == "meta" and len(moves) == 1


def test_a_sweep_goes_on_in_the_same_memory():
    theta = {"w": torch.randn(3, 2), "b": torch.randn(2)}
    one, two = (TaskVector({"w": torch.randn(3, 2)}) for _ in range(2))
    place = line(theta, one).at(0.5)["w"].data_ptr()
    with torch.inference_mode():
        assert line(theta, one).at(-1.0)["w"].data_ptr() == place
    for vector in (one, two, one):
        for alpha in (0.25, 1.0):
            model, expected = line(theta, vector).at(alpha), vector.apply(theta, alpha)
            assert all(torch.equal(model[name], expected[name]) for name in theta)
            assert model["b"] is theta["b"] and list(model) == list(theta)
    kept = line(theta, one)
    placement.release()
    assert line(theta, one) is not kept and line(dict(theta), one) is not kept
