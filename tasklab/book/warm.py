"""Kernels that begin with the package loaded: forks of a process that has imported it once.

Of each of the report's twenty notebooks and pages, importing is the longest part but for training.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing.util
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner

from tasklab.evidence.study.workers import end_with_parent
from tasklab.storage import atomic

_ROOM = ".tasklab-kernel"  # begins the names of their folders
_LONGEST = 100  # characters: the name of a socket has at most 107


class Manager(AsyncKernelManager):
    """A manager of such kernels, for papermill's `kernel_manager_class`.

    They talk through files: a port that is free when a notebook asks for one may be another's, of
    the same report, when its kernel comes to use it.
    """

    def __init__(self, **kw: Any) -> None:
        folder = tempfile.mkdtemp(dir=_room())
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        place, files = f"{folder}/k", {"connection_file": f"{folder}/kernel.json"}
        files |= {"transport": "ipc", "ip": place} if len(place) < _LONGEST else {}
        super().__init__(**files | kw)

    async def _async_launch_kernel(self, kernel_cmd: list[str], **kw: Any) -> None:
        kernel = self.provisioner
        assert isinstance(kernel, LocalProvisioner)
        file = kernel_cmd[kernel_cmd.index("-f") :]  # of the connection, and options
        process = _start(_run, file, kw["env"], os.getcwd())
        kernel.process = cast(subprocess.Popen, _Child(process))
        kernel.pid = process.pid
        self._reconcile_connection_info(kernel.connection_info)


def _room() -> Path:
    """Return this process's folder of temporary files, which the next one removes after a kill."""
    return _kept()[0]


@functools.cache
def _kept() -> tuple[Path, contextlib.ExitStack]:
    """Return the folder and the stack that removes it; a fork, without finalizers, keeps both."""
    stack = contextlib.ExitStack()
    multiprocessing.util.Finalize(None, stack.close, exitpriority=-200)  # also at a worker's end
    return stack.enter_context(atomic.room(Path(tempfile.gettempdir()), _ROOM)), stack


@functools.cache
def _server() -> Any:
    context = multiprocessing.get_context("forkserver")
    usual = tempfile.tempdir
    if len(str(_room())) < _LONGEST - 40:  # its socket is in a folder of multiprocessing's
        tempfile.tempdir = str(_room())
        multiprocessing.util.get_temp_dir()
        tempfile.tempdir = usual
    context.set_forkserver_preload(["open_clip", "tasklab.book.loaded"])
    return context


def _start(target: Callable[..., None], *args: Any) -> Any:
    process = _server().Process(target=_guarded, args=(target, *args))
    process.start()
    atexit.register(process.kill)  # an interrupted command does not wait for what a kernel computes
    return process


def _guarded(target: Callable[..., None], *args: Any) -> None:
    """Run a kernel that ends when the process that asked for it is gone, killed or not.

    The forks' server lives as long as they do, so that it is no parent to watch.
    """
    end_with_parent()
    target(*args)


def _run(argv: list[str], env: dict[str, str], cwd: str) -> None:
    from ipykernel.kernelapp import IPKernelApp

    os.setsid()  # signals to its group are for it alone
    os.chdir(cwd)
    os.environ.update(env | {"JPY_PARENT_PID": str(os.getppid())})  # it ends with its parent
    IPKernelApp.launch_instance(argv)


class _Child:
    """A process as `subprocess.Popen` has it, as far as a provisioner looks."""

    stdin = stdout = stderr = None

    def __init__(self, process: Any) -> None:
        self._process, self.pid = process, process.pid
        self.kill, self.terminate = process.kill, process.terminate

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)
