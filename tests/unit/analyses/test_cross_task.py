"""Cross-task linearity against a direct computation in float64 from stored features."""

import gc
import itertools
import weakref
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from tasklab.analyses import cross_task
from tasklab.analyses.cross_task import Merge, Spread, measure, merged
from tasklab.errors import TasklabError
from tasklab.models import loading
from tasklab.models.encoder import Encoder, TextEncoder
from tasklab.tasks import drawn
from tasklab.tasks.suites import suite
from tasklab.tuning import scratch
from tests.vectors import moved


def plain(module, blocks, size=8):
    encoder = Encoder.of(module, name="mini", init="random", blocks=blocks, image_size=size)
    object.__setattr__(encoder, "preprocess", lambda x: x.float())
    return encoder


def mlp():
    parts = [nn.Flatten(), nn.Linear(192, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU()]
    return plain(nn.Sequential(*parts, nn.Linear(20, 5)), ("2", "4"))


def sequence_first():

    class Tower(nn.Module):
        def __init__(self, batch_first):
            super().__init__()
            self.batch_first = batch_first
            block = nn.TransformerEncoderLayer(24, 2, 32, dropout=0.0, batch_first=batch_first)
            self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)

        def forward(self, x):
            x = x.reshape(len(x), 8, 24)
            x = self.blocks(x if self.batch_first else x.transpose(0, 1))
            return x[:, 0] if self.batch_first else x[0]

    towers = Tower(True), Tower(False)
    towers[1].load_state_dict(towers[0].state_dict())
    return [plain(tower, ("blocks.layers.0", "blocks.layers.1")) for tower in towers]


def shipped(name):
    encoder = loading.load(name, device="cpu").encoder
    tasks = suite("mini_text" if isinstance(encoder, TextEncoder) else "mini")
    images = drawn.images_of(tasks)
    data = {t: images.load(t, "test", n=6).x for t in tasks.names[:2]}
    return encoder, data


def case(kind):
    torch.manual_seed(0)
    if kind.startswith("mini"):
        return shipped(kind)
    if kind == "resnet":
        images = {n: torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8) for n in "xy"}
        return scratch.resnet18(0, width=4, stride=2), images
    encoder = mlp() if kind == "mlp" else sequence_first()[kind == "sequence first"]
    return encoder, {name: torch.randn(6, 3, 8, 8) for name in ("one", "two")}


def near(params, seed, share=0.3):
    return moved(params, seed, share)


def outputs(encoder, params, x):
    found = []
    handles = [
        encoder.module.get_submodule(name).register_forward_hook(
            lambda m, a, out: found.append(out if isinstance(out, torch.Tensor) else out[0])
        )
        for name in encoder.blocks
    ]
    rows = []
    for i in range(len(x)):
        found.clear()
        one = x[i : i + 1]
        features = torch.func.functional_call(encoder.module, dict(params), (one,))
        flat = [out.double().reshape(-1, out.shape[-1]) for out in found]
        if isinstance(encoder, TextEncoder):  # a text alone has no padding
            flat = [out.mean(0) for out in flat]
        rows.append([out.flatten() for out in flat] + [features.double().flatten()])
    for handle in handles:
        handle.remove()
    return [torch.stack(layer) for layer in zip(*rows, strict=True)]


def cosine(a, b):
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


class MadeWhenAsked(Mapping):
    """Models that nobody else holds; `most` is how many of them were alive at once."""

    def __init__(self, params, names):
        self.params, self.names, self.alive, self.most = params, names, weakref.WeakSet(), 0

    def __getitem__(self, name):
        model = {n: Weak(p) for n, p in near(self.params, self.names.index(name)).items()}
        self.alive.add(next(iter(model.values())))
        self.most = max(self.most, len(self.alive))
        return model

    def __contains__(self, name):
        return name in self.names

    def __iter__(self):
        return iter(self.names)

    def __len__(self):
        return len(self.names)


class Weak(torch.Tensor):
    """A tensor that is hashed by identity, as sets of weak references need it."""

    __hash__ = object.__hash__


@pytest.mark.parametrize(("room", "most"), [(0, 3), (2**20, 4)])
def test_models_are_held_while_they_are_needed_and_no_longer(monkeypatch, room, most):
    monkeypatch.setattr(cross_task, "HELD", room)
    encoder, data = case("mlp")
    models = MadeWhenAsked(encoder.params, "abcd")
    pairs = itertools.combinations("abcd", 2)
    merges = [Merge(i + j, {i: 0.5, j: 0.5}, tuple(data)) for i, j in pairs]
    gc.disable()
    try:
        df = measure(encoder, models, merges, data)
        assert models.most <= most  # two that are merged and the one before, or all small ones
        assert not models.alive
        known = weakref.ref(models)
        del models
        assert known() is None  # no cycle keeps it
    finally:
        gc.enable()
    whole = {name: near(encoder.params, seed) for seed, name in enumerate("abcd")}
    pd.testing.assert_frame_equal(df, measure(encoder, whole, merges, data))


SHIPPED = ["mini_xs", "mini_sup_few", "mini_convnext", "mini_t5"]
CASES = ["mlp", "resnet", "batch first", "sequence first", *SHIPPED]


@pytest.mark.parametrize("kind", CASES)
def test_the_metrics_are_those_of_stored_features(kind):
    encoder, data = case(kind)
    thetas = {name: near(encoder.params, seed) for seed, name in enumerate("abc")}
    weights = {"a": 0.25, "b": 0.6, "c": 0.15}
    merges = [Merge("all", weights, tuple(data)), Merge("two", {"a": 0.5, "b": 0.5}, (min(data),))]
    df = measure(encoder, thetas, merges, data, batch_size=4)
    for merge in merges:
        x = encoder.preprocess(torch.cat([data[name] for name in merge.on]))
        single = {name: outputs(encoder, thetas[name], x) for name in merge.weights}
        for block, u in enumerate(outputs(encoder, merged(thetas, merge.weights), x)):
            f = {name: layers[block] for name, layers in single.items()}
            v = sum(w * f[name] for name, w in merge.weights.items())
            pairs = list(itertools.combinations(f.values(), 2))
            expected = {
                "distance": 1 - cosine(u, v),
                "coef": u.norm(dim=1) * cosine(u, v) / v.norm(dim=1),
                "base": sum(1 - cosine(one, two) for one, two in pairs) / len(pairs),
                "base_merged": sum(1 - cosine(u, one) for one in f.values()) / len(f),
                "endpoint": sum(1 - cosine(v, one) for one in f.values()) / len(f),
                "first": 1 - cosine(u, f["a"]),
            }
            last = block == len(encoder.blocks)
            at = df["block"].isna() if last else (df["block"] == block).fillna(False)
            found = df[at & (df["merge"] == merge.name)].set_index("metric")
            assert set(found["n"]) == {len(x)}
            for metric, values in expected.items():
                assert found.loc[metric, "value"] == pytest.approx(float(values.mean()), abs=1e-6)


def test_affine_models_are_linear_in_any_order_of_axes():
    torch.manual_seed(0)
    x = torch.randn(8, 3, 8, 8)  # as many images as tokens
    tables = []
    for encoder in sequence_first():
        thetas = {name: near(encoder.params, seed) for seed, name in enumerate("ab")}
        merge = Merge("m", {"a": 0.5, "b": 0.5}, ("x",))
        tables.append(measure(encoder, thetas, [merge], {"x": x}))
    np.testing.assert_allclose(*(table["value"] for table in tables), atol=1e-6)
    torch.manual_seed(0)
    encoder = plain(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), ("1",))
    thetas = {name: near(encoder.params, seed, 2.0) for seed, name in enumerate("ab")}
    merge = Merge("m", {"a": 0.3, "b": 0.7}, ("x",))
    df = measure(encoder, thetas, [merge], {"x": torch.randn(5, 3, 8, 8)}).set_index("metric")
    assert df.loc["distance", "value"].abs().max() < 1e-6
    np.testing.assert_allclose(df.loc["coef", "value"], 1, atol=1e-6)
    assert df.loc["base", "value"].min() > 0.1


def test_single_models_run_once_for_all_merges(monkeypatch):
    torch.manual_seed(0)
    encoder, calls = mlp(), []
    thetas = {name: near(encoder.params, seed) for seed, name in enumerate("abc")}
    pairs = list(itertools.combinations(thetas, 2))
    merges = [
        Merge(f"{i}{j}{alpha}", {i: alpha, j: 1 - alpha}, ("x",))
        for i, j in pairs
        for alpha in (0.25, 0.5, 0.75)
    ]
    usual = cross_task.Layers.parts
    monkeypatch.setattr(cross_task.Layers, "parts", lambda *args: calls.append(1) or usual(*args))
    measure(encoder, thetas, merges, {"x": torch.randn(5, 3, 8, 8)}, batch_size=5)
    assert len(calls) == 3 + len(merges)


def test_few_images_are_held_where_features_are_large(monkeypatch):
    encoder, data = case("mlp")
    thetas = {name: near(encoder.params, seed) for seed, name in enumerate("ab")}
    merges = [Merge("two", {"a": 0.5, "b": 0.5}, ("one", "two"))]
    whole = measure(encoder, thetas, merges, data)
    sizes, run = [], cross_task.Layers.parts
    monkeypatch.setattr(
        cross_task.Layers, "parts", lambda s, p, x: sizes.append(len(x)) or run(s, p, x)
    )
    monkeypatch.setattr(
        cross_task, "MEMORY", 4 * 45 * 3 * 2
    )  # features of two images in three models
    found = measure(encoder, thetas, merges, data)
    assert max(sizes) == 2
    np.testing.assert_allclose(found["value"], whole["value"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("after", [0, 3])
def test_nothing_is_counted_twice_where_memory_runs_out(monkeypatch, after):
    encoder, data = case("mlp")
    thetas = {name: near(encoder.params, seed) for seed, name in enumerate("ab")}
    merges = [Merge(on, {"a": 0.5, "b": 0.5}, (on,)) for on in data]
    whole = measure(encoder, thetas, merges, data, batch_size=4)
    sizes, run = [], cross_task.Layers.parts

    def short(layers, params, x):
        sizes.append(len(x))
        if len(x) > 3 and len(sizes) > after:  # in the middle of a batch
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return run(layers, params, x)

    monkeypatch.setattr(cross_task.Layers, "parts", short)
    found = measure(encoder, thetas, merges, data, batch_size=4)
    assert 2 in sizes and 3 not in sizes and sizes.count(4) == after + 1
    assert (found["n"] == 6).all()
    np.testing.assert_allclose(found["value"], whole["value"], rtol=1e-5, atol=1e-7)


def test_quartiles_are_close_and_memory_does_not_grow():
    rng = np.random.default_rng(0)
    spread = Spread(1)
    values = np.stack([rng.lognormal(-6, 2, 20_000), rng.normal(1, 0.05, 20_000)])
    values = np.stack([values[0].clip(max=2), values[1], *[values[0]] * 4])
    size = sum(counts.nbytes for counts in spread._counts)
    for batch in np.split(values, 100, axis=1):
        spread.add(torch.from_numpy(batch[:, None]))
    assert sum(counts.nbytes for counts in spread._counts) == size
    rows = {row["metric"]: row for row in spread.rows(0)}
    for name, q in (("low", 0.25), ("middle", 0.5), ("high", 0.75)):
        assert rows["distance"][name] == pytest.approx(np.quantile(values[0], q), rel=0.03)
        assert rows["coef"][name] == pytest.approx(np.quantile(values[1], q), abs=0.002)
    assert rows["coef"]["value"] == pytest.approx(values[1].mean())
    shares = []
    for true in rng.lognormal(-3, 1, 60).clip(max=1):  # quartiles lie in the middle of their bins
        one = Spread(1)
        one.add(torch.full((6, 1, 1), true))
        shares.append(next(iter(one.rows(0)))["middle"] / true)
    assert np.mean(shares) == pytest.approx(1, abs=0.004)
    assert rows["distance"]["n"] == 20_000


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 11])
def test_quartiles_of_few_values_are_those_values(n):
    rng = np.random.default_rng(n)
    values = rng.permuted(np.linspace(0.1, 1.9, n))
    spread = Spread(2)
    first, second = (torch.from_numpy(np.tile(x, (6, 1))) for x in (values, values / 10))
    for batch in torch.stack([first, second], 1).split(2, dim=2):
        spread.add(batch)
    for layer, scale in enumerate((1, 0.1)):
        for row in spread.rows(layer):
            assert row["value"] == pytest.approx(scale * values.mean())
            for name, q in (("low", 0.25), ("middle", 0.5), ("high", 0.75)):
                expected = scale * np.quantile(values, q, method="inverted_cdf")
                assert row[name] == pytest.approx(expected, rel=0.01, abs=6e-4), (
                    row["metric"],
                    name,
                )


def test_quartiles_beyond_the_histogram_are_its_ends():
    spread = Spread(1)
    spread.add(torch.tensor([[[0.0, 0.0, 0.5, 9.0, 9.0]]] * 6))
    rows = {row["metric"]: row for row in spread.rows(0)}
    assert (rows["distance"]["low"], rows["distance"]["high"]) == pytest.approx((1e-9, 2))
    assert rows["coef"]["high"] == 3 and rows["coef"]["low"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(
    ("weights", "on", "told"),
    [
        ({"a": 0.5, "b": 0.4}, ("x",), "sum to 1"),
        ({"a": 1.0}, ("x",), "at least two"),
        ({"a": 0.5, "z": 0.5}, ("x",), "no model 'z'"),
        ({"a": 0.5, "b": 0.5}, ("y",), "images of 'y'"),
    ],
)
def test_what_cannot_be_measured_is_said(weights, on, told):
    encoder = mlp()
    thetas = {name: encoder.params for name in "ab"}
    with pytest.raises(TasklabError, match=told):
        measure(encoder, thetas, [Merge("m", weights, on)], {"x": torch.zeros(2, 3, 8, 8)})
