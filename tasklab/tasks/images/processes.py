"""Processes that decode chunks of one job.

They are commands of their own that read the number of a chunk and answer with its checksum:
neither forked, which does not go with the threads of torch, nor started by `multiprocessing`,
which would run the user's script again. Ctrl-C is for the process that started them; when it ends,
however it ends, so do they. Nothing here needs torch, so that they start in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from tasklab.tasks.images.chunks import BadImagesError, Job

Answer = dict[str, Any]  # `chunk` and `sha256` or `bad`; or `error`, with `errno` if it has one
_PATIENCE = 10  # seconds that a process which answers no more may take to end


def answers(job: Job, chunks: Iterable[int]) -> Iterator[Answer]:
    """Decode one chunk after the other in this process, and yield how it went."""
    for chunk in chunks:
        try:
            yield {"chunk": chunk, "sha256": job.decode(chunk)}
        except BadImagesError as error:
            yield {"chunk": chunk, "bad": list(error.lines)}
        except OSError as error:
            yield {"errno": error.errno, "error": error.strerror or str(error)}


def spread(work: Path, chunks: Sequence[int], jobs: int) -> Iterator[Answer]:
    """Let processes decode chunks, and yield how each went, in any order.

    Args:
        work: Folder of the job.
        chunks: Their numbers.
        jobs: How many processes.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for chunk in chunks:
        todo.put(chunk)
    coming: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    command = [sys.executable, "-m", "tasklab.tasks.images.processes", str(work)]
    home = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    with contextlib.ExitStack() as stack:
        for _ in range(jobs):
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": path},
                    start_new_session=True,  # the terminal's Ctrl-C is not for them
                )
            )
            stack.callback(_end, process)  # runs before Popen waits for it
            threading.Thread(target=_feed, args=(process, todo, coming), daemon=True).start()
        for _ in chunks:
            yield coming.get()


def _end(process: subprocess.Popen) -> None:
    process.kill()
    with contextlib.suppress(OSError):  # a number that it never read
        process.stdin.close()


def _feed(process: subprocess.Popen, todo: queue.SimpleQueue, coming: queue.SimpleQueue) -> None:
    """Hand one process a chunk after the other."""
    while True:
        try:
            chunk = todo.get_nowait()
        except queue.Empty:
            return
        try:
            process.stdin.write(f"{chunk}\n")
            process.stdin.flush()
            coming.put(json.loads(process.stdout.readline()))
        except (OSError, ValueError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            coming.put({"error": _ended(process.returncode)})
            return


def _ended(code: int | None) -> str:
    how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
    memory = ", and if memory was short, with fewer jobs" if code == -9 else ""
    kept = "What is decoded is kept: start again"
    return f"a process that decodes images ended ({how}). {kept}{memory}."


def _serve(work: Path) -> None:
    """Answer for each number of a chunk that is read, until there is nobody who asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where there are no sessions
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, todo), daemon=True).start()
    try:
        with Job(work) as job:
            for answer in answers(job, iter(todo.get, None)):
                print(json.dumps(answer), flush=True)
    except BrokenPipeError:
        pass
    except Exception as error:
        message = f"a process that decodes images failed ({type(error).__name__}: {error})."
        print(json.dumps({"error": message}), flush=True)
    os._exit(1)  # without a last word to a pipe that nobody reads


def _listen(lines: TextIO, todo: queue.SimpleQueue) -> None:
    for line in lines:
        todo.put(int(line))
    os._exit(0)  # whoever asked has ended


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
