"""Threads, settings and environments of the caller: the numbers of a quiet process, bit for bit."""

import contextlib
import warnings

import numpy as np
import pytest
import torch

from tasklab import Lab, TaskVector, analyses, experiments, isolation, models
from tasklab.models import heads, loading
from tasklab.tasks import drawn

MODEL = "mini_s"


@contextlib.contextmanager
def put(read, write, value):
    """Set a setting as a caller would, check that it is still so at the end, and restore it."""
    before = read()
    write(value)
    told = read()
    try:
        yield
        assert read() == told
    finally:
        write(before)


def backend(home, name, value):
    return lambda: put(lambda: getattr(home, name), lambda x: setattr(home, name, x), value)


@contextlib.contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
        assert torch.empty(1).is_meta
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def flushing():
    tiny = float("1e-310")
    torch.set_flush_denormal(True)
    try:
        yield
        assert tiny * 1.0 == 0
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def strict_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextlib.contextmanager
def hooks():
    with torch.autograd.graph.save_on_cpu():
        yield


cuda, mkldnn = torch.backends.cuda, torch.backends.mkldnn
STATES = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast in float16": lambda: torch.autocast("cpu", torch.float16),
    "default dtype": lambda: put(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "half by default": lambda: put(torch.get_default_dtype, torch.set_default_dtype, torch.float16),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "deterministic": lambda: put(
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 2
    ),
    "warns of random": lambda: put(
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 1
    ),
    "medium products": lambda: put(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"
    ),
    "bfloat16 everywhere": backend(torch.backends, "fp32_precision", "bf16"),
    "bfloat16 convolutions": backend(mkldnn.conv, "fp32_precision", "bf16"),
    "no oneDNN": backend(mkldnn, "enabled", False),
    "no flash attention": lambda: put(cuda.flash_sdp_enabled, cuda.enable_flash_sdp, False),
    "math attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "default device": default_device,
    "a device": lambda: torch.device("meta"),
    "anomalies": torch.autograd.detect_anomaly,
    "no denormal numbers": flushing,
    "numpy": lambda: np.errstate(all="raise"),
    "warnings": strict_warnings,
    "saved tensors": hooks,
    "random states": lambda: put(torch.get_rng_state().tolist, torch.manual_seed, 5),
}


@pytest.fixture(scope="module")
def labs(tmp_path_factory):
    """Return a function that opens labs, each with a store of its own."""
    loaded = loading.shared(MODEL)  # once for all

    def opened():
        root = str(tmp_path_factory.mktemp("store"))
        tasks = ["Signs", "Textures"]
        assert loading.shared(MODEL) is loaded
        return Lab(MODEL, tasks=tasks, steps=3, progress=False, store_root=root)

    return opened


def numbers(what):
    """Return what a call returned as something that compares bit for bit."""
    if isinstance(what, torch.Tensor):
        return what.dtype, what.tolist()
    if isinstance(what, np.ndarray):
        return what.tolist()
    if hasattr(what, "to_csv"):  # a table, which may have holes
        return what.to_csv()
    if hasattr(what, "keys"):
        return {name: numbers(what[name]) for name in what.keys()}
    if isinstance(what, list | tuple):
        return [numbers(one) for one in what]
    return what


def edit(model=MODEL):
    """Return a vector that does not depend on the caller's settings."""
    generator, theta = torch.Generator().manual_seed(0), models.load(model).encoder.params
    return TaskVector(
        {
            n: 0.01 * torch.randn(x.shape, generator=generator, dtype=torch.float32, device="cpu")
            for n, x in theta.items()
        }
    )


VECTOR, IMAGES = edit(), torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))
DOORS = {
    "vector": lambda lab: lab.vector("Signs"),
    "linearized": lambda lab: lab.vector("Signs", "linearized"),
    "evaluate": lambda lab: lab.evaluate(VECTOR, "Signs").after,
    "evaluate linearized": lambda lab: lab.evaluate(VECTOR, "Signs", linear=True).after,
    "merge": lambda lab: lab.merge("ties", [VECTOR, -0.5 * VECTOR]),
    "encoder": lambda lab: lab.clip.encoder(lab.clip.encoder.params, IMAGES),
    "load": lambda lab: models.load(MODEL).encoder.params["proj"],
    "text": lambda lab: lab.clip.text(["a photo of a stop sign"]),
    "head": lambda lab: heads.zero_shot(lab.clip, lab.suite["Signs"]).weight,
    "features": lambda lab: lab.evaluator.features(lab.clip.encoder.params, "Signs", "val"),
    "images": lambda lab: drawn.images_of(lab.suite).load("Signs", "val", n=20).x,
    "error map": lambda lab: numbers(
        analyses.disentanglement.error_map(
            lab.evaluator, {"Signs": VECTOR, "Textures": -0.5 * VECTOR},
            linear=False, alphas=[0.0, 1.0], images=20,
        ).representation
    ),
    "experiment": lambda lab: experiments.single(lab, "nonlinear"),
}  # fmt: skip


TRAINING = {"vector", "linearized", "evaluate linearized", "experiment", "error map"}


def answers(lab, names):
    return {name: numbers(DOORS[name](lab)) for name in names}


@pytest.fixture(scope="module")
def quiet(labs):
    return answers(labs(), DOORS)


@pytest.mark.parametrize("state", STATES)
def test_numbers_do_not_depend_on_the_callers_settings(state, labs, quiet):
    names = DOORS.keys() - TRAINING
    with STATES[state]():
        found = {name: DOORS[name](labs()) for name in names}
    assert {name: numbers(one) for name, one in found.items()} == {n: quiet[n] for n in names}


def test_training_and_the_store_do_not_depend_on_all_of_them_at_once(labs, quiet):
    lab = labs()
    with contextlib.ExitStack() as states:
        for state in STATES.values():
            states.enter_context(state())
        found = {name: DOORS[name](lab) for name in TRAINING}
    assert {name: numbers(one) for name, one in found.items()} == {n: quiet[n] for n in TRAINING}
    assert answers(lab, TRAINING) == {name: quiet[name] for name in TRAINING}  # from its store


@pytest.mark.parametrize("theirs", ["tf32", "ieee", "none"])
def test_float32_is_float32_on_a_card_and_the_callers_setting_returns(theirs):
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    usual = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
    assert usual == ("tf32", "tf32")  # PyTorch's default, which is told nowhere
    try:
        if theirs != "tf32":
            cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = theirs
        inside = isolation.isolated(lambda: (cudnn.conv.fp32_precision, matmul.fp32_precision))()
        assert inside[0] in ("none", "ieee") and inside[1] in ("none", "ieee")
        assert cudnn.conv.fp32_precision == theirs
    finally:
        cudnn.allow_tf32 = True
