"""What changed between networks, against closed forms."""

import json
import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tasklab.analyses import inspection, weights
from tests.helpers import refuses


def noise(*shape, seed=0, scale=1.0):
    draw = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=draw)


@pytest.fixture
def base():
    return {
        "embed.weight": noise(9, 4, seed=1),
        "fc.weight": noise(6, 4, seed=2),
        "fc.bias": noise(6, seed=3),
        "ln.weight": noise(6, seed=4),
        "bn.running_mean": noise(6, seed=5),
        "bn.num_batches_tracked": torch.tensor(3),
    }


def moved(base, **by):
    return {name: x + by.get(name.replace(".", "_"), 0) for name, x in base.items()}


def one(network, base):
    return inspection.inspect({"a": network}, {"base": base}).changes[0]


@pytest.mark.parametrize(("rows", "columns"), [(7, 5), (5, 7), (500, 400)])
def test_stable_rank_of_known_spectra(rows, columns):
    U = torch.linalg.qr(noise(rows, 3).double()).Q
    V = torch.linalg.qr(noise(columns, 3, seed=1).double()).Q
    for values in ((2.0,), (2.0, 1.0), (3.0, 3.0, 3.0)):
        s = torch.tensor(values, dtype=torch.float64)
        W = U[:, : len(s)] * s @ V[:, : len(s)].T
        expected = float(s.square().sum() / s.max() ** 2)
        assert weights.stable_rank(W) == pytest.approx(expected, rel=1e-6)
        assert weights.stable_rank(1e-30 * W) == pytest.approx(expected, rel=1e-6)
    assert weights.stable_rank(torch.zeros(rows, columns)) == 0


def test_stable_rank_of_large_noise_is_right_within_a_few_per_cent():
    W = noise(600, 900)
    s = torch.linalg.svdvals(W)
    exact = float(s.square().sum() / s[0] ** 2)
    assert exact <= weights.stable_rank(W) * (1 + 1e-6) and weights.stable_rank(W) < 1.1 * exact


def test_steps_are_those_of_the_type():
    for kind in (torch.bfloat16, torch.float16):
        x = noise(50).to(kind)
        above = torch.nextafter(x, torch.full_like(x, math.inf)).float() - x.float()
        positive = x > 0
        assert torch.equal(weights.steps(x.float(), kind)[positive], above[positive])


def test_norms_and_moved_tensors_by_kind(base):
    left, right = noise(6, 1, seed=7), noise(1, 4, seed=8)
    bias = torch.zeros(6)
    bias[2] = 2.0
    change = one(moved(base, fc_weight=left @ right, fc_bias=bias), base)
    matrix = float((left @ right).norm())
    assert change.norm == pytest.approx(math.hypot(matrix, 2.0))
    names = ("embed.weight", "fc.weight", "fc.bias", "ln.weight")
    whole = math.sqrt(sum(float(base[name].square().sum()) for name in names))
    assert change.relative == pytest.approx(change.norm / whole)
    counts = {kind: (one["tensors"], one["moved"]) for kind, one in change.kinds.items()}
    assert counts == {
        "table": (1, 0), "matrix": (1, 1), "bias": (1, 1), "norm": (1, 0), "state": (2, 0),
    }  # fmt: skip
    assert change.kinds["matrix"]["norm"] == pytest.approx(matrix)
    assert (change.numbers, change.moved) == (9 * 4 + 6 * 4 + 6 + 6, 6 * 4 + 1)
    assert change.ranks == {"fc.weight": pytest.approx(1.0, rel=1e-4)}
    assert change.types == {"float32": 5, "int64": 1} and change.rounding == 0


def test_names_shapes_state_and_numbers_that_are_not_finite(base):
    network = moved(base, bn_num_batches_tracked=1, bn_running_mean=0.5) | {"new": noise(2)}
    network["ln.weight"] = noise(7)
    network["fc.bias"] = torch.full((6,), math.nan)
    del network["embed.weight"]
    change = one(network, base)
    assert change.state == ("bn.running_mean", "bn.num_batches_tracked")
    assert change.missing == ("embed.weight",) and change.added == ("new",)
    assert change.reshaped == ("ln.weight",) and change.not_finite == ("fc.bias",)
    assert change.norm == 0


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_rounding_is_found_and_its_error_estimated(stored):
    base = {"w": noise(300, 40), "b": noise(200, seed=1)}
    tuned = base["w"] + noise(300, 40, seed=2, scale=0.01)
    rounded = {name: x.bfloat16().to(stored) for name, x in (base | {"w": tuned}).items()}
    change = one(rounded, base)
    assert change.grids["bfloat16"] == 1 and change.only_rounded == ("b",)
    error = float((rounded["w"].float() - tuned).norm()) / change.norm
    assert change.rounding == pytest.approx(error, rel=0.05)
    assert change.kinds["bias" if "bias" in change.kinds else "other"]["moved"] == 0
    exact = one({"w": tuned, "b": base["b"]}, base)
    assert exact.grids["bfloat16"] < 0.1 and exact.rounding == 0 and not exact.only_rounded


def test_rounding_to_eight_bits_is_that_of_the_type():
    base = {"w": noise(300, 40), "other": noise(200, 2, seed=1)}
    tuned = base["w"] + noise(300, 40, seed=2, scale=0.3)
    rounded = {n: x.to(torch.float8_e4m3fn) for n, x in (base | {"w": tuned}).items()}
    change = one(rounded, base)
    error = float((rounded["w"].float() - tuned).norm()) / change.norm
    assert change.rounding == pytest.approx(error, rel=0.1)
    assert change.only_rounded == ("other",) and change.types == {"float8_e4m3fn": 2}


def test_whole_numbers_in_one_of_the_two_are_state(base):
    flags = base | {"mask": torch.tensor([True, False])}
    change = one(base | {"mask": torch.tensor([1.0, 1.0])}, flags)
    assert change.state == ("mask",) and change.kinds["state"] == {
        "tensors": 3, "moved": 1, "norm": 0,
    }  # fmt: skip


def test_angles_of_changes_and_none_without_a_change(base):
    x, y = torch.zeros(6), torch.zeros(6)
    x[0], y[0], y[1] = 1.0, 1.0, 1.0
    networks = {
        "x": moved(base, fc_bias=x), "y": moved(base, fc_bias=3 * y),
        "z": moved(base, ln_weight=x), "same": base,
    }  # fmt: skip
    found = inspection.inspect(networks, {"base": base})
    wanted = [[1, math.sqrt(0.5), 0], [math.sqrt(0.5), 1, 0], [0, 0, 1]]
    for row, expected in zip(found.cosines, wanted, strict=False):
        assert row[:3] == pytest.approx(expected, abs=1e-6)
    assert {*found.cosines[3]} == {None}


def test_each_network_is_compared_with_its_nearest_base(base):
    other = {name: x + 1 for name, x in base.items()}
    fewer = {name: base[name] for name in ("fc.weight", "ln.weight")}
    networks = {"a": moved(base, fc_bias=0.1), "b": moved(other, fc_bias=0.1)}
    bases = {"fewer": fewer, "other": other, "base": base}
    found = inspection.inspect(networks, bases)
    assert [change.base for change in found.changes] == ["base", "other"]
    a = found.changes[0]
    assert a.distances["base"] == pytest.approx(a.relative) and "fewer" not in a.distances
    assert a.distances["other"] > a.distances["base"]
    assert found.cosines[0][1] is None and found.cosines[0][0] == 1


def test_two_networks_alone_and_changes(base):
    tau = {"fc.bias": torch.ones(6)}
    tuned = moved(base, fc_bias=1)
    found = inspection.inspect({"first": base, "second": tuned})
    assert [(c.network, c.base) for c in found.changes] == [("second", "first")]
    mixed = inspection.inspect({"tau": tau, "net": tuned}, {"base": base}, vectors=["tau"])
    assert mixed.changes[0].base is None and mixed.changes[0].norm == pytest.approx(math.sqrt(6))
    assert mixed.cosines[0][1] == pytest.approx(1)
    alone = inspection.inspect({"tau": tau}, vectors=["tau"]).changes[0]
    assert alone.relative is None and alone.rounding is None and not alone.missing


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_are_found_in_memory_and_in_files(tmp_path):
    net = Tied()
    state = {name: x.clone() for name, x in net.state_dict().items()}
    save_file(state, tmp_path / "tied.safetensors")
    save_file(state | {"head.weight": state["head.weight"] + 1}, tmp_path / "free.safetensors")
    networks = {"net": net, "file": tmp_path / "tied.safetensors"}
    found = inspection.inspect(networks, {"free": tmp_path / "free.safetensors"})
    assert [change.tied for change in found.changes] == [(("embed.weight", "head.weight"),)] * 2
    assert found.tied == {"free": ()}


def test_an_adapter_is_the_product_of_its_factors(base, tmp_path):
    place = tmp_path / "adapter"
    place.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 6}
    (place / "adapter_config.json").write_text(json.dumps(config))
    A, B = noise(2, 4, seed=11), noise(6, 2, seed=12)
    names = ("lora_A", "lora_B")
    save_file(
        {f"base_model.model.fc.{n}.weight": x for n, x in zip(names, (A, B), strict=True)},
        place / "adapter_model.safetensors",
    )
    other = {"w": noise(3)}
    full = moved(base, fc_weight=3 * B @ A)
    found = inspection.inspect({"low": place, "full": full}, {"other": other, "base": base})
    low, same = found.changes
    assert low.base == "base" and low.norm == pytest.approx(same.norm, rel=1e-5)
    assert low.ranks["fc.weight"] == pytest.approx(same.ranks["fc.weight"], rel=1e-4)
    assert found.cosines[0][1] == pytest.approx(1, abs=1e-5)
    assert low.relative == pytest.approx(same.relative, rel=1e-5)
    assert low.kinds == {
        kind: one | {"norm": pytest.approx(one["norm"], rel=1e-5)}
        for kind, one in same.kinds.items()
    }
    assert low.moved == same.moved == 24 and not low.missing and not low.grids and not low.state
    refuses("give the base", inspection.inspect, {"low": place})
    refuses("no base", inspection.inspect, {"low": place, "full": full})


def test_what_cannot_be_compared_is_refused(base, tmp_path):
    refuses("name a network", inspection.inspect, {})
    refuses("give the base", inspection.inspect, {"a": base})
    refuses("give the base", inspection.inspect, {"a": base, "b": base, "c": base})
    refuses("share no parameter", inspection.inspect, {"a": {"w": noise(2)}}, {"b": base})
    refuses("no file", inspection.inspect, {"a": tmp_path / "none"}, {"b": base})
    refuses("no tensor", inspection.inspect, {"a": {"w": 3}}, {"b": base})
