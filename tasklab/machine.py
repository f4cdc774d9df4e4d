"""Versions, processor, memory, devices and disks of this machine, without importing torch.

An unknown value is `None`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import glob
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tasklab import __version__

GIB = 2**30
PACKAGES = {  # as they are imported -> as they are installed
    "torch": "torch",
    "torchvision": "torchvision",
    "open_clip": "open_clip_torch",
    "timm": "timm",
    "transformers": "transformers",
}
BFLOAT16 = (8, 0)  # compute capability from which CUDA devices multiply in it: Ampere
_asked: list[bool] = []  # of `keep_freed_memory`
_NO_LIMIT = 2**60  # a cgroup without a limit has one about as large as an address
_DRIVERS = ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd")  # NVIDIA, within Windows, AMD


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory in bytes; `limited` if a limit on this process, not the machine, decides."""

    total: int | None
    available: int | None
    limited: bool = False


@dataclasses.dataclass(frozen=True)
class Device:
    """A CUDA device; memory in bytes."""

    name: str
    total: int
    free: int
    capability: str
    bfloat16: bool
    useless: str = ""  #: Why this build of torch cannot run on it (`without_kernels`)


@dataclasses.dataclass(frozen=True)
class Disk:
    """A folder and the disk that it is on, or would be on; sizes in bytes."""

    path: str
    free: int
    total: int
    writable: bool
    used: int | None = None  # what the folder holds, if it was counted
    whole: bool = True  # all of it was counted in the time there was


def versions(installed: Callable[[str], str] = importlib.metadata.version) -> dict[str, str | None]:
    """Return the versions of tasklab's dependencies, without importing them.

    Args:
        installed: Name of a package -> its version.
    """
    present: dict[str, str | None] = {"python": platform.python_version(), "tasklab": __version__}
    for name, package in PACKAGES.items():
        try:
            present[name] = installed(package)
        except importlib.metadata.PackageNotFoundError:
            present[name] = None
    return present


def unpaired(present: Mapping[str, str | None], wanted: list[str] | None) -> str | None:
    """Return why torch and torchvision do not fit each other, or `None` if they may.

    Args:
        wanted: Requirements of torchvision, as in its metadata.

    >>> unpaired({"torch": "2.5.0+cpu", "torchvision": "0.20.1+cpu"}, ["torch==2.5.1"])
    'torchvision 0.20.1+cpu asks for torch ==2.5.1, not 2.5.0+cpu: install both anew, together.'
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion, Version

    torch, vision = present["torch"], present["torchvision"]
    if torch is None or vision is None:
        return None
    advice = "install both anew, together."
    try:
        builds = {Version(torch).local, Version(vision).local} - {None}
        if len(builds) > 1:
            return f"torch {torch} and torchvision {vision} are of different builds: {advice}"
        for line in wanted or []:
            need = Requirement(line)
            applies = need.marker is None or need.marker.evaluate({"extra": ""})
            public = Version(torch).public
            if need.name == "torch" and applies and not need.specifier.contains(public, True):
                asks = f"torchvision {vision} asks for torch {need.specifier}"
                return f"{asks}, not {torch}: {advice}"
    except (InvalidRequirement, InvalidVersion):
        return None
    return None


def cores(root: Path = Path("/")) -> float:
    """Return the number of cores this process may use, a cgroup's share of time included.

    `root` is that of the file system, whose `proc` and `sys` are read.
    """
    try:
        count: float = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        count = os.cpu_count() or 1
    for folder in _cgroups(root, "cpu"):
        share = _numbers(folder / "cpu.max") or [
            *_numbers(folder / "cpu.cfs_quota_us"),
            *_numbers(folder / "cpu.cfs_period_us"),
        ]
        if len(share) == 2 and min(share) > 0:  # quota and period; -1 or no quota: no limit
            count = min(count, share[0] / share[1])
    return count


def memory(root: Path = Path("/")) -> Memory:
    """Return the memory of the machine, or of the tightest cgroup around this process.

    Files that a cgroup caches count as available, also those mapped into memory, as vectors are.
    """
    info = _table(root / "proc/meminfo", unit=1024)
    total, available = info.get("MemTotal"), info.get("MemAvailable")
    if total is None:
        try:
            total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, ValueError):  # not on every system
            total = None
    limited = False
    for folder in _cgroups(root, "memory"):
        for limit, usage, prefix in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            most = next(iter(_numbers(folder / limit)), _NO_LIMIT)
            if most >= _NO_LIMIT:
                continue
            if total is None or most < total:
                total, limited = most, True
            used = next(iter(_numbers(folder / usage)), 0)
            stat = _table(folder / "memory.stat")
            cached = sum(stat.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
            left = max(0, most - used + min(used, cached))
            if available is None or left < available:
                available, limited = left, True
    return Memory(total, available, limited)


def _cgroups(root: Path, controller: str) -> list[Path]:
    """Return the folders of the cgroups around this process, innermost first, of both versions."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            top = root / "sys/fs/cgroup"
        elif controller in names.split(","):
            top = next((root / "sys/fs/cgroup" / n for n in (names, controller)), root)
            if not top.is_dir():
                top = root / "sys/fs/cgroup" / controller
        else:
            continue
        inner = top / path.strip("/")  # in a container it may not be there, but its top is
        folders += [inner, *(up for up in inner.parents if up == top or top in up.parents)]
    return list(dict.fromkeys(folders))


def _numbers(file: Path) -> list[int]:
    try:
        return [int(word) for word in file.read_text().split() if re.fullmatch(r"-?\d+", word)]
    except OSError:
        return []


def _table(file: Path, unit: int = 1) -> dict[str, int]:
    try:
        rows = [re.split(r"[:\s]+", line) for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) * unit for row in rows if len(row) > 1 and row[1].isdigit()}


def accelerated() -> bool:
    """Return whether there seems to be a device that torch could use, without importing torch."""
    return any(glob.glob(name) for name in _DRIVERS) or shutil.which("nvidia-smi") is not None


def devices() -> list[Device]:
    """Return the CUDA devices that torch sees; it is imported for it."""
    import torch

    devices = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(number)
        able = torch.cuda.get_device_capability(number)
        name = torch.cuda.get_device_name(number)
        text, useless = ".".join(map(str, able)), without_kernels(number)
        devices.append(Device(name, total, free, text, able >= BFLOAT16, useless))
    return devices


def without_kernels(number: int) -> str:
    """Return why a CUDA device cannot run this build of torch, or nothing if it can.

    Kernels of `sm_70` run on devices of compute capability 7.0 to 7.9, and code of `compute_70` is
    compiled for every later one.
    """
    import torch

    able, kernels = torch.cuda.get_device_capability(number), torch.cuda.get_arch_list()
    for kind, digits in re.findall(r"(sm|compute)_(\d+)", " ".join(kernels)):
        major, minor = divmod(int(digits), 10)
        if (major, minor) <= able and (kind == "compute" or major == able[0]):
            return ""
    told = ".".join(map(str, able))
    return (
        f"this build of torch ({', '.join(kernels)}) has no kernels for cuda:{number}, "
        f"{torch.cuda.get_device_name(number)} of compute capability {told}: install a build of "
        "torch for an older CUDA, or give device='cpu'."
    )


@functools.cache
def fast_in_bfloat16() -> bool:
    """Measure whether the processor multiplies bfloat16 matrices at least 1.5 times as fast.

    Instructions for bfloat16 do not suffice: the library of matrix products must use them. A
    processor that is about as fast in both takes float32, so that the answer is always the same.
    """
    import torch

    def product(dtype: torch.dtype) -> Callable[[], object]:
        pair = torch.ones(512, 256, dtype=dtype), torch.ones(512, 256, dtype=dtype)
        return lambda: torch.nn.functional.linear(*pair)

    half, full = shortest(product(torch.bfloat16), product(torch.float32))
    return 1.5 * half < full


def shortest(*ways: Callable[[], object], rounds: int = 16) -> list[float]:
    """Return the shortest time of each function in seconds, on one thread.

    Several threads would wait for each other where a core is busy with other work.

    `ways` are called in turns, `rounds` times each.
    """
    import torch

    times: list[list[float]] = [[] for _ in ways]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for way, seconds in [*zip(ways, times, strict=True)] * rounds:
            began = time.perf_counter()
            way()
            seconds.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    return [min(seconds) for seconds in times]


def threads() -> int:
    """Return the number of threads of a PyTorch operation."""
    import torch

    return torch.get_num_threads()


def free_on(device: str) -> int | None:
    """Return the free memory of a device, or of this machine for `cpu`, in bytes."""
    if device == "cpu":
        return memory().available
    import torch

    return torch.cuda.mem_get_info(device)[0]


def gpu_name(device: str) -> str | None:
    """Return the name of a CUDA device; `None` for the CPU."""
    if device == "cpu":
        return None
    import torch

    return torch.cuda.get_device_name(device)


def capabilities() -> list[tuple[int, int]]:
    """Return the compute capabilities of all CUDA devices by nvidia-smi, without a context."""
    ask = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        output = subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [(int(a), int(b)) for a, b in re.findall(r"^(\d+)\.(\d+)$", output, re.MULTILINE)]


def disk(path: Path, seconds: float = 0) -> Disk:
    """Describe a folder and its disk.

    Args:
        seconds: How long to count what it holds; 0 for not at all.
    """
    path = Path(path).expanduser().absolute()
    there = next(folder for folder in (path, *path.parents) if folder.is_dir())
    space = shutil.disk_usage(there)
    writable = os.access(there, os.W_OK | os.X_OK) and not (path.exists() and not path.is_dir())
    used, whole = size(path, seconds) if seconds else (None, True)
    return Disk(str(path), space.free, space.total, writable, used, whole)


def size(path: Path, seconds: float) -> tuple[int, bool]:
    """Return the bytes of the files in a folder, and whether there was time for all of them."""
    until, total, waiting = time.monotonic() + seconds, 0, [path]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if time.monotonic() > until:
                        return total, False
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:  # removed meanwhile, or not ours to read
            continue
    return total, True


def gib(count: float) -> str:
    """Return bytes in GiB, rounded up to a tenth below ten.

    >>> gib(2**30), gib(150 * 2**20), gib(97.2 * 2**30)
    ('1.0 GiB', '0.2 GiB', '98 GiB')
    """
    tenths = -(-count * 10 // GIB)
    return f"{tenths / 10:.1f} GiB" if tenths < 100 else f"{-(-count // GIB):.0f} GiB"


def too_large(needed: float, there: float) -> tuple[str, str]:
    """Return bytes that are needed and the fewer ones that there are, so that the texts differ.

    >>> too_large(3 * 2**30, 2**29), too_large(100 * 2**20, 60 * 2**20)
    (('3.0 GiB', '0.5 GiB'), ('100.0 MiB', '60.0 MiB'))
    >>> too_large(50_001, 50_000)
    ('50,001 bytes', '50,000 bytes')
    """
    for size, unit in ((GIB, "GiB"), (2**20, "MiB")):
        up, down = -(-needed * 10 // size) / 10, there * 10 // size / 10
        if down >= 0.5 and up - down >= 0.2:
            return f"{up:.1f} {unit}", f"{down:.1f} {unit}"
    return f"{needed:,.0f} bytes", f"{there:,.0f} bytes"


# By default glibc maps and unmaps large buffers in every training step, and each page is faulted in
# anew: on virtual machines a step can take several times as long.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4  # from malloc.h
_LARGE = 2**22  # bytes


@functools.cache
def keep_freed_memory(keep: bool = True) -> bool:
    """Configure glibc's malloc to keep freed blocks; return whether that worked.

    A large model would hold half a gigabyte more at its peak.

    Args:
        keep: `False` for large models. The first call of a process decides: glibc cannot return to
            its own setting.
    """
    _asked.append(keep)
    if platform.libc_ver()[0] != "glibc":
        return False
    libc, settings = ctypes.CDLL(None), {_M_MMAP_THRESHOLD: _LARGE}
    if _asked[0]:
        settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 2**26}
    done = all(libc.mallopt(option, value) == 1 for option, value in settings.items())
    return done and _asked[0]


def return_freed_memory() -> bool:
    """Return freed memory to the system; return whether glibc did.

    Reference cycles are freed first. Between two runs of a large model this is gigabytes.
    """
    gc.collect()
    if platform.libc_ver()[0] != "glibc":
        return False
    return bool(ctypes.CDLL(None).malloc_trim(0))
