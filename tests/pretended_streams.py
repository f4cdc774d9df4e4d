"""Streams, events and graphs of the pretended devices (`tests/pretended.py`), and which is current.

Every operation runs at once, so nothing here is asynchronous. What is checked instead is what would
order it: a storage that one stream wrote may be used on another, or read by the CPU, only after
this one has waited for the writer; else the use raises, as a race. A graph keeps the operations on
its device and stream while it is recorded, which compute nothing yet: their results are NaN until
it is replayed. What runs on another device or stream meanwhile is not in it, and libraries of
products must have run on the stream before. What a later graph of the same memory computed is lost
by a replay.

A copy to the CPU that nobody waits for is NaN until the CPU waits; one from pinned memory raises
there if that memory has been written to meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

_numbers = itertools.count()
_FORBIDDEN = ("aten::_local_scalar_dense", "aten::item")  # while a stream is recorded
_LIBRARIES = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::convolution")


class State:
    """What is current, and who wrote what."""

    def __init__(self, count: int = 1) -> None:
        self.device = 0
        self.current: list[Stream] = []
        self.writers: dict[int, tuple[Stream, int]] = {}
        self.copies: list[tuple[Tensor, Tensor | int]] = []  # on their way, from and to the CPU
        self.started: set[tuple[str, int]] = set()  # products by stream: their library is there
        self.graph: Graph | None = None
        self.count = count


class Stream:
    """A queue of work of one device."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.device_index = _index(device)
        self.device = torch.device("cuda", self.device_index)
        self.number, self.clock = next(_numbers), 0
        self.seen: dict[int, int] = {}  # by stream: up to where this one has waited

    def wait_stream(self, other: Stream) -> None:
        """Order what follows here after what the other stream has done."""
        for number, clock in {**other.seen, other.number: other.clock}.items():
            self.seen[number] = max(clock, self.seen.get(number, 0))

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event of what this stream has done."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Order what follows here after an event."""
        if event.of is not None:
            self.wait_stream(event.of)

    def synchronize(self) -> None:
        """Have the CPU, and so all that is launched from now on, wait for this stream."""
        for stream in _state.current:
            stream.wait_stream(self)
        arrive()

    def query(self) -> bool:
        """Whether its work is done."""
        return True


class Event:
    """A point of a stream."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.of: Stream | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Take what a stream has done up to now."""
        source = stream or current_stream()
        self.of = Stream(source.device_index)
        self.of.wait_stream(source)

    def synchronize(self) -> None:
        """Have the CPU wait for it."""
        if self.of is not None:
            self.of.synchronize()


class Pool:
    """Memory of recordings."""


class Graph:
    """A recording: the operations of one stream.

    Attributes:
        pool: The memory that it was recorded in.
        stream: The stream that was recorded.
        mode: Whether other threads may go on meanwhile: `"thread_local"`.
        made: All graphs of the pretended devices, in the order in which they were made.
    """

    pool: Pool
    mode: str
    made: ClassVar[list[Graph]] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.steps: list[tuple[Callable[..., Any], tuple, dict[str, Any], Any, bool]] = []
        self.stream: Stream | None = None

    def replay(self) -> None:
        """Run the operations again, from and into the same tensors, on the current stream."""
        if self.stream is None:
            return
        index = self.stream.device_index
        for other in self.made[self.made.index(self) + 1 :]:
            if (other.pool, other.stream) == (self.pool, self.stream):
                other.spoil()
        with torch.inference_mode():
            for func, args, named, out, in_place in self.steps:
                for one in tensors([*args, *named.values()]):
                    read(one, index)
                again = func(*args, **named)
                if not in_place:
                    for kept, new in zip(tensors(out), tensors(again), strict=True):
                        kept.copy_(new)
                wrote(tensors(out), index)

    def spoil(self) -> None:
        """Lose what it computed, in tensors of its own."""
        with torch.inference_mode():
            for *_, out, in_place in self.steps:
                for tensor in () if in_place else tensors(out):
                    if tensor.is_floating_point():
                        tensor.fill_(float("nan"))


_state = State()


def _index(device: object) -> int:
    if device is None:
        return _state.device
    if isinstance(device, int):
        return device
    number = torch.device(device).index  # type: ignore[arg-type]
    return _state.device if number is None else number


def start(count: int) -> State:
    """Begin with so many devices; return what was before, for `finish`."""
    global _state
    Graph.made.clear()
    before, _state = _state, State(count)
    _state.current = [Stream(index) for index in range(count)]
    return before


def finish(before: State) -> None:
    """Return to what was before."""
    global _state
    _state = before


def current_device() -> int:
    """Return the number of the current device."""
    return _state.device


def current_stream(device: object = None) -> Stream:
    """Return the current stream of a device."""
    return _state.current[_index(device)]


@contextlib.contextmanager
def on_device(device: object) -> Iterator[None]:
    """Have a device be the current one."""
    before, _state.device = _state.device, _index(device)
    if not 0 <= _state.device < _state.count:
        _state.device = before
        raise RuntimeError("CUDA error: invalid device ordinal")
    try:
        yield
    finally:
        _state.device = before


@contextlib.contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    """Have a stream, and its device, be current."""
    if stream is None:
        yield
        return
    index = stream.device_index
    before, _state.current[index] = _state.current[index], stream
    try:
        with on_device(index):
            yield
    finally:
        _state.current[index] = before


@contextlib.contextmanager
def recording(
    graph: Graph, stream: Stream | None = None, pool: Pool | None = None, **options: Any
) -> Iterator[None]:
    """Record what runs on a stream of the current device, in a pool of its own by default."""
    stream, graph.pool = stream or Stream(), pool or Pool()
    graph.mode = options.get("capture_error_mode", "global")
    stream.wait_stream(current_stream(stream.device_index))
    graph.stream = stream
    with on_stream(stream):
        _state.graph = graph
        try:
            yield
        finally:
            _state.graph = None
    graph.spoil()


def sent(x: Tensor) -> None:
    """Note a copy from pinned memory, which must stay as it is until the CPU waits."""
    _state.copies.append((x, x._version))


def coming(x: Tensor) -> Tensor:
    """Return where a copy to the CPU will be, when the CPU waits."""
    out = x.clone().fill_(float("nan") if x.is_floating_point() else 0)
    _state.copies.append((out, x.clone()))
    return out


def meet(index: int) -> None:
    """Have the CPU wait for a device, to read from it or write to it, which no recording may."""
    if _state.graph is not None and _state.graph.stream is _state.current[index]:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    arrive()


def arrive() -> None:
    """End all copies from and to the CPU, which waits for them."""
    copies, _state.copies = _state.copies, []
    for one, other in copies:
        if isinstance(other, Tensor):
            one.copy_(other)
        elif one._version != other:
            raise RuntimeError("a race: pinned memory was written to before its copy was made")


def read(here: Tensor, index: int) -> None:
    """Check that the current stream of a device may use a storage."""
    stream = _state.current[index]
    writer, clock = _state.writers.get(here.untyped_storage().data_ptr(), (stream, 0))
    if writer is not stream and stream.seen.get(writer.number, 0) < clock:
        raise RuntimeError(
            f"a race: stream {stream.number} of cuda:{index} uses what stream {writer.number} "
            "wrote, and has not waited for it"
        )


def wrote(made: list[Tensor], index: int) -> None:
    """Note that the current stream of a device has written tensors."""
    stream = _state.current[index]
    stream.clock += 1
    for tensor in made:
        if place := tensor.untyped_storage().data_ptr():
            _state.writers[place] = stream, stream.clock


def forget(place: int) -> None:
    """Forget a storage that is freed."""
    if _state is not None:  # it is at the end of the process
        _state.writers.pop(place, None)


def record(
    func: Any, args: tuple, named: dict[str, Any], out: Any, index: int, *, in_place: bool
) -> None:
    """Keep an operation, if it is on the stream that is recorded."""
    graph, name, stream = _state.graph, func._schema.name, _state.current[index]
    if name in _FORBIDDEN:
        meet(index)
    known, place = _state.started, (name, stream.number)
    if graph is None or graph.stream is not stream:
        if name in _LIBRARIES:
            known.add(place)
        return
    if name in _LIBRARIES and place not in known:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    graph.steps.append((func, args, named, out, in_place))


def tensors(tree: Any) -> list[Tensor]:
    """List the tensors of nested lists and tuples."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree if isinstance(tree, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors(part)]
