"""Layer-wise analyses in float64 against numbers by hand and slow, explicit loops."""

import math

import pandas as pd
import pytest
import torch

from tasklab.analyses import layers
from tasklab.analyses.projections import (
    ATTENTION,
    PROJECTIONS,
    Inputs,
    is_root,
    pieces,
    second_moments,
)
from tasklab.errors import TasklabError
from tasklab.taskvector import TaskVector
from tasklab.tuning.tangent import TangentFeatures
from tests.helpers import refuses
from tests.vectors import noise, pictures

WIDTH, BLOCKS = 8, 2
TASKS = ("a", "b", "c")


@pytest.fixture(scope="module")
def vectors(encoder):
    return {task: noise(encoder.params, seed, 0.1) for seed, task in enumerate(TASKS)}


@pytest.fixture(scope="module")
def moments(encoder):
    return {
        task: second_moments(encoder, pictures(5, seed), batch_size=2)
        for seed, task in enumerate(TASKS)
    }


def at(df, **where):
    for name, value in where.items():
        df = df[df[name].isna()] if value is None else df[df[name] == value]
    assert len(df) == 1
    return float(df["value"].iloc[0])


def test_cosines_by_hand():
    name, out = "resblocks.{}.attn.in_proj_weight", "resblocks.{}.attn.out_proj.weight"

    def vector(q, k, v, output, rest):
        first = {
            name.format(0): torch.tensor([[q], [k], [v]]),
            out.format(0): torch.tensor([[output]]),
        }
        second = {name.format(1): torch.zeros(3, 1), out.format(1): torch.ones(1, 1)}
        return TaskVector({**first, **second, "proj": torch.tensor([rest])})

    one = vector(3.0, 0.0, 1.0, 2.0, 4.0)
    two = vector(1.0, 5.0, -2.0, 2.0, 0.0)
    df = layers.cosines({"a": one, "b": two})
    assert list(df.columns) == ["task", "other", "block", "projection", "value"]
    assert set(zip(df["task"], df["other"], strict=True)) == {("a", "b")}
    assert at(df, block=0, projection="q") == 1
    assert at(df, block=0, projection="k") == 0  # one of them is zero there
    assert at(df, block=0, projection="v") == -1
    assert at(df, block=1, projection="output") == 1
    dot, first, second = 3 - 2 + 4, 9 + 1 + 4, 1 + 25 + 4 + 4
    assert at(df, block=0, projection="all") == pytest.approx(dot / math.sqrt(first * second))
    assert at(df, block=None, projection="output") == pytest.approx(1)  # (2, 1) and (2, 1)
    expected = pytest.approx((dot + 1) / math.sqrt((first + 1 + 16) * (second + 1)))
    assert at(df, block=None, projection="all") == expected
    assert at(df, block=None, projection="all") == pytest.approx(one.cosine(two))


def test_cosines_of_parts_of_vectors(vectors):
    part = {
        "a": vectors["a"],
        "b": TaskVector({n: x for n, x in vectors["b"].items() if "attn" in n}),
    }
    df = layers.cosines(part)
    assert at(df, block=None, projection="all") == pytest.approx(part["a"].cosine(part["b"]))
    assert at(df, block=1, projection="MLP input") == 0
    attention = {
        t: TaskVector(
            {n: x for n, x in v.items() if n.endswith(("in_proj_weight", "out_proj.weight"))}
        )
        for t, v in vectors.items()
    }
    assert set(layers.cosines(attention)["projection"]) == {*ATTENTION, layers.ALL}
    refuses("MLP input", layers.cosines, attention, PROJECTIONS)
    assert set(layers.cosines(attention, ())["projection"]) == {layers.ALL}


def test_norms_are_relative_and_roots_align(encoder, vectors):
    tau = TaskVector({n: 0.25 * x for n, x in encoder.params.items() if "in_proj_weight" in n})
    df = layers.norms({"a": tau, "zero": TaskVector({})}, encoder.params)
    assert at(df, task="a", block=1, projection="k") == pytest.approx(0.25)
    assert at(df, task="a", block=None, projection="v") == pytest.approx(0.25)
    assert at(df, task="a", block=0, projection="output") == 0
    whole = TaskVector(encoder.params).norm()
    assert at(df, task="a", block=None, projection="all") == pytest.approx(tau.norm() / whole)
    assert df[df["task"] == "zero"]["value"].eq(0).all()
    few = {task: pictures(1, seed) for seed, task in enumerate(TASKS)}
    read = [
        {task: second_moments(encoder, x, roots=roots) for task, x in few.items()}
        for roots in (False, True)
    ]
    assert any(map(is_root, read[1][TASKS[0]].values()))
    whole, short = (layers.alignment(vectors, moments, encoder.params) for moments in read)
    pd.testing.assert_frame_equal(whole, short, rtol=1e-4)
    mixed = {task: read[i % 2][task] for i, task in enumerate(TASKS)}
    some = layers.alignment(vectors, mixed, encoder.params)
    pd.testing.assert_frame_equal(whole, some, rtol=1e-4)


def inputs_of(encoder, x):
    found = {}
    names = {p.name for p in pieces(encoder.params) if p.projection}
    with torch.no_grad(), Inputs({n: encoder.params[n] for n in names}, found.__setitem__):
        encoder(encoder.params, x)
    return found


def rms(x):
    return float(x.square().sum(-1).mean().sqrt())


def test_alignment_equals_a_slow_loop(encoder, vectors, moments):
    df = layers.alignment(vectors, moments, encoder.params)
    assert len(df) == len(TASKS) * 3 * BLOCKS * len(PROJECTIONS) * 2
    for seed, task in enumerate(TASKS):
        inputs = inputs_of(encoder, pictures(5, seed))
        for piece in pieces(encoder.params):
            if piece.projection is None:
                continue
            x = inputs[piece.name]
            W = encoder.params[piece.name][piece.rows]
            taus = {t: v[piece.name][piece.rows] for t, v in vectors.items()}
            rest = [t for t in TASKS if t != task]
            total = sum(taus[t] for t in rest)
            sizes = {
                "own": rms(x @ taus[task].T),
                "each": sum(rms(x @ taus[t].T) for t in rest) / 2,
                "others": rms(x @ total.T),
            }
            random = rms(x) / math.sqrt(x.shape[-1])
            shares = {
                "own": rms(x @ taus[task].T) / float(taus[task].norm()),
                "each": sum(rms(x @ taus[t].T) / float(taus[t].norm()) for t in rest) / 2,
                "others": rms(x @ total.T) / float(total.norm()),
            }
            place = {"task": task, "block": piece.block, "projection": piece.projection}
            for part, size in sizes.items():
                found = at(df, **place, part=part, metric="relative")
                assert found == pytest.approx(size / rms(x @ W.T), rel=1e-9)
                found = at(df, **place, part=part, metric="random")
                assert found == pytest.approx(shares[part] / random, rel=1e-9)


def test_what_cannot_be_aligned_or_has_no_effect_is_refused(encoder, vectors, moments):
    refuses("at least two", lambda: layers.alignment({"a": vectors["a"]}, moments, encoder.params))
    with pytest.raises(TasklabError, match="no second moments of c"):
        layers.alignment(vectors, {t: moments[t] for t in "ab"}, encoder.params)
    biases = {t: TaskVector({"ln_pre.bias": v["ln_pre.bias"]}) for t, v in vectors.items()}
    refuses("change no projection", layers.alignment, biases, moments, encoder.params)
    vectors = {"a": TaskVector({"w": torch.tensor([0.0, 0.0, 1.0])})}
    aligned = pd.DataFrame(
        {"task": ["a"] * 2, "part": ["own", "others"], "metric": "relative", "value": 1.0}
    )
    refuses("changes none", lambda: layers.interference(Plane(), vectors, aligned, linear=False))
    other = aligned.assign(task="b")
    refuses("no alignment of a", layers.interference, Plane(), vectors, other, linear=False)


class Plane:
    """An evaluator whose features are the parameter itself, times a task's mask: f = mask * w."""

    masks = {"a": torch.tensor([1.0, 1.0, 0.0]), "b": torch.tensor([0.0, 1.0, 1.0])}

    def __init__(self):
        encoder = type("Encoder", (), {"params": {"w": torch.tensor([3.0, 0.0, 4.0])}})
        self.clip = type("Clip", (), {"encoder": encoder})

    def features(self, params, task, split):
        return (self.masks[task] * params["w"]).expand(4, 3)

    def tangent_features(self, vector, task, split):
        w = self.clip.encoder.params["w"]
        return TangentFeatures(*((self.masks[task] * x).expand(4, 3) for x in (w, vector["w"])))

    def accuracy(self, features, task, split, alpha=None):
        return 50.0 + float(features[0, 1])

    def count(self, task, split):
        return 4


@pytest.mark.parametrize("linear", [False, True])
def test_interference_by_hand(linear):
    vectors = {
        "a": TaskVector({"w": torch.tensor([4.0, 0.0, 9.0])}),
        "b": TaskVector({"w": torch.tensor([0.0, -6.0, 1.0])}),
    }
    aligned = pd.DataFrame(
        [("a", "own", 0.2), ("a", "others", 0.1), ("a", "others", 0.5)]
        + [("b", "own", 0.4), ("b", "others", 0.4)],
        columns=["task", "part", "value"],
    ).assign(metric="relative")
    wrong = aligned.assign(value=9.0, metric="random")
    aligned = pd.concat([aligned, wrong])
    df = layers.interference(Plane(), vectors, aligned, linear=linear, alpha=0.5)
    found = df.pivot(index="task", columns="metric", values="value")
    # Of a's features, b's vector moves the second by 3; its own moves the first by 2; |f_0| = 3.
    assert found.loc["a"].to_dict() == pytest.approx(
        {"predicted": 0.15, "predicted_ratio": 1.5, "change": 1.0, "change_ratio": 1.5,
         "alone": 50.0, "together": 47.0, "lost": 3.0}
    )  # fmt: skip
    assert found.loc["b", "change"] == pytest.approx(4.5 / 4)  # the third by 4.5
    assert found.loc["b", "lost"] == 0
    assert (df["n"] == 4).all() and (df["alpha"] == 0.5).all()
