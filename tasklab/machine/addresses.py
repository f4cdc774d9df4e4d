"""The limit of addresses that a process may take (`ulimit -v`), and its rest."""

from __future__ import annotations

from pathlib import Path

from tasklab.machine.limits import NO_LIMIT, table


def address_space(root: Path = Path("/")) -> int | None:
    """Return the bytes of addresses that this process may still take; `None` without a limit."""
    try:
        import resource  # not on Windows

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
    except (ImportError, OSError, ValueError):
        return None
    if most in (resource.RLIM_INFINITY, -1) or most >= NO_LIMIT:
        return None
    return max(0, most - table(root / "proc/self/status", unit=1024).get("VmSize", 0))
