"""Settings of glibc's malloc."""

from __future__ import annotations

import ctypes
import functools
import gc
import platform

_asked: list[bool] = []  # of `keep_freed_memory`
# By default glibc maps and unmaps large buffers in every training step, and each page is faulted in
# anew: on virtual machines a step can take several times as long.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4  # from malloc.h
_LARGE = 2**22  # bytes


@functools.cache
def keep_freed_memory(keep: bool = True) -> bool:
    """Configure glibc's malloc to reuse freed blocks; return whether that worked.

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
