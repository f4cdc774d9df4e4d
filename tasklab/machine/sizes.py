"""Bytes as texts."""

from __future__ import annotations

GIB = 2**30


def gib(count: float) -> str:
    """Return bytes in GiB, rounded up to a tenth below ten.

    >>> gib(2**30), gib(150 * 2**20), gib(97.2 * 2**30)
    ('1.0 GiB', '0.2 GiB', '98 GiB')
    """
    tenths = -(-count * 10 // GIB)
    return f"{tenths / 10:.1f} GiB" if tenths < 100 else f"{-(-count // GIB):.0f} GiB"


def too_large(needed: float, there: float) -> tuple[str, str]:
    """Return needed and available bytes as two texts that differ.

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
