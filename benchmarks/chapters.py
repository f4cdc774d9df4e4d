"""Where the time of the chapters goes: processor seconds of cells and kinds of work, and memory.

    python benchmarks/chapters.py                      all chapters, one after another, from nothing
    python benchmarks/chapters.py tangent --set model=vitb32 init=random steps=2    a rehearsal
    python benchmarks/chapters.py ctl --set model=vitl14 init=random steps=20 --minutes 5    a GPU's

Processor seconds of the kernel are what a cell needs whoever else computes on the machine; each
chapter runs in one thread, as in the build, or in `--threads`. A cell's seconds are shared out by
what it adds to the store, each thing with the seconds that making it took: fine-tuning (runs, and
networks from scratch), probes, and measuring (records, features and costs). Up to the lab, imports
and loading, is `start`; all else, drawing figures above all, `the rest`. Rows of other chapters,
parameters, commits and stores stay in the file.

`phases` shares the clock out by what the chapter's main thread does: hashing, finiteness, files,
vectors, training, passes, ... (`benchmarks/phases.py`); `busy` is the share of it in which a GPU
ran a kernel. `--minutes` stops a chapter there and reports what it did so far. `compiled` says
which fine-tunings take compiled blocks (`tasklab.tuning.compiled`).
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from tasklab.book import execution, sources
from tasklab.evidence.records.table import provenance
from tasklab.storage.store import Store
from tasklab.tuning import compiled

HERE = Path(__file__).parent
TOLD = 3.0  # seconds of a cell that are printed
KEY = ("chapter", "parameters", "commit", "store", "threads")
START, REST = "start", "the rest"
WORK = {  # kinds of artifacts
    "finetune": "fine-tuning",
    "scratch": "fine-tuning",
    "probe": "probes",
    **dict.fromkeys(("records", "features", "tangent_features", "cost"), "measuring"),
}


def profiled(source: Path, parameters: dict[str, Any], seconds: float = math.inf) -> dict[str, Any]:
    """Execute a chapter and return its cells' seconds, its phases, and its kernel's memory in GiB.

    Args:
        source: The notebook.
        parameters: In place of its own.
        seconds: After which the chapter is stopped, wherever it is.
    """
    notebook = parameterize_notebook(load_notebook_node(str(source)), parameters)
    client = NotebookClient(
        notebook,
        timeout=None,
        interrupt_on_timeout=True,
        resources={"metadata": {"path": str(source.parent)}},
    )
    until, whole = time.perf_counter() + seconds, True
    cells: list[dict[str, Any]] = []
    store, seen, section, opened = Store(), set[tuple[str, str]](), "", False
    added(store, seen)

    def peak() -> float:
        """Return the kernel's most memory in GiB since it was last asked (Linux alone)."""
        process = Path(f"/proc/{client.km.provisioner.pid}")
        lines = (process / "status").read_text().splitlines()
        most = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
        (process / "clear_refs").write_text("5")  # from here on anew
        return round(int(most) / 2**20, 2)

    def used() -> float:
        return sum(psutil.Process(client.km.provisioner.pid).cpu_times()[:4])  # with its children's

    with client.setup_kernel():
        client.wait_for_reply(client.kc.kernel_info())
        asked(client, f"import sys; sys.path.insert(0, {str(HERE)!r})")
        asked(client, "import phases as _phases; _sampler = _phases.Sampler()")
        before = used()
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                section = headed(cell.source) or section
                continue
            began = time.perf_counter()
            client.timeout = max(1, round(until - began)) if math.isfinite(until) else None
            try:
                client.execute_cell(cell, number)
            except (CellExecutionError, CellTimeoutError):
                if time.perf_counter() < until - 1:  # it failed by itself
                    raise
                whole = False
            whole = whole and time.perf_counter() < until
            wall, after = time.perf_counter() - began, used()
            ends, seconds = cell.source.strip().splitlines()[-1], after - before
            if seconds > TOLD:
                print(f"  {seconds:8.1f} {ends[:90]}", flush=True)
            parts = {kind: seconds * min(1.0, s / wall) for kind, s in added(store, seen).items()}
            parts[REST if opened else START] = max(0.0, seconds - sum(parts.values()))
            opened = opened or re.search(r"Lab\(|chapters\.open\(", cell.source) is not None
            cells.append({
                "cell": number, "section": section, "ends": ends, "cpu_s": round(seconds, 2),
                "wall_s": round(wall, 2), "gib": peak(),
                "work": {k: round(s, 2) for k, s in parts.items()},
            })  # fmt: skip
            before = after
            if not whole:
                print(f"  stopped in cell {number} of {len(notebook.cells)}", flush=True)
                break
        found = asked(client, "", "_sampler.report()")
    most = max(cell["gib"] for cell in cells)
    return {"cpu_s": round(before, 1), "most_gib": most, "whole": whole, **found, "cells": cells}


def asked(client: NotebookClient, code: str, value: str = "None") -> Any:
    """Run code in a chapter's kernel without a cell, and return the value of an expression."""
    reply = client.wait_for_reply(
        client.kc.execute(code, silent=not value, user_expressions={"value": value})
    )
    answer = reply["content"].get("user_expressions", {}).get("value", {})
    if reply["content"]["status"] != "ok" or answer.get("status") != "ok":
        raise RuntimeError(f"{code or value}: {reply['content'].get('evalue') or answer}")
    return ast.literal_eval(answer["data"]["text/plain"])


def headed(text: str) -> str:
    """Return the last heading of a text of the second or third level, if there is one."""
    found = re.findall(r"^##{1,2} (.+)$", text, re.MULTILINE)
    return found[-1].strip() if found else ""


def added(store: Store, seen: set[tuple[str, str]]) -> dict[str, float]:
    """Return the seconds of what is new in a store, by kind of work.

    Args:
        store: The store.
        seen: Kinds and keys of what is not new; the new ones are added.
    """
    total: dict[str, float] = {}
    for kind, work in WORK.items():
        for config in store.configs(kind):
            place = kind, store.key(config)
            made = None if place in seen else store.find(kind, config)
            seen.add(place)
            if made is not None:
                total[work] = total.get(work, 0.0) + (made.seconds or 0.0)
    return total


def main() -> None:
    """Profile the chapters in the order of the book, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", help="by default all")
    parser.add_argument("--set", nargs="*", default=[], help="parameters: NAME=VALUE")
    parser.add_argument("--store", help="folder of results; by default an empty one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="then stop a chapter")
    parser.add_argument("--kept", default="empty", help="what the store has, told in the table")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    root = sources.find_root(Path(__file__).parent)
    given = dict(one.split("=", 1) for one in args.set)
    os.environ |= {"OMP_NUM_THREADS": str(args.threads), "TQDM_DISABLE": "1", **execution.INLINE}
    setting = os.environ.get(compiled.SETTING, "")
    ways = {"": "runs of 100 steps and more, on a GPU", "0": "no"}
    notes = provenance({"threads": args.threads, "compiled": ways.get(setting, "yes")})
    with tempfile.TemporaryDirectory() as empty:
        os.environ["TASKLAB_STORE"] = args.store or empty
        for source in sources.chapters(root):
            if args.chapters and source.stem not in args.chapters:
                continue
            row = {"chapter": source.stem, "parameters": given, "store": args.kept, **notes}
            row |= profiled(source, given, 60 * args.minutes)
            print(f"{row['chapter']}: {row['cpu_s']} CPU s, {row['most_gib']} GiB", flush=True)
            print("  " + ", ".join(f"{name} {s} s" for name, s in row["phases"].items()))
            print(f"  compiled: {row['compiled']}")
            if row["busy"] is not None:
                print(f"  the device computes in {100 * row['busy']:.0f} % of {row['wall_s']} s")
            rows = json.loads(args.out.read_text())["rows"] if args.out.is_file() else []
            rows = [one for one in rows if any(one[name] != row[name] for name in KEY)]
            args.out.write_text(json.dumps({"rows": [*rows, row]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
