"""The report: all code executed, several notebooks at once, and the site that is built from it."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasklab import machine
from tasklab.bench.parameters import Parameters
from tasklab.book import execution
from tasklab.book.outputs import drop_stale, remember
from tasklab.book.sources import chapters, checksum, computed, find_root, fingerprint, read_notebook
from tasklab.errors import TasklabError
from tasklab.evidence.study.workers import share
from tasklab.models.zoo import small
from tasklab.storage import atomic
from tasklab.storage.store import Artifact, Store

_STAMP = "tasklab.json"
_THREADS = "OMP_NUM_THREADS"


def report(
    preset: str = "quick",
    *,
    parameters: Mapping[str, object] | None = None,
    root: Path | None = None,
    jobs: int | None = None,
) -> Path:
    """Execute every chapter and page with code, build the site, and return its landing page's path.

    Where nothing has changed since the site was built, nothing runs. Of several reports in one
    clone, the later ones wait for the first.

    Args:
        preset: `"quick"` (the sources' own default) or `"full"`.
        parameters: More of the chapters' parameters, e.g. `{"model": "vitb32", "steps": 2}`.
        root: The clone's top folder; default: found from here.
        jobs: Notebooks that run at once; default: `usual_jobs`.
    """
    root = root or find_root()
    folder = root / "book" / "_build"
    waiting = functools.partial(print, "waiting for another report in this clone", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic.alone(folder / "report.lock", waiting):
        return _report(preset, parameters or {}, root, jobs)


def _report(preset: str, parameters: Mapping[str, object], root: Path, jobs: int | None) -> Path:
    import nbformat

    given: dict[str, Any] = {"preset": preset} if preset != "quick" else {}
    given |= dict(parameters)
    settled = Parameters(**given)
    store = Store(settled.store_root)
    passed = {source: given for source in chapters(root)} | {page: {} for page in computed(root)}
    folder = root / "book" / "_build"
    page = folder / "html" / "index.html"
    asked = {source: execution.asked(source, values) for source, values in passed.items()}
    waiting = [source for source in asked if not store.find(execution.KIND, asked[source])]
    keys = {source.stem: store.key(config) for source, config in asked.items()}
    if not waiting and is_current(root) and _stamp(root)["chapters"] == keys:
        print(f"nothing has changed since the site was built: open {page.as_uri()}", flush=True)
        return page
    copies, cache, log = folder / "executed", folder / ".jupyter_cache", folder / "report.log"
    copies.mkdir(parents=True, exist_ok=True)
    state = fingerprint(root)  # now: a change while the chapters run makes the site stale
    (folder / _STAMP).unlink(missing_ok=True)
    log.write_text("")
    begun = time.perf_counter()
    copy = {source: copies / f"{source.stem}.ipynb" for source in asked}
    for stale in copy.values():
        stale.unlink(missing_ok=True)
    run = [
        (store, asked[source], source, copy[source], passed[source], log)
        for source in longest_first(waiting)
    ]
    execute(run, jobs or usual_jobs(settled, len(run)))
    drop_stale(cache)
    for source, config in asked.items():
        kept = store.find(execution.KIND, config)
        assert kept is not None  # it is there or was just made
        notebook = nbformat.from_dict(kept.record["notebook"])
        nbformat.write(notebook, copy[source])
        remember(notebook, source, cache, kept.record["seconds"])
        if source not in waiting:
            _log_run(source, kept, log, " when it ran last (nothing has changed since)")
    start = time.perf_counter()
    build(root)
    stamp = {"sources": state, "chapters": keys, "site": _files(page.parent)}
    (folder / _STAMP).write_text(json.dumps(stamp))
    _say(f"site built in {time.perf_counter() - start:.0f} s", log)
    _say(f"done in {time.perf_counter() - begun:.0f} s; open {page.as_uri()}", log)
    return page


def usual_jobs(parameters: Parameters, count: int) -> int:
    """Return the number of notebooks to run at once: one on each core for a small model.

    A small model cannot keep two threads busy: two processes of one thread each do
    nearly twice the work. Full-size models, and those on a device of its own, come one by one.
    """
    if parameters.device != "cpu" or not small(parameters.model):
        return 1
    return max(1, min(count, int(machine.cores())))


def longest_first(sources: Sequence[Path]) -> list[Path]:
    """Return notebooks by their number of code cells, so that the last one to end is short."""

    def cells(source: Path) -> int:
        return sum(cell.cell_type == "code" for cell in read_notebook(source).cells)

    return sorted(sources, key=cells, reverse=True)


def execute(run: Sequence[tuple], jobs: int) -> None:
    """Execute notebooks, in processes that share the cores if several are to run at once.

    They share the store too: of two that need one run, one makes it while the other
    computes its other runs (`Store.first_free`).

    Raises:
        TasklabError: One failed; the others are ended.
    """
    if jobs == 1 or len(run) == 1:
        for one in run:
            _execute(*one)
        return
    threads = max(1, int(machine.cores()) // jobs)
    tasks = [(*one, threads) for one in run]
    share(_execute, tasks, jobs, title="notebooks", unit="notebook", progress=False)


def _execute(
    store: Store,
    config: Mapping[str, Any],
    source: Path,
    target: Path,
    given: Mapping[str, object],
    log: Path,
    threads: int | None = None,
) -> None:
    if threads is not None:
        os.environ.setdefault(_THREADS, str(threads))  # read when the kernel starts
    made = execution.executed(store, config, source, target, parameters=given, log=log)
    _log_run(source, made, log)


def _log_run(source: Path, kept: Artifact, log: Path, how: str = "") -> None:
    cells, seconds = len(kept.record["notebook"]["cells"]), kept.record["seconds"]
    _say(f"{source.stem}: {cells} cells in {seconds:.0f} s{how}", log)


def build(root: Path) -> Path:
    """Build the site with warnings as errors and return its landing page.

    Raises:
        TasklabError: The build failed; carries its last lines.
    """
    tool = Path(sys.executable).with_name("jupyter-book")
    options = ["--all", "-W", "-n", "--keep-going"]
    result = subprocess.run(
        [str(tool), "build", *options, "book/"],
        cwd=root,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )
    (root / "book" / "_build" / "build.log").write_text(result.stdout, "utf-8")
    page = root / "book" / "_build" / "html" / "index.html"
    if result.returncode or not page.is_file():
        lines = result.stdout.splitlines()
        said = re.compile("WARNING|ERROR|CRITICAL")
        problems = [line for line in lines if said.search(line)] or lines[-20:]
        raise TasklabError(
            "\n  ".join(["the site did not build (book/_build/build.log):", *problems])
        )
    return page


def _end_with_parent() -> None:
    """End this process with its parent, which may begin to build anew."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def is_current(root: Path) -> bool:
    """Return whether `report` built the site from the sources and package as they are."""
    stamp, site = _stamp(root), root / "book" / "_build" / "html"
    return stamp.get("sources") == fingerprint(root) and stamp["site"] == _files(site)


def _stamp(root: Path) -> dict[str, Any]:
    try:
        return json.loads((root / "book" / "_build" / _STAMP).read_bytes())
    except (OSError, ValueError):
        return {}


def _files(folder: Path) -> str:
    return checksum(path for path in folder.rglob("*") if path.is_file())


def _say(text: str, log: Path) -> None:
    print(text, flush=True)
    with log.open("a", encoding="utf-8") as file:
        print(text, file=file)
