"""The algebra of task vectors, in float64 against the numbers."""

import copy
import math
import os
import pickle
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from tasklab import sums, taskvector
from tasklab.errors import TasklabError
from tasklab.storage import checksums
from tasklab.storage.tensors import save_checkpoint
from tasklab.taskvector import Base, TaskVector, merged
from tests.helpers import refuses


def params(seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"block.weight": (3, 2), "block.bias": (3,), "scale": ()}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


THETA0, THETA1, THETA2 = params(0), params(1), params(2)
BASE, OTHER = Base("mini", "pretrained", "a" * 64), Base("mini_s", "pretrained", "b" * 64)
A, B = (TaskVector.between(THETA0, theta) for theta in (THETA1, THETA2))


def flat(vector):
    return torch.cat([vector[name].reshape(-1) for name in sorted(THETA0)])


def assert_same(one, two):
    torch.testing.assert_close(flat(one), flat(two), rtol=1e-14, atol=1e-14)


def test_the_algebra():
    assert_same(A.apply(THETA0), THETA1)
    assert_same(A.apply(THETA0, 0.0), THETA0)
    assert_same((A + B).apply(THETA0, 0.5), {n: (THETA1[n] + THETA2[n]) / 2 for n in THETA0})
    assert_same(A + B, B + A)
    assert_same(A - B, A + (-B))
    assert_same(2 * A, A + A)
    assert_same(A * 0.5, A / 2)
    assert_same(sum([A, B, A]), 2 * A + B)
    assert sum([A]) is A
    assert TaskVector.sum([A, B]) == A + B and len(TaskVector.sum([])) == 0
    assert (A - A) == TaskVector.zeros_like(THETA0) and A != B and A != 3
    a, b = flat(A), flat(B)
    assert A.dot(B) == pytest.approx(float(a @ b), rel=1e-14)
    assert A.norm() == pytest.approx(float(a.norm()), rel=1e-14)
    assert A.cosine(B) == pytest.approx(float(a @ b / (a.norm() * b.norm())), rel=1e-14)
    assert A.cosine(A * 3) == pytest.approx(1) and A.cosine(-A) == pytest.approx(-1)
    assert A.cosine(TaskVector.zeros_like(THETA0)) == 0
    listed = [A, B, -A, TaskVector.zeros_like(THETA0)]
    pairs = [[one.cosine(other) for other in listed] for one in listed]
    assert np.allclose(sums.cosines(listed), pairs, atol=1e-6)
    many = TaskVector({"w": torch.full((1_000_000,), 0.1)})
    assert many.norm() == pytest.approx(math.sqrt(1e6) * float(torch.tensor(0.1)), rel=1e-12)


def test_absent_names_are_zero():
    part = TaskVector({"scale": torch.tensor(2.0, dtype=torch.float64)})
    edited = part.apply(THETA0, 0.5)
    assert edited["block.bias"] is THETA0["block.bias"] and edited["scale"] == THETA0["scale"] + 1
    total = A + part
    assert torch.equal(total["block.bias"], A["block.bias"])
    assert total["scale"] == A["scale"] + 2
    assert (part + TaskVector({"x": torch.ones(1)})).keys() == {"scale", "x"}
    assert part.dot(TaskVector({"x": torch.ones(1)})) == 0
    part = TaskVector.between(THETA0, {"scale": THETA1["scale"]}, names=["scale"])
    assert list(part) == ["scale"] and part["scale"] == A["scale"]
    edited = A.apply({name: tensor.float() for name, tensor in THETA0.items()})
    assert {tensor.dtype for tensor in edited.values()} == {torch.float32}


def test_vectors_do_not_change_and_do_not_track_gradients():
    before = {name: tensor.clone() for name, tensor in A.items()}
    _ = A + B, A * 2, -A, A.apply(THETA0, 3.0)
    assert A == TaskVector(before)
    with pytest.raises(TypeError):
        A["scale"] = torch.tensor(0.0)
    with pytest.raises(AttributeError):
        A.other = 1
    assert not TaskVector({"w": torch.ones(1, requires_grad=True)})["w"].requires_grad
    assert "10 numbers" in repr(A)


@pytest.mark.parametrize("action", [lambda: A + 1, lambda: A * A, lambda: A - 1, lambda: 1 + A])
def test_only_vectors_add_and_only_numbers_scale(action):
    with pytest.raises(TypeError):
        action()


HALVES = (
    np.float64(0.5), np.float32(0.5), np.float16(0.5), np.array(0.5), np.linspace(0, 1, 3)[1],
    torch.tensor(0.5), torch.tensor(0.5, dtype=torch.bfloat16), Fraction(1, 2),
)  # fmt: skip
TWOS = (np.int64(2), np.uint8(2), np.array(2), torch.tensor(2))


@pytest.mark.parametrize("number", [*HALVES, *TWOS], ids=lambda x: f"{type(x).__name__} {x}")
def test_numbers_of_numpy_and_torch_scale_from_both_sides(number):
    value = float(number)
    for scaled in (number * A, A * number, A / (1 / number)):
        assert scaled == A * value and {x.dtype for x in scaled.values()} == {torch.float64}
    assert A / number == A / value and number * 0 + A is A and A + 0 * number is A
    assert_same(A.apply(THETA0, number), A.apply(THETA0, value))
    assert_same(merged([A], [number], THETA0), A.apply(THETA0, value))
    with pytest.raises(TypeError):
        number / A


@pytest.mark.parametrize(
    "other",
    [
        np.array([0.5, 2]), torch.tensor([0.5]), np.complex64(1j), np.str_("2"), "2", None,
        np.ma.masked, torch.tensor(0.5, device="meta"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_real_number_scales_nothing(other):
    for action in (lambda: other * A, lambda: A * other, lambda: A / other, lambda: A + other):
        with pytest.raises(TypeError):
            action()


def test_sums_may_start_with_any_zero_and_coefficients_be_arrays():
    for start in (0.0, np.float64(0), torch.tensor(0)):
        assert sum([A, B], start) == A + B
    thirds = np.linspace(0, 1, 3)
    for alphas in (thirds.tolist(), thirds, torch.from_numpy(thirds)):
        for model, alpha in zip(A.apply(THETA0, alphas), (0, 0.5, 1), strict=True):
            assert_same(model, A.apply(THETA0, alpha))


def buffers(count, mask, **more):
    counter, mask = torch.tensor(count), torch.tensor(mask, dtype=torch.uint8)
    return {"bn.num_batches_tracked": counter, "mask": mask, "on": torch.tensor([True])} | more


def test_counters_and_masks_are_in_no_vector():
    before, after = (buffers(10, [200, 1]), buffers(25, [100, 1]))
    theta0, theta = ({"w": torch.tensor([x, 4.0])} | y for x, y in ((1.0, before), (2.0, after)))
    tau = TaskVector.between(theta0, theta)
    assert list(tau) == ["w"]
    edited = tau.apply(theta0, 0.5)
    assert edited["w"].tolist() == [1.5, 4] and edited["mask"].tolist() == [200, 1]
    assert edited["bn.num_batches_tracked"] == 10
    for broken in (after, {"w": torch.ones(2).to(torch.float8_e5m2)}, {"w": torch.ones(2) * 1j}):
        refuses(r"bn\.num|w \((float8_e5m2|complex64)\)", TaskVector, broken)
    refuses(r"mask \(uint8\)", TaskVector.between, theta0, theta, names=["w", "mask"])
    refuses(r"w \(int64\)", TaskVector.between, theta0, {**theta, "w": torch.tensor([1, 2])})
    for term in ({"mask": torch.ones(2)}, {"w": torch.tensor([1, 2])}):
        refuses(r"mask \(uint8\)|w \(int64\)", merged, [term], [0.5], theta0)


def test_models_and_vectors_are_merged_by_coefficients():
    first, second = (buffers(n, [200, 1], w=torch.tensor([x])) for n, x in ((10, 1.0), (25, 2.0)))
    mean = merged([first, second], [0.5, 0.5])
    assert mean["w"] == 1.5 and mean["bn.num_batches_tracked"] == 10
    assert mean["mask"].tolist() == [200, 1] and mean["mask"].dtype == torch.uint8
    other = second | {"mask": torch.tensor([1, 1], dtype=torch.uint8)}
    refuses("mask differ", merged, [first, other], [0.5, 0.5])
    for one, two in ((0.3, -2.0), (0.0, 0.0), (1.0, 1.0)):
        assert_same(merged([A, B], [one, two], THETA0), (A * one + B * two).apply(THETA0))
    part = TaskVector({"scale": B["scale"]})
    edited = merged([part, A], [2.0, 0.5], THETA0)
    assert_same(edited, (part * 2 + A / 2).apply(THETA0))
    assert merged([], [], THETA0) == THETA0
    assert all(torch.equal(x, params(0)[n]) for n, x in THETA0.items())  # still what they were
    mean = merged([THETA0, THETA1, THETA2], [0.5, 0.25, 0.25])
    assert_same(mean, {n: (2 * THETA0[n] + THETA1[n] + THETA2[n]) / 4 for n in THETA0})
    refuses("different parameters", lambda: merged([THETA0, A, {"scale": A["scale"]}], [1, 1, 1]))
    refuses("nothing to merge", merged, [], [])
    refuses("2 terms cannot have 1 weights", merged, [A, B], [1.0], THETA0)


@pytest.mark.parametrize("alpha", [math.nan, math.inf, -math.inf, 1e300, 10**400, "much", None])
def test_a_coefficient_that_is_no_finite_number_is_refused(alpha):
    actions = [lambda: A.apply(THETA0, alpha), lambda: merged([A, B], [1, alpha], THETA0)]
    if isinstance(alpha, int | float):
        actions += [lambda: A * alpha, lambda: A / alpha]
    for action in actions:
        refuses("a coefficient must be a finite number", action)


def test_values_and_names_that_are_none_are_told():
    for value in (math.nan, math.inf):
        broken = THETA1 | {"block.bias": torch.tensor([0.0, value, 0.0])}
        refuses(r"not finite: .* in block\.bias\.", TaskVector.between, THETA0, broken)
        with pytest.raises(TasklabError, match=r"model merged with 0\.5 is not finite: .*bias"):
            A.apply(THETA0 | {"block.bias": broken["block.bias"].double()}, 0.5)
    small = TaskVector({"w": torch.ones(3)})
    refuses("task vector is not finite", lambda: small * 1e30 * 1e30)  # more than float32 can hold
    refuses("1e\\+30 is not finite", (small * 1e20).apply, {"w": torch.ones(3)}, 1e30)
    refuses("divided by 0", lambda: A / 0)
    large = TaskVector({"w": torch.full((4,), 1e38)})  # whose sum float32 cannot hold
    assert len(large) == 1
    for odd, told in (
        ([1, 2], r"by parameters' names, not \[1, 2\]"),
        ({1: [2.0]}, "by parameters' names, not 1"),
        ({"w": None}, "'w' must be a tensor, not None"),
        ({"w": np.array(["a"], dtype=object)}, "'w' must be a tensor"),
    ):
        refuses(told, TaskVector, odd)
    for odd, told in (
        ({name: x.to("meta") for name, x in THETA0.items()}, r"\(meta\)"),
        ({name: x.to_sparse() for name, x in THETA0.items()}, r"\(sparse_coo\)"),
        ({name: x.numpy() for name, x in THETA0.items()}, r"\(ndarray\)"),
    ):
        refuses(told, A.apply, odd)
        refuses(told, TaskVector.between, odd, THETA1)
    with pytest.raises(TasklabError, match=r"as of model.state_dict\(\), not Linear"):
        TaskVector.between(torch.nn.Linear(1, 1), THETA0)
    assert "no values" in repr(A.to("meta")) and "norm" in repr(A)
    part = {name: x for name, x in THETA1.items() if name != "scale"}
    refuses("fine-tuned parameters lack scale", TaskVector.between, THETA0, part)
    more = {**THETA1, "extra": torch.ones(1)}
    refuses("pre-trained parameters lack extra", TaskVector.between, THETA0, more)
    refuses("lack other", lambda: TaskVector({"other": torch.ones(1)}).apply(THETA0))
    wrong = TaskVector({"block.bias": torch.ones(3, 1)})  # would broadcast silently
    for action in (lambda: wrong.apply(THETA0), lambda: A + wrong, lambda: A.dot(wrong)):
        refuses(r"block.bias \(3,.*\) and \(3,.*\)", action)


def test_a_vector_is_saved_and_loaded_bit_for_bit(tmp_path):
    path = A.save(tmp_path / "a.safetensors")
    assert TaskVector.load(path) == A and TaskVector.load(str(path))["scale"].dtype == torch.float64
    B.save(path)
    odd = A.save(tmp_path / os.fsdecode(b"\xff.safetensors"))  # no UTF-8, as of old archives
    assert TaskVector.load(odd) == A
    odd.unlink()
    assert TaskVector.load(path) == B and [file.name for file in tmp_path.iterdir()] == [path.name]
    refuses("call it 'a.safetensors'", A.save, tmp_path / "a.pt")
    refuses("writable.* path", A.save, tmp_path / "no" / "such" / "folder")
    refuses("Give the file a shorter name, or", A.save, tmp_path / ("a" * 250))


def test_a_vector_on_the_disk_is_the_same_and_holds_nothing(tmp_path):
    tensors = {"b": torch.randn(3).half(), "a": torch.randn(2, 2).half()}
    file = TaskVector(tensors).save(tmp_path / "tau.safetensors")
    held = TaskVector({name: tensor.float() for name, tensor in tensors.items()})
    there = held.on_disk(file)
    assert there == held and list(there) == list(held) and there["a"].dtype == torch.float32
    assert there["a"] is not there["a"] and "c" not in there
    assert there.fingerprint() == held.fingerprint() and (there + held) == 2 * held
    with pytest.raises(KeyError):
        there["c"]
    TaskVector({"b": torch.zeros(4), "a": torch.zeros(2, 2)}).save(file)
    refuses(r"tau.safetensors changed while it was in use", lambda: there["b"])
    file.unlink()
    refuses("changed while it was in use", lambda: there["a"])


@pytest.mark.parametrize(
    "odd",
    [
        np.arange(4.0)[::-1],
        np.array([3, 2, 1, 0], ">f4"),
        torch.tensor([3.0, 2, 1, 0]).to_sparse(),
        torch.tensor([-3j, -2j, -1j, 0]).conj().imag,  # negated when it is read
    ],
)
def test_numbers_in_any_order_of_memory_are_the_same(odd, tmp_path):
    made = TaskVector({"w": odd}, BASE)
    same = TaskVector.load(made.save(tmp_path / "a.safetensors")), copy.deepcopy(made)
    for one in (made, *same, pickle.loads(pickle.dumps(made))):
        assert one["w"].tolist() == [3, 2, 1, 0] and one.base == BASE
        assert one.fingerprint() == made.fingerprint()


@pytest.mark.parametrize(
    "few",
    [torch.ones(3, 7)[:1, 0], torch.tensor(1.0).expand(1), torch.from_numpy(np.zeros((0,)))],
)
def test_a_number_alone_may_have_any_stride(few, tmp_path):
    made = TaskVector({"w": few, "b": torch.ones(2)})
    assert TaskVector.load(made.save(tmp_path / "a.safetensors")) == made
    assert made.fingerprint() == TaskVector({"w": few.clone(), "b": torch.ones(2)}).fingerprint()


ABOUT = {"format": "tasklab task vector", "version": 1}


def test_loading_refuses_what_was_not_saved(tmp_path):
    path = A.save(tmp_path / "a.safetensors")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    refuses("is damaged, or no task vector of tasklab", TaskVector.load, path)
    save_checkpoint(path, A, {"step": 3})
    refuses("no task vector of tasklab", TaskVector.load, path)
    save_checkpoint(path, {"w": torch.tensor([2])}, ABOUT)
    refuses("w in .* are no floating-point numbers", TaskVector.load, path)
    refuses("there is no file", lambda: TaskVector.load(tmp_path / "other"))
    save_checkpoint(path, {"w": torch.tensor(math.nan)}, ABOUT)
    refuses("not finite: NaN or infinity in w", TaskVector.load, path)


def test_a_file_tells_the_base_of_a_vector(tmp_path):
    known = TaskVector(A, BASE)
    assert TaskVector.load(known.save(tmp_path / "a.safetensors")).base == BASE
    assert TaskVector.load(A.save(tmp_path / "b.safetensors")).base is None
    assert A == known and known.on_disk(tmp_path / "a.safetensors").base == BASE
    meta = {"format": "tasklab task vector", "version": 1, "base": {"model": 1}}
    save_checkpoint(tmp_path / "c.safetensors", A, meta)
    refuses("damaged, or no task vector", lambda: TaskVector.load(tmp_path / "c.safetensors"))


def test_arithmetic_within_one_base_keeps_it():
    a, b, other = TaskVector(A, BASE), TaskVector(B, BASE), TaskVector(B, OTHER)
    for made in (a + b, a - b, -a, 2 * a, a / 2, sum([a, b]), TaskVector.sum([a]), a.to("cpu")):
        assert made.base == BASE
    assert (a + other).base is None and (a + B).base is None
    one, two = (TaskVector(A, BASE._replace(method=name)) for name in ("tau_jp", "linearized"))
    assert (one + two + one).method == "linearized+tau_jp" and (one + a + two).method == ""
    assert TaskVector.between(THETA0, THETA1, base=BASE).base == BASE
    assert other.starting_from(BASE).base == BASE and other.base == OTHER
    assert A.to("cpu") is A and A.device == torch.device("cpu") == TaskVector({}).device
    digest = A.fingerprint()
    assert A.starting_from(BASE).fingerprint() == digest == TaskVector(dict(A)).fingerprint()
    others = [2 * A, *(TaskVector({name: A["scale"]}) for name in "ab")]
    assert len({digest, *(one.fingerprint() for one in others)}) == 4


@pytest.mark.parametrize("theta0", [THETA0, None])
def test_one_kernel_a_term_gives_the_same_bits(monkeypatch, theta0):
    part = TaskVector({"scale": B["scale"]})
    cases = [([A, B], [0.3, -0.7]), ([A, B, A], [1 / 3, 1e-9, 0.0])]
    cases += [] if theta0 is None else [([part, A, part], [0.1, 0.2, 0.3]), ([], [])]
    apart = [merged(terms, weights, theta0) for terms, weights in cases]
    monkeypatch.setattr(sums, "_FUSED", ("cpu",))
    for (terms, weights), expected in zip(cases, apart, strict=True):
        together = merged(terms, weights, theta0)
        assert together.keys() == expected.keys()
        assert all(torch.equal(together[name], expected[name]) for name in expected)
    assert all(torch.equal(x, params(1)[n] - params(0)[n]) for n, x in A.items())
    half = TaskVector({n: x.half() for n, x in A.items()})  # of another type: each by itself
    assert merged([half], [0.5], THETA0)["scale"].dtype == torch.float64
    for bad in (math.nan, math.inf):
        refuses("infinity in scale", TaskVector, {**A, "scale": torch.tensor(bad)})
    assert TaskVector({"w": torch.full((4,), 6e4).half()}) is not None  # whose sum is no half


def test_a_file_is_looked_through_for_nan_once(tmp_path, monkeypatch):
    monkeypatch.setattr(checksums, "_AT_REST", -(10**12))
    looks, usual = [], sums.check_finite
    monkeypatch.setattr(taskvector, "check_finite", lambda *a: looks.append(a) or usual(*a))
    file = A.save(tmp_path / "a.safetensors")
    for _ in range(3):
        assert TaskVector.of_file(dict(A), file, BASE) == A
    assert len(looks) == 1
    A.save(file)
    assert TaskVector.of_file(dict(A), file).base is None and len(looks) == 2
    wrong = {"w": torch.tensor(math.nan)}
    for _ in range(2):
        with pytest.raises(TasklabError, match="not finite"):
            TaskVector.of_file(wrong, TaskVector(dict(B)).save(tmp_path / "b.safetensors"))


def test_whatever_is_written_on_the_way_is_called_like_a_draft(tmp_path, monkeypatch):
    """The writer of safetensors has a draft of its own, which a killed process leaves."""
    save_file, seen = safetensors.torch.save_file, []

    def watched(tensors, file, metadata=None):
        (Path(file).parent / ".tmpA1b2C3").write_bytes(b"half")
        save_file(tensors, file, metadata)
        seen.extend(one.name for one in tmp_path.iterdir())

    monkeypatch.setattr(safetensors.torch, "save_file", watched)
    TaskVector({"a": torch.ones(2)}).save(tmp_path / "v.safetensors")
    assert seen and all(re.fullmatch(r"\.v\.safetensors\..+\.partial", one) for one in seen)
    assert [one.name for one in tmp_path.iterdir()] == ["v.safetensors"]
