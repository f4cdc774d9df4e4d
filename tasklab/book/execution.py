"""One execution of a chapter, or of a page with code, stored like any other result."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tasklab import book, progress
from tasklab.bench.parameters import Parameters
from tasklab.book import summary
from tasklab.book.captions import KEY
from tasklab.book.sources import checksum, fingerprint, measured, read_notebook
from tasklab.errors import TasklabError, first_line
from tasklab.evidence.records.statements import SITE
from tasklab.evidence.records.table import provenance

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from tasklab.storage.store import Artifact, Store

KIND = "chapters"  # of artifact
# Of kernels: figures are outputs, also where the user's own matplotlib draws elsewhere.
INLINE = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", SITE: "1"}


def quiet_kernels() -> None:
    """Configure kernels that Jupyter Book starts: figures, and no progress bars."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.update(INLINE)


def asked(source: Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that determines the outputs of a chapter or page: their key in the store."""
    pages = {"benchmarks": checksum(measured())} if source.suffix == ".md" else {}
    cells = read_notebook(source).cells
    return {
        **pages,
        "cells": [cell.source for cell in cells],
        "captions": [cell.metadata[KEY] for cell in cells if KEY in cell.metadata],
        "parameters": {
            name: str(value) if isinstance(value, Path) else value
            for name, value in dataclasses.asdict(Parameters(**parameters)).items()
            if name != "store_root"
        },
        "package": fingerprint(),
        "versions": {name: provenance()[name] for name in ("python", "torch", "open_clip")},
    }


def executed(
    store: Store,
    config: Mapping[str, Any],
    source: Path,
    target: Path,
    *,
    parameters: Mapping[str, object],
    log: Path,
) -> Artifact:
    """Execute a chapter, or return its outputs from the store.

    Args:
        store: Keeps the outputs.
        config: All that determines them: their key.
        source: The notebook.
        target: Its executed copy.
        parameters: Values for its cell of parameters.
        log: File that progress is appended to.

    Returns:
        The artifact, whose record has `notebook` and `seconds`.

    Raises:
        TasklabError: As `execute` does; no output is stored then.
    """

    def make(_: Path) -> tuple[dict, dict]:
        start = time.perf_counter()
        with log.open("a", encoding="utf-8") as file:
            notebook = execute(source, target, parameters=parameters, log=file)
        return {}, {"notebook": notebook, "seconds": time.perf_counter() - start}

    return store.get(KIND, config, make)


def execute(
    source: Path, target: Path, *, parameters: Mapping[str, object], log: TextIO
) -> NotebookNode:
    """Execute one chapter, with its progress on the terminal and in the log.

    Args:
        source: The notebook.
        target: Its executed copy, which also shows the cell that failed.
        parameters: Values for its cell of parameters.
        log: Open file for progress.

    Raises:
        TasklabError: If a cell fails (the message names chapter, cell and error), or the kernel
            ends.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    target.parent.mkdir(parents=True, exist_ok=True)
    warm = {"kernel_manager_class": book.warm.Manager} if sys.platform == "linux" else {}
    quiet = {progress.FORM: "lines", **INLINE}  # progress on the kernel's stderr, read here
    quiet[summary.FILE] = os.environ.get(summary.FILE, "")  # none beside the sources
    before = {name: os.environ.get(name) for name in quiet}
    os.environ.update(quiet)
    try:
        notebook = papermill.execute_notebook(
            read_notebook(source),
            target,
            parameters=dict(parameters),
            cwd=source.parent,
            progress_bar=False,  # the kernel tells what it does; several may run at once
            stderr_file=_Tee(log, source.stem),
            stdout_file=log,
            **warm,
            start_timeout=600,  # a busy machine may need minutes to start a kernel
            request_save_on_cell_execute=False,  # it writes all pictures again after each cell
            extra_arguments=["--log-level=CRITICAL"],  # the kernel warns of its transport
        )
    except PapermillExecutionError as error:
        raise TasklabError(
            f"{source.name} stopped in code cell {error.exec_count} with {error.ename}: "
            f"{error.evalue} (the executed copy with the traceback: {target})"
        ) from error
    except RuntimeError as error:  # of nbclient: a kernel that was killed
        raise TasklabError(
            f"{source.name} stopped because its kernel ended ({first_line(error)}): was there "
            "enough memory? The same command begins it anew."
        ) from error
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    for cell in notebook.cells:  # progress is in the log, and nothing to read afterwards
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    return notebook


class _Tee:
    """A text stream for the cells' messages: to the terminal and the log, with a chapter's name."""

    def __init__(self, log: TextIO, name: str) -> None:
        self._log, self._name = log, name

    def write(self, text: str) -> int:
        lines = "".join(f"{self._name}: {line}\n" for line in text.splitlines() if line.strip())
        with contextlib.suppress(BrokenPipeError):
            print(lines, end="", file=sys.stderr, flush=True)
        self._log.write(lines)
        return len(text)

    def flush(self) -> None:
        self._log.flush()
