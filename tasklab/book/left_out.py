"""Cells that need training, where vectors are published: one line in place of an error.

Later cells that use the variables of such a cell are left out too, without a line of their own.
"""

from __future__ import annotations

import ast
import traceback
from typing import Any

from tasklab.bench.published_vectors import leave_out
from tasklab.errors import LeftOutError
from tasklab.evidence.experiments.registry import REGISTRY
from tasklab.evidence.figures.style import NothingToDrawError

_SKIPPED = (LeftOutError, NothingToDrawError)  # of a figure whose methods are all left out


def skip_cells(shell: Any) -> None:
    """Skip the cells of a kernel that raise a `LeftOutError`, and those that depend on them."""
    if shell is None or getattr(shell, "_tasklab_leaves_out", False):
        return
    shell._tasklab_leaves_out = True
    lost: set[str] = set()

    def handle(shell: Any, kind: type, error: BaseException, trace: Any, **_: Any) -> None:
        if isinstance(error, _SKIPPED):
            frames = (frame.name for frame in traceback.extract_tb(error.__traceback__))
            part = next((f"`{name}`, " for name in frames if name in REGISTRY), "")
            leave_out(f"{part}{str(error).rstrip('.')}")
        elif getattr(error, "name", None) not in lost:
            shell.showtraceback((kind, error, trace))

    def ran(result: Any) -> None:
        error = result.error_in_exec
        assigned = _assigned(result.info.raw_cell)
        if isinstance(error, _SKIPPED) or getattr(error, "name", None) in lost:
            result.error_in_exec = None  # or the cell would count as failed
            for name in assigned:
                shell.user_ns.pop(name, None)
            lost.update(assigned)
        elif error is None:
            lost.difference_update(assigned)

    shell.set_custom_exc((*_SKIPPED, NameError), handle)
    shell.events.register("post_run_cell", ran)


def _assigned(cell: str) -> set[str]:
    """Return the names that a cell assigns at its top level, functions and imports left aside."""
    try:
        body = ast.parse(cell).body
    except (SyntaxError, ValueError):  # magics
        return set()
    statements = [one for one in body if not isinstance(one, ast.FunctionDef | ast.ClassDef)]
    targets: list[ast.AST | None] = []
    for node in (node for one in statements for node in ast.walk(one)):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
            targets.append(node.target)
        elif isinstance(node, ast.withitem):
            targets.append(node.optional_vars)
    names = (part for one in targets if one is not None for part in ast.walk(one))
    return {n.id for n in names if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
