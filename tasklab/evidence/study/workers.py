"""Processes that share a study's work, and end with it.

Not joblib's: its workers compute on when the process that started them is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from tasklab.errors import TasklabError
from tasklab.progress import track


def share(
    function: Callable[..., Any],
    tasks: Sequence[tuple],
    jobs: int,
    *,
    title: str,
    unit: str,
    progress: bool = True,
    helped: bool = False,
) -> None:
    """Call a function with each task's arguments, in several processes.

    `function` is of a module, so that other processes find it.

    Args:
        function: Module-level function.
        tasks: Arguments, a tuple per call.
        jobs: Number of processes.
        title: Name of the work, before the bar.
        unit: One task, in the text of the bar.
        progress: Whether to show it; not where the processes write to the terminal themselves.
        helped: Whether a process that has no task left begins one that another is at, too: for
            tasks of many parts that processes share out among them through the store.

    Raises:
        TasklabError: If a process was ended from outside; or what the function raises.
    """
    context, before = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start)
    try:
        waiting = [pool.submit(function, *task) for task in tasks]
        for task in reversed(tasks) if helped else ():  # the last begins last
            pool.submit(function, *task)
        for future in track(as_completed(waiting), len(tasks), title, unit=unit, on=progress):
            future.result()
    except BaseException as error:  # do not wait for what is running, nor begin what waits
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
        pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise TasklabError(
                "a worker was ended from outside, perhaps for want of memory: run it "
                "again with fewer --jobs; what was done is kept."
            ) from None
        raise
    pool.shutdown(cancel_futures=True)  # what helped finds the rest in the store


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    end_with_parent()


def end_with_parent() -> None:
    """End this process as soon as its parent process is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker

    def watch() -> None:
        parent.join()  # a pipe that closes with the parent
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
