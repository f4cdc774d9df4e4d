"""The commands `tasklab store verify`, `gc` and `size`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro

from tasklab.errors import TasklabError, real
from tasklab.machine import gib
from tasklab.storage import folders, upkeep
from tasklab.storage.store import Store


def store(
    what: tyro.conf.Positional[Literal["verify", "gc", "size"]],
    *,
    store_root: Path | str | None = None,
    dry_run: bool = False,
    days: float | str | None = None,
) -> int | None:
    """Check, clean or measure the folder of results.

    Args:
        what: verify compares every result with its checksums; gc removes files of killed
            processes and damaged results; size lists the largest entries.
        store_root: Folder of results.
        dry_run: Of gc: list removable entries only.
        days: Of gc: unfinished computations go after so many days. By default 7.
    """
    if what != "gc" and (dry_run or days is not None):
        raise TasklabError(f"--dry-run and --days belong to `tasklab store gc`, not to {what}.")
    if what == "size":
        for root in (folders.store(store_root), folders.data()):
            kinds = upkeep.sizes(root)
            print(f"{root}: {gib(sum(taken for _, taken in kinds.values()))}")
            for kind, (count, taken) in kinds.items():
                print(f"  {gib(taken):>9}  {kind} ({count})")
        return None
    store = Store(store_root)
    if what == "gc":
        limit = upkeep.DAYS if days is None else real("days", days)
        removed = upkeep.collect(store, days=limit, dry_run=dry_run)
        for leftover in removed:
            print(f"{leftover.path}: {leftover.why}, {gib(leftover.size)}")
        done = "could be removed" if dry_run else "removed"
        print(f"{len(removed)} leftovers {done}, {gib(sum(one.size for one in removed))}")
        return None
    count, damaged = upkeep.verify(store)
    for path, what in damaged.items():
        print(f"{path}: {what} is not what was written")
    if not damaged:
        print(f"{count} results in {store.root}, all as they were written")
        return None
    print(
        f"{len(damaged)} of {count} results in {store.root} are damaged: each is set aside and "
        "made again when it is asked for"
    )
    return 1
