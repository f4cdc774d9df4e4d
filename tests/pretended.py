"""A CUDA device made of the CPU's memory, so that faults of devices show where there is no GPU.

    with pretended.cuda():
        Lab("mini_xs", steps=2)  # device cuda, as on a machine that has one

A tensor that is moved there is a `Device`: it says that it is on cuda:0, holds a CPU tensor, and
every operation on it runs on what it holds. As on a real device

- an operation refuses tensors of both, but for numbers (0-dim) beside others and CPU indices;
- `numpy()` refuses, in whatever way NumPy asks;
- a generator is of the device that it draws on;
- products of whole numbers, and what only a CPU has, refuse;
- a convolution gives the gradient of its weight in an order of axes of its own, as cuDNN does, and
  a fused optimiser refuses gradients that do not lie as their parameters;
- memory is counted, and there is so much of it (`Memory`);
- there may be several (`cuda(count=2)`), of which one is current; `cuda` without a number is that;
- streams order nothing by themselves: what one of them wrote, another may use when it has waited
  (`pretended_streams`), and a graph is recorded and replayed on the device of its tensors;
- copies from pinned memory, and those to the CPU that are not waited for, are made later;
- products and convolutions of float32 keep ten bits of their factors where PyTorch's settings allow
  TF32, as they do for convolutions by default.

PyTorch itself still takes the tensors for the CPU's. So factories, moves and what asks for a device
are replaced here while the device is there, at the places where Python calls them. What PyTorch's
C++ makes on its own in a backward pass are zeros on the CPU, which pass.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from torch import Tensor
from torch.autograd import forward_ad as fw

from tests import pretended_streams as streams

with warnings.catch_warnings():  # of deprecations; it looks through all that torch has
    warnings.simplefilter("ignore")
    importlib.import_module("torch._decomp.decompositions_for_jvp")

CPU = torch.device("cpu")
META = torch.device("meta")
_BASE = torch._C.TensorBase
_NUMPY = (
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
    "memory first."
)
_LAYOUT = "params, grads, exp_avgs, and exp_avg_sqs must have same dtype, device, and layout"
_MOVES = {"aten::copy_", "aten::_to_copy"}
_INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_NO_NUMBERS = {"aten::cat", "aten::stack", "aten::dot", "aten::index_select", "aten::gather"}
_PRODUCTS = {f"aten::{n}" for n in ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv")}
_CONVOLUTIONS = {"aten::convolution", "aten::convolution_backward"}
_CPU_ALONE = {"aten::histogram", "aten::_histogramdd_bin_edges", "aten::geqrf_cpu"}
_FACTORIES = (
    *("zeros", "ones", "empty", "full", "arange", "linspace", "logspace", "eye", "empty_strided"),
    *("rand", "randn", "randint", "randperm", "tril_indices", "triu_indices", "scalar_tensor"),
    *("tensor", "as_tensor", "asarray", "normal"),
    *(f"{n}_like" for n in ("zeros", "ones", "empty", "full", "rand", "randn", "randint")),
)


class Memory:
    """Counts the bytes of the device's tensors.

    Attributes:
        total: What there is.
        now: Bytes that are held.
        peak: The most of them since it was reset.
    """

    def __init__(self, total: int) -> None:
        self.total, self.now, self.peak = total, 0, 0
        self._forget = streams.forget  # also while the process ends
        self._holders: collections.Counter[int] = collections.Counter()
        self._sizes: dict[int, int] = {}

    def take(self, here: Tensor) -> int:
        """Count a tensor's storage, once however many tensors share it; return its address."""
        storage = here.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if not self._holders[place]:
            if self.now + size > self.total:
                del self._holders[place]
                told = f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB."
                raise torch.OutOfMemoryError(told)
            self._sizes[place] = size
            self.now += size
            self.peak = max(self.peak, self.now)
        self._holders[place] += 1
        return place

    def give(self, place: int) -> None:
        """Count a tensor less."""
        self._holders[place] -= 1
        if not self._holders[place]:
            del self._holders[place]
            self.now -= self._sizes.pop(place)
            self._forget(place)


_memories = [Memory(0)]  # of each device


class Device(Tensor):
    """A tensor on the pretended device; `here` is the CPU tensor that it is made of."""

    here: Tensor
    index: int
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: Tensor, index: int | None = None) -> Device:
        """Return a CPU tensor as one of a device; both share their memory."""
        index = streams.current_device() if index is None else index
        memory = _memories[index]
        place = memory.take(here)
        out = torch.Tensor._make_wrapper_subclass(
            cls, here.size(), strides=here.stride(), storage_offset=here.storage_offset(),
            dtype=here.dtype, device=CPU,
        )  # fmt: skip
        out.here, out.held, out.index = here, (memory, place), index
        return out

    def __del__(self) -> None:
        memory, place = self.__dict__.get("held", (None, 0))
        if memory is not None:
            memory.give(place)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatched(func, args, kwargs or {})

    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return self.index

    def numpy(self, *args: Any, **named: Any) -> None:
        raise TypeError(_NUMPY)

    __array__ = __dlpack__ = __reduce_ex__ = numpy

    def tolist(self) -> Any:
        streams.read(self.here, self.index)
        streams.meet(self.index)
        return self.here.tolist()

    def pin_memory(self, *args: Any) -> None:
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor'")

    def __repr__(self, **named: Any) -> str:
        return f"Device({self.here!r})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else repr(self)

    def __deepcopy__(self, memo: dict) -> Tensor:
        copy = self.detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        return copy


def device_of(x: Tensor) -> torch.device:
    """Return where a tensor is, also one that a transform of `torch.func` has wrapped."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
    return torch.device("cuda", x.index) if isinstance(x, Device) else _BASE.device.__get__(x)


def index_of(device: object) -> int | None:
    """Return the number of a device, however it is written; `None` for another kind."""
    if isinstance(device, int):
        return device
    if not is_cuda(device):
        return None
    number = torch.device(device).index
    return streams.current_device() if number is None else number


def is_cuda(device: object) -> bool:
    """Whether a device, however it is written, is the pretended one."""
    if isinstance(device, int):
        return True
    return device is not None and torch.device(device).type == "cuda"


# --- Operations ----------------------------------------------------------------------------------
def _tensors(tree: Any) -> Iterator[Tensor]:
    for x in tree:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from _tensors(x)


def _mapped(function: Callable, tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(function, x) for x in tree)
    return tree


def _bare(tree: Any, seen: list[Tensor]) -> Any:
    """Return arguments with what their tensors hold, and append the tensors to a list."""
    parts = []
    for x in tree:
        if isinstance(x, Device):
            seen.append(x)
            parts.append(x.here)
            continue
        if isinstance(x, Tensor):
            seen.append(x)
        elif isinstance(x, list | tuple) and x and not isinstance(x[0], int):
            x = _bare(x, seen)
        parts.append(x)
    return type(tree)(parts)


def _cut(x: Any) -> Any:
    """Return numbers of float32 as tensor cores read them: with ten bits of their mantissa."""
    if not isinstance(x, Tensor) or x.dtype != torch.float32:
        return x
    return x.contiguous().view(torch.int32).bitwise_and(-(2**13)).view(torch.float32)


def _in_tf32(name: str, plain: list) -> list:
    """Return an operation's arguments, with factors in TF32 where the settings allow it."""
    backends = torch.backends
    conv = name.startswith("aten::convolution")
    home = backends.cudnn.conv if conv else backends.cuda.matmul
    if home.fp32_precision != "tf32":
        return plain
    factors = (0, 1, 2) if name == "aten::convolution_backward" else (0, 1)
    added = 1 if name.startswith(("aten::add", "aten::badd")) else 0
    return [_cut(x) if place - added in factors else x for place, x in enumerate(plain)]


@functools.cache
def _known(func: Any) -> tuple[str, list[tuple[int, str]], bool, bool]:
    """Return an operation's name, and what is known of it.

    That is the arguments that it writes to, whether it gives a view, and whether `_check` has a
    rule for it where all tensors are on one device.
    """
    written = [
        (place, one.name)
        for place, one in enumerate(func._schema.arguments)
        if one.alias_info is not None and one.alias_info.is_write
    ]
    view = any(one.alias_info is not None for one in func._schema.arguments) and not written
    name = func._schema.name
    ruled = name in _CPU_ALONE or name in _PRODUCTS or name.startswith("aten::_fused_adam")
    return name, written, view, ruled


def _dispatched(func: Any, args: tuple, named: dict[str, Any]) -> Any:
    """Run an operation with at least one tensor of the device on what its tensors hold.

    Most of what chapters take on the device is spent here, so that it does little.
    """
    name, written, view, ruled = _known(func)
    tensors: list[Tensor] = []
    plain = _bare(args, tensors)
    more = dict(zip(named, _bare([*named.values()], tensors), strict=True)) if named else {}
    targets = [args[i] if i < len(args) else named.get(key) for i, key in written]
    targets = list(_tensors(targets))
    held = {id(x.here): x for x in tensors if isinstance(x, Device)}
    places = {x.index for x in held.values()}
    if name not in _MOVES and (ruled or len(places) > 1 or len(held) < len(tensors)):
        _check(name, args, tensors, targets)
    index = next((x.index for x in (*targets, *tensors) if isinstance(x, Device)), None)
    shapes = False
    if named:
        _check_generator(named.get("generator"), cuda=True)
        shapes = named.get("device") == META  # C++ asks so for the shape of a sum of zeros
        if "device" in named and not shapes:  # of options that C++ took from a tensor: moves: `_to`
            more["device"] = CPU
    if not view:
        for x in held.values():
            streams.read(x.here, x.index)
    if name in _PRODUCTS or name in _CONVOLUTIONS:
        plain = _in_tf32(name, [*plain])
    out = func(*plain, **more)
    if shapes:
        return out
    if not view and index is not None:
        made = [x.here for x in targets if isinstance(x, Device)]
        streams.record(func, plain, more, out, index, in_place=bool(written))
        streams.wrote(made or list(_tensors([out])), index)
    if name == "aten::copy_" and not isinstance(args[0], Device):
        return args[0]
    if name == "aten::convolution_backward" and out[1] is not None and out[1].dim() == 4:
        out = (out[0], out[1].contiguous(memory_format=torch.channels_last), *out[2:])
    for x in targets:
        held[id(x.here if isinstance(x, Device) else x)] = x

    def dressed(x: Tensor) -> Tensor:
        return held[id(x)] if id(x) in held else Device(x, index)

    if view and torch.is_inference_mode_enabled() and not args[0].is_inference():
        with torch.inference_mode(False):  # then neither is its view
            return _mapped(dressed, out)
    return _mapped(dressed, out)


def _check(name: str, args: tuple, tensors: list[Tensor], written: list[Tensor]) -> None:
    """Raise as CUDA does where an operation cannot take its tensors."""
    if name in _CPU_ALONE:
        raise NotImplementedError(f"Could not run {name!r} with arguments from the 'CUDA' backend.")
    if name in _PRODUCTS and not tensors[0].dtype.is_floating_point and not tensors[0].is_complex():
        raise RuntimeError(f'"{name[6:]}_cuda" not implemented for {tensors[0].dtype}')
    if name.startswith("aten::_fused_adam"):
        lists = [one for one in args if isinstance(one, list | tuple) and one]
        for group in zip(*(one for one in lists if one[0].dim()), strict=False):
            if len({x.stride() for x in group}) > 1:
                raise RuntimeError(_LAYOUT)
    apart = {
        x.index
        for x in tensors
        if isinstance(x, Device) and (x.dim() or any(x is one for one in written))
    }
    if len(apart) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(f'cuda:{i}' for i in sorted(apart))}! ({name})"
        )
    own = [x for x in tensors if not isinstance(x, Device)]
    if not own:
        return
    if name in _INDEXED and isinstance(args[0], Device):  # indices may be the CPU's
        own = [x for x in _tensors(args[2:]) if not isinstance(x, Device)]
    numbers = name not in _NO_NUMBERS
    for x in own:
        passes = numbers and x.dim() == 0 and not any(x is target for target in written)
        if not passes and not _of_pytorch(name, x):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:0 and cpu! ({name})"
            )


def _of_pytorch(name: str, x: Tensor) -> bool:
    """Whether a tensor of the CPU's can be zeros that PyTorch made in a derivative."""
    if x._is_zerotensor():
        return True
    forward = fw._current_level >= 0 and name in ("aten::convolution", "aten::cat")
    backward = torch._C._current_graph_task_id() != -1
    return (forward or backward) and not x.count_nonzero()


def _check_generator(generator: torch.Generator | None, *, cuda: bool) -> None:
    if generator is not None and is_cuda(generator.device) != cuda:
        one, two = ("cuda", "cpu") if cuda else ("cpu", "cuda")
        raise RuntimeError(f"Expected a {one!r} device type for generator but found {two!r}")


# --- Moves ---------------------------------------------------------------------------------------
class _Move(torch.autograd.Function):
    """A copy on the other device; so are gradients and tangents."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, index: int | None) -> Tensor:
        return _copied(x, index)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.origin, ctx.index = index_of(device_of(inputs[0])), inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Move.apply(gradient, ctx.origin), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return _Move.apply(tangent, ctx.index)


def _copied(x: Tensor, index: int | None) -> Tensor:
    """Return a copy on a device, or for `None` on the CPU."""
    if isinstance(x, Device):
        streams.read(x.here, x.index)
        copy = x.here.clone()
    else:
        copy = x.detach().clone()
    if index is None:
        return copy
    streams.wrote([copy], index)
    return Device(copy, index)


def _moved(x: Tensor, device: object) -> Tensor:
    if device is None or index_of(device) == index_of(device_of(x)):
        return x
    if not isinstance(device, int) and torch.device(device) == META:
        return _BASE.to(x.here if isinstance(x, Device) else x, device)
    index = index_of(device)
    derived = x.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(x)
    if derived or fw.unpack_dual(x).tangent is not None:
        return _Move.apply(x, index)
    return _copied(x, index)


def _to(self: Tensor, *args: Any, **named: Any) -> Tensor:
    device, rest = named.pop("device", None), []
    for one in args:
        if isinstance(one, str | torch.device | int) and not isinstance(one, bool):
            device = one
        elif isinstance(one, Tensor):
            device = device_of(one)
            rest.append(one.dtype)
        elif one is not None:
            rest.append(one)
    other = named.pop("other", None)
    if other is not None:
        device, rest = device_of(other), [other.dtype]
    if device is not None and not isinstance(device, int) and torch.device(device) == META:
        return _BASE.to(self, device, *rest, **named)
    later = named.pop("non_blocking", False)
    if later and isinstance(self, Device) and index_of(device) is None:
        streams.read(self.here, self.index)
        return _BASE.to(streams.coming(self.here), *rest, **named)
    if device is not None and index_of(device) != (here := index_of(device_of(self))):
        streams.meet(index_of(device) if here is None else here)
    out = _moved(self, device)
    if later and getattr(self, "pinned", False):
        streams.sent(self)
    if out is not self:
        named.pop("copy", None)
    flags = [one for one in rest if isinstance(one, bool)]
    kinds = [one for one in rest if not isinstance(one, bool)]
    if len(flags) == 2 and flags[1] and out is self:
        named["copy"] = True
    return _BASE.to(out, *kinds, **named) if kinds or named else out


def _cpu(self: Tensor, *args: Any, **named: Any) -> Tensor:
    return _to(self, "cpu")


def _cuda(self: Tensor, *args: Any, **named: Any) -> Tensor:
    return _moved(self, "cuda")


def _pinned(self: Tensor, *args: Any) -> Tensor:
    copy = self.clone()
    copy.pinned = True
    return copy


def _new(name: str) -> Callable[..., Tensor]:
    usual = getattr(_BASE, name)

    def make(self: Tensor, *args: Any, device: object = None, **named: Any) -> Tensor:
        where = device_of(self) if device is None else device
        if name == "new_tensor":
            return torch.tensor(*args, dtype=named.pop("dtype", self.dtype), device=where, **named)
        return _moved(usual(self, *args, **named), where)

    return make


def _factory(usual: Callable) -> Callable[..., Tensor]:
    """Return a function that makes tensors with one that can make them on the device."""
    takes_data = usual.__name__ in ("tensor", "as_tensor", "asarray")

    @functools.wraps(usual)
    def make(*args: Any, **named: Any) -> Tensor:
        device, from_device = named.get("device"), args and isinstance(args[0], Device)
        if takes_data and args and isinstance(args[0], Tensor):
            x = args[0].detach() if usual.__name__ == "tensor" else args[0]
            where = device_of(x) if device is None else device
            out = _to(x, where, **({"dtype": named["dtype"]} if named.get("dtype") else {}))
            return out.clone() if usual.__name__ == "tensor" and out is x else out
        if device is None and not from_device:
            return usual(*args, **named)
        if device is not None and not is_cuda(device) and not from_device:
            return usual(*args, **named)
        where = args[0].index if device is None else device
        _check_generator(named.get("generator"), cuda=is_cuda(where))
        named = {**named, "device": CPU, "pin_memory": False}
        if takes_data or usual.__name__ in ("tril_indices", "triu_indices"):
            del named["pin_memory"]
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if from_device:
                args = (args[0].here, *args[1:])
            grad = named.pop("requires_grad", False)
            out = usual(*args, **named)
        return (_copied(out, index_of(where)) if is_cuda(where) else out).requires_grad_(grad)

    return make


def _one_hot(usual: Callable) -> Callable[..., Tensor]:
    """Its C++ makes a range of its own."""

    def one_hot(x: Tensor, *args: Any) -> Tensor:
        return Device(usual(x.here, *args), x.index) if isinstance(x, Device) else usual(x, *args)

    return one_hot


# --- The device ----------------------------------------------------------------------------------
class _Autocast(torch.autocast):
    """Products in bfloat16 for the device; what is asked for the CPU's leaves them as they are."""

    def __init__(self, device_type: str, *args: Any, **named: Any) -> None:
        if device_type == "cpu":
            named["enabled"] = False
        super().__init__("cpu" if device_type == "cuda" else device_type, *args, **named)


def _functions() -> dict[str, Any]:
    """Return what stands for the functions of `torch.cuda`, by name."""
    nothing = lambda *args, **named: None  # noqa: E731

    def memory(device: object = None) -> Memory:
        return _memories[streams.current_device() if device is None else index_of(device)]

    def reset(device: object = None) -> None:
        memory(device).peak = memory(device).now

    def info(device: object = None) -> tuple[int, int]:
        return memory(device).total - memory(device).now, memory(device).total

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: len(_memories),
        "current_device": streams.current_device,
        "current_stream": streams.current_stream,
        "device": streams.on_device,
        "stream": streams.on_stream,
        "Stream": streams.Stream,
        "Event": streams.Event,
        "CUDAGraph": streams.Graph,
        "graph": streams.recording,
        "graph_pool_handle": streams.Pool,
        "get_device_capability": lambda *args: (9, 0),
        "get_arch_list": lambda: ["sm_90"],
        "get_device_name": lambda *args: "a pretended device",
        "is_bf16_supported": lambda *args, **named: True,
        "mem_get_info": info,
        "memory_allocated": lambda device=None: memory(device).now,
        "memory_reserved": lambda device=None: memory(device).now,
        "max_memory_allocated": lambda device=None: memory(device).peak,
        "reset_peak_memory_stats": reset,
        "synchronize": lambda device=None: streams.current_stream(device).synchronize(),
        **dict.fromkeys(("empty_cache", "_lazy_init"), nothing),
        **dict.fromkeys(("manual_seed", "manual_seed_all"), nothing),
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": nothing,  # one generator stands for both
    }


@contextlib.contextmanager
def cuda(total: int = 2**36, count: int = 1) -> Iterator[Memory]:
    """Have CUDA devices while the block runs; yield the first one's memory.

    Args:
        total: Bytes that fit into the memory of each.
        count: Number of devices.
    """
    global _memories
    before, _memories = _memories, [Memory(total) for _ in range(count)]
    state = streams.start(count)
    swap = torch.__future__.get_swap_module_params_on_conversion()
    enabled, one_hot = torch.is_autocast_enabled, torch.nn.functional.one_hot
    torch.utils._device._device_constructors()  # kept from its first call on: the real ones
    with contextlib.ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))

        for name, value in _functions().items():
            put(torch.cuda, name, value)
        put(torch.accelerator, "current_accelerator", lambda *args, **named: None)
        put(torch.accelerator, "is_available", lambda: False)
        put(Tensor, "device", property(device_of))
        for name, value in {"to": _to, "cpu": _cpu, "cuda": _cuda}.items():
            put(Tensor, name, value)
        for name in ("new_tensor", "new_zeros", "new_ones", "new_empty", "new_full"):
            put(Tensor, name, _new(name))
        put(Tensor, "pin_memory", _pinned)
        for name in _FACTORIES:
            put(torch, name, _factory(getattr(torch, name)))
        put(torch.nn.functional, "one_hot", _one_hot(one_hot))
        for owner in (torch, torch.amp, torch.amp.autocast_mode):
            put(owner, "autocast", _Autocast)
        put(torch, "is_autocast_enabled", lambda kind="cpu": enabled("cpu"))
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swap)
        try:
            yield _memories[0]
        finally:
            streams.finish(state)
            _memories = before
