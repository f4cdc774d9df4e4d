"""Hashes of the code behind a result, which only a change of the code changes.

Comments, docstrings, formatting, imports and declarations of experiments do not count.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # above the package


def code_of(
    modules: Iterable[str],
    follow: Callable[[str], bool] | None,
    known_as: Callable[[str], str] = str,
) -> str:
    """Return a hash of modules' code and of the code that they import.

    Args:
        modules: Names of modules.
        follow: Whether an imported module of this package counts, with its own imports; `None`
            where imports are not read.
        known_as: A module's name -> its name in the hash, which stays when a module moves.
    """
    seen, waiting = set[str](), sorted(modules)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [one for one in _imported(name) if follow(one)] if follow else []
    lines = sorted(f"{known_as(name)} {_hash(name)}" for name in seen)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def modules(without: Iterable[str] = ()) -> list[str]:
    """Return the names of all modules of the package."""
    files = [file.relative_to(ROOT).with_suffix("") for file in ROOT.glob("tasklab/**/*.py")]
    return [".".join(file.parts) for file in files if file.parts[1] not in set(without)]


def file_of(name: str) -> Path | None:
    """Return a module's file; `None` if no module has this name."""
    place = ROOT.joinpath(*name.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def bare(tree: ast.AST) -> str:
    """Return a syntax tree as text, without comments, docstrings and imports; change the tree."""
    return ast.dump(_Bare().visit(tree))


def _tree(name: str) -> ast.Module:
    file = file_of(name)
    return ast.parse(file.read_text("utf-8") if file else "")


@functools.cache
def _hash(name: str) -> str:
    return hashlib.sha256(bare(_tree(name)).encode()).hexdigest()


@functools.cache
def _imported(name: str) -> tuple[str, ...]:
    """Return the modules of this package that a module imports; a package's name is all of it."""
    found = dict[str, None]()
    for node in _running(_tree(name)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tasklab"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found |= dict.fromkeys([whole] if file_of(whole) else _all_of(node.module or ""))
        elif isinstance(node, ast.Import):
            found |= {one.name: None for one in node.names if one.name.startswith("tasklab.")}
    return tuple(found)


def _all_of(name: str) -> list[str]:
    place = ROOT.joinpath(*name.split("."))
    if not place.is_dir():
        return [name]
    return [f"{name}.{file.stem}" for file in sorted(place.glob("*.py"))]


def _running(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from _running(child)


class _Bare(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:  # noqa: N802
        constant = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if constant else self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:  # noqa: N802
        kept = [one for one in node.decorator_list if "experiment(" not in ast.unparse(one)]
        node.decorator_list = kept
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:  # noqa: N802
        """Drop the import: imported code counts by itself."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:  # noqa: N802
        """Drop the import, as above."""
