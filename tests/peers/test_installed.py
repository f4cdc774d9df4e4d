"""Merges against mergekit, fusion_bench and peft as people have them installed: `make peers`."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

import tasklab

HERE = Path(__file__).parent
SHAPES = {"one.weight": (8, 6), "two.weight": (6, 8), "one.bias": (8,)}
WHY = "`make peers` installs it in an environment of its own"


@pytest.fixture(scope="module")
def mergekit():
    return pytest.importorskip("mergekit.merge_methods", reason=WHY)


@pytest.fixture
def networks():
    """Return a base and three networks, whose second matrix changes ten times as much."""
    draw = torch.Generator().manual_seed(0)
    base = {n: torch.randn(shape, generator=draw) for n, shape in SHAPES.items()}

    def moved():
        return {
            n: x + (0.1 if n == "two.weight" else 0.01) * torch.randn(x.shape, generator=draw)
            for n, x in base.items()
        }

    return base, [moved() for _ in range(3)]


def theirs(mergekit, method, base, models, **parameters):
    named = {"base": base, **{f"m{number}": one for number, one in enumerate(models)}}
    asked = {"weight": 1.0, **parameters}
    return mergekit.merge_state_dicts(named, method, base="base", parameters=asked)


def close(found, expected, **tolerances):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        torch.testing.assert_close(found[name], x, **(tolerances or {"atol": 1e-6, "rtol": 1e-5}))


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_a_sum_is_mergekits(mergekit, networks, alpha):
    base, models = networks
    asked = {"normalize": False, "lambda": alpha}
    expected = theirs(mergekit, "task_arithmetic", base, models, **asked)
    close(tasklab.merge(base, models, alpha=alpha), expected)


def test_a_mean_is_mergekits(mergekit, networks):
    _, models = networks
    named = {f"m{number}": one for number, one in enumerate(models)}
    expected = mergekit.merge_state_dicts(named, "linear", parameters={"weight": 1.0})
    close(tasklab.merge(None, models, "average"), expected)


def test_ties_is_mergekits_for_each_tensor_by_itself(mergekit, networks):
    """Mergekit trims every tensor, tasklab, as the authors' code does, all weights of a task."""
    base, models = networks
    expected = theirs(mergekit, "ties", base, models, density=0.25)
    alone = {}
    for name, x in base.items():
        of = [{name: one[name]} for one in models]
        alone |= tasklab.merge({name: x}, of, "ties", keep=0.25, alpha=1.0)
    close(alone, expected)
    whole = tasklab.merge(base, models, "ties", keep=0.25, alpha=1.0)
    apart = sum(float((whole[n] - expected[n]).norm() ** 2) for n in base) ** 0.5
    length = sum(float((whole[n] - base[n]).norm() ** 2) for n in base) ** 0.5
    assert apart > 0.1 * length, "the difference on the page of deviations is gone"


def test_fusion_bench_returns_what_is_frozen(monkeypatch):
    """Tests of merges compare with numbers that its functions returned once."""
    pytest.importorskip("fusion_bench", reason=WHY)
    merging = HERE.parent / "unit" / "analyses" / "merging"
    monkeypatch.syspath_prepend(str(merging))
    monkeypatch.delitem(sys.modules, "conftest", raising=False)
    found = importlib.import_module("freeze_fusion_bench").made()
    sys.modules.pop("conftest", None)
    frozen = json.loads((merging / "fusion_bench.json").read_text())["merged"]
    assert found.keys() == frozen.keys()
    for rule, one in frozen.items():
        for name, numbers in one.items():
            expected = torch.tensor(numbers, dtype=torch.float64)
            now = found[rule][name].detach().double().reshape(-1)
            torch.testing.assert_close(now, expected, rtol=1e-6, atol=1e-8)
