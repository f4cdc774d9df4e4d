"""Whatever a user types, on a command line or in Python: one short sentence, at once."""

import os
import re

import pytest

from tasklab import Lab, Parameters, suite
from tasklab.cli.cluster.grid import Grid
from tasklab.errors import shown
from tasklab.evidence import experiments
from tests.helpers import mistaken, refuses

LONG = "x" * 5000
DIGITS = "9" * 5000
PATHS = ("~nosuchuser/a", "a\0b", LONG, " ", "\ud800")
NUMBERS = (DIGITS, "nan", "1.5", "-1", "x", "", "1e400", "0x10")
SEEDS = (*NUMBERS, "0", "1000000000", str(2**63), f"0,{2**63}", "1,1", "0,,1", ",", "[0, x]")
TAKE_A_PATH = (
    *(["report", option] for option in ("--store-root", "--data-root")),
    *(["doctor", option] for option in ("--store-root", "--data-root")),
    ["import", "--model", "mini", "--task", "Cars"],
    ["import", "f", "--model", "mini", "--task", "Cars", "--base"],
    ["export", "--out"],
    ["merge", "--model", "mini"],
    *(["merge", "f", option] for option in ("--out", "--base")),
    ["evaluate", "mini", "--add"],
    ["record", "tangent", "--out"],
    ["fetch", "mini", "--weights"],
    ["decode", "paper", "--data-root"],
)
RUNS = (["report"], ["record", "tangent"], ["export"], ["train", "--dry-run"])


def lines():
    found = [[*run, f"--seeds={seeds}"] for run, seeds in zip(RUNS * 4, SEEDS, strict=True)]
    found += [[*run, f"--steps={n}"] for run, n in zip(RUNS * 2, NUMBERS, strict=True)]
    rates = ("nan", "-1", "inf", DIGITS, LONG, "")
    found += [[*run, f"--lr={n}"] for run, n in zip(RUNS * 2, (*rates, "1e999", "a"), strict=True)]
    found += [
        [*words, path]
        for i, words in enumerate(TAKE_A_PATH)  # each two: `test_errors` has all of them
        for path in (PATHS[i % 5], PATHS[(i + 2) % 5])
    ]
    found += [["evaluate", "mini", "--subtract", f"f:{n}"] for n in NUMBERS[:3]]
    found += [["merge", "f", f"--{option}={LONG}"] for option in ("method", "option", "alpha")]
    found += [["merge", name] for name in ("@", "@@@@", "Signs@nonlinear@x")]
    found += [["store", what, "--store-root", "~nosuchuser"] for what in ("verify", "gc", "size")]
    names = (LONG, "a\0b", "", "\ud800", "MINI?", "--")
    options = [f"--model={name}" for name in names]
    options += [f"--{option}={LONG}" for option in ("suite", "head", "init")]
    options += [f"--device={name}" for name in (f"cuda:{DIGITS}", "gpu")]
    found += [[*RUNS[i % 3], option] for i, option in enumerate(options)]
    found += [["record", name] for name in names] + [["fetch", name] for name in names[:5]]
    found += [["record", "tangent", "--part", LONG], ["record", "tangent", f"--jobs={DIGITS}"]]
    found += [["export", "--task", LONG], ["export", "--method", LONG], ["export", "--chapter", ""]]
    found += [["train", f"--cpus={n}"] for n in ("0", DIGITS)] + [["train", "--retries=-1"]]
    found += [["train", "--ray", " ", "--dry-run"], ["decode", LONG], ["decode", "mini"]]
    found += [["decode", "paper", "--jobs=0"], ["list", LONG], [LONG], ["\0"], [f"--{LONG}"]]
    found += [["report", LONG], ["report", f"--{LONG}"], ["store", LONG], ["--completion", LONG]]
    found += [["store", "verify", "--dry-run"], ["store", "gc", f"--days={DIGITS}"]]
    return found


def _id(value):
    text = re.sub(r" at 0x\w*", "", shown(value, 120))[:60]  # the same in every process
    return text.encode("ascii", "replace").decode()


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # nothing odd is written where somebody works
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("words", lines(), ids=lambda words: _id(" ".join(words)))
def test_an_odd_command_line_is_one_short_line(words, capsys):
    assert len(mistaken(words, capsys)) < 700
    assert not os.listdir()


@pytest.mark.parametrize(
    "given",
    [
        {"model": None}, {"model": 3}, {"model": ["mini"]}, {"model": b"mini"}, {"model": LONG},
        {"model": f"timm/{LONG}"}, {"suite": 1}, {"suite": ["mini"]}, {"init": None},
        {"head": {}}, {"preset": 1.0}, {"precision": "half"}, {"device": 0}, {"device": "cuda:"},
        {"device": f"cuda:{DIGITS}"}, {"device": ["cpu"]}, {"seeds": 10**9}, {"seeds": 2**63},
        {"seeds": [2**63]}, {"seeds": [-1]}, {"seeds": []}, {"seeds": [0, 0]}, {"seeds": 1.5},
        {"seeds": True}, {"seeds": int("9" * 4000)}, {"seeds": iter(range(10**9))},
        {"seeds": {"a": 1}}, {"seeds": b"12"}, {"steps": 0}, {"steps": 2**64}, {"steps": [1]},
        {"steps": True}, {"steps": DIGITS}, {"steps": float("nan")}, {"lr": -1}, {"lr": "x"},
        {"lr": float("inf")}, {"lr": 10**5000}, {"lr": [1e-3]}, {"data_root": 3},
        {"data_root": b"a"}, {"store_root": ["a"]}, {"store_root": "a\0b"}, {"store_root": LONG},
        {"data_root": "~nosuchuser"}, {"stpes": 3}, {LONG: 3}, {"tasks": 5}, {"tasks": []},
        {"tasks": [3]}, {"tasks": LONG}, {"tasks": b"Signs"}, {"own": 5}, {"own": ["Signs"]},
        {"own": "Signs"}, {"needs": 5}, {"needs": [None]}, {"chapter": 5}, {"chapter": LONG},
        {"chapter": ["ctl"]},
    ],
    ids=lambda given: _id(next(iter(given.items()))),
)  # fmt: skip
def test_an_odd_argument_is_one_short_sentence(given):
    name = next(iter(given))
    text = refuses("", Lab, **{"model": "mini_xs", "device": "cpu", "progress": False, **given})
    assert "\n" not in text and len(text) < 700
    assert name.rstrip("s")[:20] in text or name == "data_root"


@pytest.mark.parametrize(
    "call",
    [
        lambda lab: experiments.single(lab, "nonlinaer"),
        lambda lab: experiments.single(lab, [3]),
        lambda lab: experiments.single(lab, 3),
        lambda lab: experiments.single(lab, b"nonlinear"),
        lambda lab: experiments.train(lab, LONG),
        lambda lab: experiments.schemes(lab, "mea"),
        lambda lab: lab.relative("smal"),
        lambda lab: lab.vectors("nonlinear", 0, "Texturse"),
        lambda lab: lab.vectors("nonlinear", 0, 5),
        lambda lab: lab.vectors("nonlinaer", 0),
        lambda lab: lab.vectors("nonlinear", 2**63),
        lambda lab: lab.sibling(modle="mini"),
        lambda lab: suite("minni"),
        lambda lab: suite(3),
        lambda lab: Grid(methods=[]),
        lambda lab: Grid(models=3),
        lambda lab: Grid(store_root="~nosuchuser").settings("mini"),
        lambda lab: Parameters.of({}),
    ],
)
def test_an_odd_call_is_one_short_sentence(call, tmp_path):
    lab = Lab("mini_xs", device="cpu", progress=False, store_root=tmp_path, tasks="Textures")
    refused = refuses("", call, lab)
    assert "\n" not in refused and len(refused) < 700
