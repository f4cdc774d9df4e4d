"""Cores and memory that this process may use, limits of cgroups included."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

NO_LIMIT = 2**60  # a cgroup without a limit has one about as large as an address


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory in bytes; `limited` if a limit on this process, not the machine, decides."""

    total: int | None
    available: int | None
    limited: bool = False


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
    info = table(root / "proc/meminfo", unit=1024)
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
            most = next(iter(_numbers(folder / limit)), NO_LIMIT)
            if most >= NO_LIMIT:
                continue
            if total is None or most < total:
                total, limited = most, True
            used = next(iter(_numbers(folder / usage)), 0)
            stat = table(folder / "memory.stat")
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


def table(file: Path, unit: int = 1) -> dict[str, int]:
    """Return the numbers of a file of the kernel by their names; empty without the file."""
    try:
        rows = [re.split(r"[:\s]+", line) for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) * unit for row in rows if len(row) > 1 and row[1].isdigit()}
