"""Every chapter as a rehearsal on the pretended device, with the smallest model, in this process.

Of a chapter's cells, what computes runs, and what that takes its names from. Drawings, tables and
sentences do not, nor what reads recorded results: none of it has to do with devices.
"""

from __future__ import annotations

import ast
import collections
import functools
import itertools
from pathlib import Path

import pytest
from papermill.iorw import load_notebook_node

from tasklab import placement
from tasklab.experiments import lab as labs
from tasklab.experiments import small_networks

FOLDER = Path(__file__).parents[2] / "notebooks"
CHAPTERS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
SHOWS = {"figures", "page", "recorded", "study", "evidence"}
WITHOUT = {"scratch_linearity", "segments", "emergence", "varied", "theorem"}  # small: on the CPU
SETTING = {"model": "mini_xs", "steps": 1}
FROM_RANDOM = {"linear_layers": {"init": "random"}}  # in place of pre-trained weights


def names(tree: ast.AST, kind: type) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, kind)}


def root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def inner(tree: ast.AST) -> set[str]:
    """Return the names that a statement gives to itself alone."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.comprehension):
            found |= names(node.target, ast.Store)
        elif isinstance(node, ast.FunctionDef | ast.Lambda):
            found |= {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
        elif isinstance(node, ast.For):
            found |= names(node, ast.Store)
    return found | (names(tree, ast.Store) if isinstance(tree, ast.FunctionDef) else set())


def made(tree: ast.stmt) -> set[str]:
    """Return the names that a statement gives to those after it."""
    if isinstance(tree, ast.FunctionDef):
        return {tree.name}
    if isinstance(tree, ast.Import | ast.ImportFrom):
        return {(one.asname or one.name).partition(".")[0] for one in tree.names}
    return names(tree, ast.Store) - (set() if isinstance(tree, ast.For) else inner(tree))


def undrawn(statement: ast.stmt) -> list[ast.stmt]:
    """Return a statement, or of one that shows something the arguments that compute."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return [statement]
    call = statement.value
    if root(call.func) not in SHOWS:
        return [statement]
    arguments = [*call.args, *(one.value for one in call.keywords)]
    calls = [x for x in arguments if any(isinstance(n, ast.Call) for n in ast.walk(x))]
    return [part for x in calls for part in undrawn(ast.fix_missing_locations(ast.Expr(x)))]


def live(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements that take nothing from what is left out."""
    kept, gone = [], set()
    for one in statements:
        calls = {root(n.func) for n in ast.walk(one) if isinstance(n, ast.Call)}
        names_of = {n.attr for n in ast.walk(one) if isinstance(n, ast.Attribute)}
        if calls & SHOWS or names_of & WITHOUT or names(one, ast.Load) & gone - inner(one):
            gone |= made(one)
        else:
            gone -= made(one)
            kept.append(one)
    return kept


class Live(ast.NodeTransformer):
    """Replace `page.results(lab, rows, run, ...)` by what `live="all"` calls: `run(lab, ...)`."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if ast.unparse(node.func) != "page.results":
            return node
        lab, _, run, *rest = node.args
        return ast.copy_location(ast.Call(run, [lab, *rest], node.keywords), node)


@functools.cache
def source(chapter: str) -> list[ast.Module]:
    """Return a chapter's cells of code; the first has its parameters."""
    notebook = load_notebook_node(str(FOLDER / f"{chapter}.ipynb"))
    cells = [ast.parse(cell.source) for cell in notebook.cells if cell.cell_type == "code"]
    return [ast.fix_missing_locations(Live().visit(cell)) for cell in cells]


def statements_of(chapter: str) -> list[ast.stmt]:
    return live(
        [part for cell in source(chapter)[1:] for one in cell.body for part in undrawn(one)]
    )


def experiments_in(trees: list[ast.AST]) -> set[str]:
    found = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    rooms = ("experiments", "explore")
    return {n.attr for n in found if isinstance(n.value, ast.Name) and n.value.id in rooms}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_no_experiment_is_left_out(chapter):
    left = experiments_in(source(chapter)) - experiments_in(statements_of(chapter))
    assert left <= WITHOUT | {"scheme_models"}  # which are names


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a store of these chapters alone: what the CPU computed is not found in it."""
    return str(tmp_path_factory.mktemp("device"))


class Forgets(dict):
    def __setitem__(self, key, value):
        pass


@pytest.fixture
def half_full(monkeypatch):
    """Have a device on which every other vector and every other task's images fit.

    What does not stays on the CPU, and shows who forgets to move it.
    """
    turns = collections.defaultdict(lambda: itertools.cycle([False, False, True, True]))
    monkeypatch.setattr(placement, "_KEPT", Forgets())  # so it is asked twice for each
    monkeypatch.setattr(placement, "fits", lambda size, device: next(turns[size]))


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_rehearsal_runs_on_a_device(chapter, store, device, half_full, monkeypatch):
    monkeypatch.setattr(labs, "_light", lambda parameters: parameters.rehearsal)
    monkeypatch.setattr(labs, "REHEARSED_TASKS", 3)
    monkeypatch.setattr(small_networks, "seconds_a_step", lambda *args: 0.0)
    space = {"__name__": "__main__", "display": lambda *args: None}
    exec(compile(source(chapter)[0], f"{chapter}, parameters", "exec"), space)
    space.update(SETTING | FROM_RANDOM.get(chapter, {}), store_root=store)
    for one in statements_of(chapter):
        exec(compile(ast.Module([one], []), f"{chapter}: {ast.unparse(one)}", "exec"), space)
    labs_there = [space["lab"], *space.get("labs", [])]
    assert {lab.clip.encoder.device.type for lab in labs_there} == {"cuda"}
