"""Describe where numbers come from: versions, commit and machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasklab import __version__, machine


def provenance(
    extra: Mapping[str, Any] | None = None,
    *,
    gpu: str | None = None,
    threads: int | None = None,
    preset: str | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Return the provenance of a measurement, to judge or repeat it.

    Args:
        extra: Further entries, e.g. the configuration; they win over the others.
        gpu: Name of the accelerator (this module does not import torch).
        threads: Of a process: sums in another order are rounded otherwise.
        preset: `"quick"` or `"full"`; `None` outside of a chapter.
        seconds: Wall time of the study.
    """
    installed = machine.versions()
    return {
        "tasklab": __version__,
        "commit": _commit(Path(__file__)),
        "python": platform.python_version(),
        **{name: installed[name] for name in ("torch", "open_clip")},
        "machine": {
            "cpu": _cpu("model name") or platform.processor() or platform.machine(),
            "make": _cpu("vendor_id"),
            "cores": os.cpu_count(),
            "threads": threads,
            "ram_gib": _ram(),
            "gpu": gpu,
            **({} if gpu is None else {"driver": machine.driver()}),
        },
        "platform": f"{platform.system()} {platform.machine()}",
        "utc": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "preset": preset,
        "seconds": seconds,
        **(extra or {}),
    }


def _commit(file: Path) -> str | None:
    def git(*words: str) -> str:
        call = ["git", "-C", str(file.parent), *words]
        return subprocess.run(call, capture_output=True, text=True, check=True, timeout=5).stdout

    try:
        # A package installed inside another project's repository must not report its commit.
        git("ls-files", "--error-unmatch", file.name)
        dirty = "+dirty" if git("status", "--porcelain", "--untracked-files=no").strip() else ""
        return git("rev-parse", "--short", "HEAD").strip() + dirty
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu(field: str) -> str | None:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith(field):
                return line.partition(":")[2].strip()
    return None


def _ram() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None
