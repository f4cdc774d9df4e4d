"""Threads, settings and environments of the caller: the numbers of a quiet process, bit for bit."""

import concurrent.futures
import contextlib
import dataclasses
import importlib
import inspect
import os
import pkgutil
import random
import re
import threading
import time
import warnings

import numpy as np
import pytest
import torch

from tasklab import Lab, TaskVector, analyses, isolation, models
from tasklab.evidence import experiments
from tasklab.isolation import differentiable, isolated
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


@contextlib.contextmanager
def random_states():
    def states():
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        before = states()
        yield
        assert states() == before


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
    "anomalies": lambda: put(torch.is_anomaly_enabled, torch.set_anomaly_enabled, True),
    "no denormal numbers": flushing,
    "numpy": lambda: np.errstate(all="raise"),
    "warnings": strict_warnings,
    "saved tensors": hooks,
    "random states": random_states,
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
    lab, names = labs(), TRAINING
    with contextlib.ExitStack() as states:
        for state in STATES.values():
            states.enter_context(state())
        found = {name: DOORS[name](lab) for name in names}
    assert {name: numbers(one) for name, one in found.items()} == {n: quiet[n] for n in names}
    assert answers(lab, names) == {name: quiet[name] for name in names}  # from its store


def test_threads_get_the_numbers_of_a_quiet_process(labs, quiet):
    lab, names = labs(), sorted(DOORS.keys() - {"load"})
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: numbers(DOORS[name](lab)), names * 2))
    assert dict(zip(names, found[: len(names)], strict=True)) == {n: quiet[n] for n in names}
    assert found[: len(names)] == found[len(names) :]
    assert answers(lab, names) == {n: quiet[n] for n in names}  # from its store


@isolated
def nested(depth, trace):
    trace.append(("in", threading.get_ident()))
    time.sleep(0.01)
    if depth:
        nested(depth - 1, trace)
    trace.append(("out", threading.get_ident()))


@isolated
def counted():
    for number in range(3):
        yield number, torch.get_default_dtype(), isolation.inside()


@isolated
def failing():
    raise KeyboardInterrupt


def test_calls_wait_for_each_other_and_never_for_themselves():
    trace = []
    threads = [threading.Thread(target=nested, args=(2, trace)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    owners = [owner for _, owner in trace]
    assert len(trace) == 18 and len({*owners}) == 3
    assert all(len({*owners[start : start + 6]}) == 1 for start in (0, 6, 12))
    with pytest.raises(KeyboardInterrupt):
        failing()
    thread = threading.Thread(target=nested, args=(0, trace))
    thread.start()
    thread.join(60)
    assert len(trace) == 20 and not isolation.inside()


def test_steps_of_a_generator_leave_the_process_to_others_between_them():
    trace = []
    with put(torch.get_default_dtype, torch.set_default_dtype, torch.float64):
        for number, dtype, inside in counted():
            assert dtype == torch.float32 and inside and not isolation.inside()
            assert torch.get_default_dtype() == torch.float64
            thread = threading.Thread(target=nested, args=(0, trace))
            thread.start()
            thread.join(60)
            assert len(trace) == 2 * (number + 1)


def test_gradients_are_the_callers_where_they_are_asked_for():
    @differentiable
    def doubled(x):
        return 2 * x, torch.get_default_dtype()

    x = torch.ones(1, requires_grad=True)
    with put(torch.get_default_dtype, torch.set_default_dtype, torch.float64):
        y, dtype = doubled(x)
        with torch.no_grad():
            z, _ = doubled(x)
    assert y.requires_grad and not z.requires_grad and dtype == torch.float32
    seen = isolated(lambda: (isolation.first("a"), isolation.first("a"), isolation.first("b")))
    assert seen() == seen() == (True, False, True) and isolation.first("a") == isolation.first("a")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_of_a_busy_process_computes(monkeypatch):
    begun, end = threading.Event(), threading.Event()
    busy = threading.Thread(target=isolated(lambda: (begun.set(), end.wait(60))))
    busy.start()
    assert begun.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, of threads and forks
        child = os.fork()
    if not child:
        isolated(lambda: os._exit(3))()
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
    end.set()
    busy.join(60)
    assert done and os.waitstatus_to_exitcode(status) == 3


TAKES = re.compile(r"\b(Encoder|Evaluator|Clip|Lab)\b")
PARTS = {  # of a computation, or without any: they only arrange what doors compute
    "tasklab.models": {
        "passes", "from_patches", "written_out", "as_clip", "outline", "with_module",
        "encoder_of", "text_to_text", "sentences",
    },
    "tasklab.tuning": {
        "compiles", "records", "passes", "train", "plans", "given_back", "identity",
        "tangent_change", "measure", "read_run", "gradient", "tangent_gradient", "distance",
    },
    "tasklab.analyses": {"gradients", "features", "loss", "of_model", "error_cells"},
}  # fmt: skip


@pytest.mark.parametrize("room", PARTS)
def test_every_function_of_a_model_is_a_door(room):
    bare = set()
    package = importlib.import_module(room)
    for info in pkgutil.walk_packages(package.__path__, f"{room}."):
        for name, function in vars(importlib.import_module(info.name)).items():
            own = inspect.isfunction(function) and function.__module__ == info.name
            if own and not name.startswith("_") and not hasattr(function, "isolated"):
                hints = map(str, inspect.get_annotations(function).values())
                if any(TAKES.search(hint) for hint in hints):
                    bare.add(name)
    assert bare <= PARTS[room]


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


ALLOWED = {  # TF32 by each of PyTorch's settings, and by several
    "everywhere": [(torch.backends, "fp32_precision", "tf32")],
    "cudnn": [(torch.backends.cudnn, "fp32_precision", "tf32")],
    "cudnn but for convolutions": [
        (torch.backends.cudnn, "fp32_precision", "tf32"),
        (torch.backends.cudnn.conv, "fp32_precision", "none"),
    ],
    "products": [(torch.backends.cuda.matmul, "fp32_precision", "tf32")],
    "products of the processor": [(torch.backends.mkldnn.matmul, "fp32_precision", "tf32")],
    "high": [(None, "high", "")],
    "high, and then exact": [
        (None, "high", ""), (torch.backends.cuda.matmul, "fp32_precision", "ieee")
    ],
    "older flags": [
        (torch.backends.cuda.matmul, "allow_tf32", True), (torch.backends.cudnn, "allow_tf32", True)
    ],
}  # fmt: skip


@pytest.mark.parametrize("given", ALLOWED)
def test_tf32_of_the_caller_is_off_inside_and_returns(given):
    backends, set_oldest = torch.backends, torch.set_float32_matmul_precision
    kinds = [backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul, backends.mkldnn.matmul]
    kinds += [backends.mkldnn.conv, backends.cudnn, backends]

    def seen():
        return [kind.fp32_precision for kind in kinds]

    try:
        for home, name, value in ALLOWED[given]:
            set_oldest(name) if home is None else setattr(home, name, value)
        before = seen()
        assert "tf32" in before
        assert {*isolation.isolated(seen)()} <= {"none", "ieee"}
        assert seen() == before
    finally:
        set_oldest("highest")
        for kind in reversed(kinds):
            kind.fp32_precision = "none"
        backends.cudnn.allow_tf32 = True


def test_a_run_in_bfloat16_multiplies_in_it(labs):
    """A door within the run must not end the run's own autocast."""
    config = dataclasses.replace(labs().run("Signs", "nonlinear", 0), precision="float32")
    half = dataclasses.replace(config, precision="bfloat16")
    one, two = (labs().trainer(each).vector for each in (config, half))
    assert one != two and one.cosine(two) > 0.9
