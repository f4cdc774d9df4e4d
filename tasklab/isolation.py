"""One computation at a time in a process, with PyTorch's settings as the package needs them.

A network serves all threads of a process, and its weights are exchanged in place while it computes.
PyTorch's settings (autocast, default type, deterministic algorithms, ...) belong to the process or
the thread, so the caller's would enter numbers whose key in the store does not have them. Functions
that compute are therefore decorated:

- `isolated`: the call waits for other threads, the settings are fixed, and restored afterwards;
- `differentiable`: likewise, but gradients are recorded as the caller asked.

Within such a call another one costs nothing. The number of threads stays the caller's; provenances
and records name it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

_END: Any = object()  # of a generator
_TINY = 1e-310  # a denormal number, which is zero where the processor flushes them
_AUTOCAST = ("cpu", "cuda")
_NUMPY = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


class _Setting(NamedTuple):
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    usual: tuple[Any, ...]  # values that may stay; the first one is set in place of others


class _Here(threading.local):
    """State of a thread."""

    inside = False
    seen: set[Hashable]


_HERE = _Here()
_LOCK = threading.RLock()


def isolated(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return a function that computes alone in its process, with the usual settings.

    A generator does so in each of its steps, and leaves the process to others between them.
    """
    return _door(function, gradients=True)


def differentiable(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return a function as `isolated` does, which records gradients as its caller asked."""
    return _door(function, gradients=False)


def _door(function: Callable[Given, Result], *, gradients: bool) -> Callable[Given, Result]:
    @functools.wraps(function)
    def door(*given: Given.args, **named: Given.kwargs) -> Result:
        if _HERE.inside:
            return function(*given, **named)
        with _LOCK, _entered(), _fixed(gradients):
            return function(*given, **named)

    @functools.wraps(function)
    def steps(*given: Given.args, **named: Given.kwargs) -> Iterator[Any]:
        values: Any = function(*given, **named)
        following = _door(lambda: next(values, _END), gradients=gradients)
        yield from iter(following, _END)

    made: Any = steps if inspect.isgeneratorfunction(function) else door
    made.isolated = True
    return made


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait for other threads; needs no torch, and leaves settings as they are."""
    with _LOCK:
        yield


def first(key: Hashable) -> bool:
    """Return whether this is the first call with `key` in the present isolated call."""
    if not _HERE.inside:
        return True
    if key in _HERE.seen:
        return False
    _HERE.seen.add(key)
    return True


def inside() -> bool:
    """Return whether this thread is in an isolated call."""
    return _HERE.inside


@contextlib.contextmanager
def _entered() -> Iterator[None]:
    _HERE.inside, _HERE.seen = True, set()
    try:
        yield
    finally:
        _HERE.inside = False


@contextlib.contextmanager
def _fixed(gradients: bool) -> Iterator[None]:
    """Fix settings that change numbers, and restore the caller's."""
    import torch  # start-up: the store is looked into before torch is there

    changed: list[tuple[_Setting, Any]] = []
    with contextlib.ExitStack() as modes:
        if gradients and torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        if any(map(torch.is_autocast_enabled, _AUTOCAST)):  # whose cache is emptied at its end only
            modes.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
            torch.set_autocast_cache_enabled(False)
        if torch._C._len_torch_function_stack() and torch.get_default_device().type != "cpu":
            modes.enter_context(torch.device("cpu"))  # what names no device is made there
        try:
            for setting in _settings(gradients):
                if (found := setting.get()) not in setting.usual:
                    changed.append((setting, found))
                    setting.set(setting.usual[0])
            yield
        finally:
            for setting, found in reversed(changed):
                setting.set(found)


@functools.cache
def _settings(gradients: bool) -> tuple[_Setting, ...]:
    import numpy as np  # start-up
    import torch

    cuda, one = torch.backends.cuda, _Setting
    listed = [
        one(torch.is_grad_enabled, torch.set_grad_enabled, (True,)) if gradients else None,
        one(torch.get_default_dtype, torch.set_default_dtype, (torch.float32,)),
        one(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, (0,)),
        one(torch.is_anomaly_enabled, torch.set_anomaly_enabled, (False,)),
        one(lambda: _TINY * 1.0 == 0.0, torch.set_flush_denormal, (False,)),
        one(np.geterr, lambda told: np.seterr(**told), (_NUMPY,)),
        one(cuda.math_sdp_enabled, cuda.enable_math_sdp, (True,)),
        one(cuda.flash_sdp_enabled, cuda.enable_flash_sdp, (True,)),
        one(cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp, (True,)),
        one(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp, (True,)),
        _attribute(torch.backends.mkldnn, "enabled", True),
        _attribute(torch.backends.mkldnn, "deterministic", False),
        _attribute(torch.backends.cudnn, "enabled", True),
        _attribute(torch.backends.cudnn, "benchmark", False),
        _attribute(torch.backends.cudnn, "deterministic", False),
        # what is set for all decides what others answer, and these whether the oldest answers
        _attribute(torch.backends, "fp32_precision", "none", "ieee"),
        _attribute(torch.backends.cudnn, "fp32_precision", "none", "ieee"),
        *(
            _attribute(getattr(torch.backends.mkldnn, kind, None), "fp32_precision", "ieee", "none")
            for kind in ("matmul", "conv")
        ),
        _convolutions(torch),
        _attribute(getattr(cuda, "matmul", None), "fp32_precision", "ieee", "none"),
        one(torch.get_float32_matmul_precision, _oldest(torch), ("highest",)),
        *(_autocast(torch, kind) for kind in _AUTOCAST),
    ]
    return tuple(setting for setting in listed if setting is not None)


def _attribute(home: Any, name: str, *usual: Any) -> _Setting | None:
    """Return a setting that is an attribute; `None` if this version of PyTorch does not have it."""
    if not hasattr(home, name):
        return None
    return _Setting(lambda: getattr(home, name), lambda value: setattr(home, name, value), usual)


def _oldest(torch: Any) -> Callable[[str], None]:
    """Return a function that sets only the oldest setting of products, not the newer ones."""
    both = [getattr(getattr(torch.backends, name), "matmul", None) for name in ("cuda", "mkldnn")]
    homes: list[Any] = [home for home in both if hasattr(home, "fp32_precision")]

    def put(value: str) -> None:
        kept = [home.fp32_precision for home in homes]
        torch.set_float32_matmul_precision(value)
        for home, own in zip(homes, kept, strict=True):
            home.fp32_precision = own

    return put


def _convolutions(torch: Any) -> _Setting | None:
    """Return the setting that cuDNN multiplies in float32: PyTorch's default is TF32."""
    cudnn = torch.backends.cudnn
    if not hasattr(cudnn, "conv"):
        return None

    def get() -> tuple[str, str]:
        return cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision

    def put(value: tuple[str, str]) -> None:
        if value in (("none", "none"), ("tf32", "tf32")):  # what the older flag sets
            cudnn.allow_tf32 = value[0] == "tf32"
        else:
            cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = value

    return _Setting(get, put, (("none", "none"), ("ieee", "ieee")))


def _autocast(torch: Any, kind: str) -> _Setting:
    return _Setting(
        lambda: torch.is_autocast_enabled(kind),
        lambda on: torch.set_autocast_enabled(kind, on),
        (False,),
    )


def _forked() -> None:
    """Replace the lock in a forked child, where no thread holds it."""
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
