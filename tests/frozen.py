"""Frozen numbers of every experiment: `make same` keeps stored results only while they come out.

Each experiment measures random vectors on a few images of a small model: no fine-tuning, whose
results have keys of their own. `frozen.json` has the mean of every metric by method and merge.
"""

from __future__ import annotations

import inspect
import json
import math
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tasklab.errors import TasklabError
from tasklab.evidence.experiments import Lab
from tasklab.evidence.experiments.registry import REGISTRY, discover
from tasklab.evidence.records.table import provenance
from tasklab.evidence.study import checking
from tasklab.tuning import finetune, methods, runs

FILE = Path(__file__).with_suffix(".json")
TASKS = ("LandCover", "Signs", "Textures")
LENGTH = 0.05  # of a random change, in standard deviations of each tensor
BY = ("metric", "method", "merge")
ALIKE, ELSEWHERE = 1e-4, 2e-2  # relative difference: on a like processor and torch, or on others

_ONE: Mapping[str, Any] = {"methods": ["nonlinear"]}
_LINEAR: Mapping[str, Any] = {"methods": ["linearized"]}
_FEW: Mapping[str, Any] = {**_ONE, "merges": ("arithmetic", "ties", "regmean"), "n_tasks": (3,)}
_RATES: Mapping[str, Any] = {"rates": (4e-4, 8e-4)}
#: Options of the experiments that need some, or take long without.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "exact_alpha": _LINEAR,
    "exact_negation": _LINEAR,
    "merging": {**_ONE, "n_tasks": (3,)},
    "two_fold": {**_ONE, "merges": ("arithmetic", "ties"), "n_tasks": (3,)},
    "rate_search": _RATES,
    "budgets": {**_ONE, "rates": (4e-4,), "lengths": (60, 120)},
    "merging_rates": {**_FEW, **_RATES, "merges": ("arithmetic", "ties")},
    "merge_loss": _FEW,
    "merged": _FEW,
    "merging_cost": _FEW,
    "recommended": {**_ONE, "merges": ("arithmetic", "ties"), "n_tasks": (3,)},
    "crossing": {**_ONE, "merges": ("ties", "regmean")},
    "penalty_strengths": {"methods": ["off_diagonal"], "factors": (0.1, 1.0)},
    "theorem": {"rates": (0.1, 1.0)},
    "scratch_linearity": {"network": "mlp", "n_tasks": 2},
    "segments": {"network": "mlp", "n_tasks": 2, "points": 3},
    "emergence": {"what": "other samples", "values": (0.0, 1.0), "network": "mlp"},
    "step_cost": {"variants": ("standard",), "rounds": 1},
    "closed_addition": _ONE,
    "closed_cost": _ONE,
    "joint": _ONE,
    "subsets": {**_ONE, "most": 2},
}


def measure(names: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the means of experiments by name, each by metric, method and merge."""
    discover()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(finetune, "train", _random),
        ):
            return {name: _means(name, Path(folder)) for name in names}
    finally:
        torch.set_num_threads(threads)


def differences(names: Iterable[str]) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    """Return by experiment a number that differs from the frozen one, and all numbers of now.

    A number that is new or gone (a merge that was added or removed) is no difference.
    """
    frozen, now, apart = _read(), measure(names), {}
    here = all(frozen[name] == value for name, value in _about().items())
    for name, numbers in now.items():
        known = frozen["numbers"].get(name, {})
        for key in sorted(numbers.keys() & known.keys()):
            least = ALIKE if here else ELSEWHERE
            if not math.isclose(numbers[key], known[key], rel_tol=least, abs_tol=1e-9):
                apart[name] = f"{key} is {numbers[key]:g}, frozen is {known[key]:g}"
                break
    return apart, now


def freeze(numbers: Mapping[str, Mapping[str, float]], anew: Iterable[str] = ()) -> None:
    """Write numbers of experiments; others stay as they are, but for experiments that are gone.

    A number that is frozen already stays, whatever its last digits are here, but for those of the
    experiments `anew`. Where some stay, so does what the file says of the processor.
    """
    discover()
    there = _read() if FILE.exists() else {}
    before = there.get("numbers", {})
    stay = before.keys() - {*anew}
    about = {name: there[name] if stay else value for name, value in _about().items()}
    every = dict(before)
    for name, now in numbers.items():
        known = {} if name in anew else before.get(name, {})
        every[name] = {key: known.get(key, value) for key, value in now.items()}
    kept = {name: every[name] for name in sorted(REGISTRY) if name in every}
    FILE.write_text(json.dumps({**about, "numbers": kept}, indent=1) + "\n", "utf-8")


def _about() -> dict[str, Any]:
    instructions = torch.backends.cpu.get_cpu_capability()  # other sums of one make: AVX2, AVX512
    make = provenance()["machine"]["make"]
    return {"make": make, "instructions": instructions, "torch": torch.__version__}


def of(homes: Iterable[str]) -> list[str]:
    """Return the names of the experiments that some modules declare."""
    discover()
    wanted = {*homes}
    return [name for name, entry in REGISTRY.items() if entry.call.__module__ in wanted]


def _read() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text("utf-8")))


def _means(name: str, root: Path) -> dict[str, float]:
    call = REGISTRY[name].call
    closed = call.__module__.endswith((".closed_vocabulary", ".subsets"))
    model = "mini_clip_less" if closed else "mini_xs"
    lab = Lab(model=model, tasks=TASKS, steps=1, seeds=(0,), store_root=root, progress=False)
    given = dict(OPTIONS.get(name, {}))
    if "methods" in inspect.signature(call).parameters:
        given.setdefault("methods", ["nonlinear", "linearized"])
    try:
        table = call(lab, **given)
    except TasklabError as error:
        raise TasklabError(f"experiment {name!r} cannot be frozen: {error}") from error
    by = [column for column in BY if column in table]
    table = table[~table["metric"].map(checking.is_cost)]
    means = table.groupby(by, dropna=False)["value"].mean()
    told = {" ".join(str(k) for k in key if k == k): v for key, v in means.items()}
    return {key: float(f"{value:.8g}") for key, value in sorted(told.items())}


def _random(
    config: Any, clip: Any, tasks: Any, head: Any, *_: Any
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `finetune.train` returns, of a random change by the configuration."""
    encoder = clip.encoder
    fields = (config.task, config.method, config.seed, config.lr, config.steps, config.penalty)
    draw = torch.Generator().manual_seed(zlib.crc32(repr(fields).encode()))
    delta = {
        name: LENGTH * encoder.params[name].std(correction=0)
        * torch.randn(encoder.params[name].shape, generator=draw)
        for name in methods.trainable(encoder.params, config.method, encoder.name)
    }  # fmt: skip
    own = runs.of_head(head) if config.head in runs.TRAINED else {}
    record = {"losses": [1.0] * config.steps, "seconds": 1.0, "lr": config.lr}
    return delta | own, record | {"images": 8, "parameters": sum(x.numel() for x in delta.values())}
