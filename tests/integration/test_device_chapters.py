"""A chapter as a rehearsal on the pretended device, with the smallest model, in this process.

Cells of recorded results are left out: one that neither computes nor gives a name to one that does
has nothing to do with devices.
"""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

import pytest
from matplotlib import pyplot as plt
from papermill.iorw import load_notebook_node

FOLDER = Path(__file__).parents[2] / "notebooks"
CHAPTERS = ("closed_vocab",)
LIVE = {"lab", "labs", "experiments", "analyses", "explore", "tangent", "torch", "mine"}
ON_THE_CPU = {"scratch_linearity", "segments", "emergence", "varied", "theorem"}  # small networks
SETTING = {"model": "mini_xs", "steps": 2}


def names(tree: ast.AST, kind: type) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, kind)}


def made(tree: ast.AST) -> set[str]:
    """Return the names that a cell gives: assigned, imported, defined."""
    found = names(tree, ast.Store)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names}
    return found


def live(cells: list[ast.Module]) -> list[ast.Module]:
    """Return the cells that compute, and those that they take names from."""
    computed, wanted = set(LIVE), []
    for place, cell in enumerate(cells):
        read = names(cell, ast.Load)
        calls = any(isinstance(node, ast.Call) for node in ast.walk(cell))
        if place == 0 or (calls and read & computed) or made(cell) & LIVE:
            wanted.append(place)
            computed |= names(cell, ast.Store)
    needed: set[str] = set()
    for place in reversed(range(len(cells))):
        if place in wanted or made(cells[place]) & needed:
            needed |= names(cells[place], ast.Load) - set(dir(builtins))
            wanted.append(place)
    kept, gone = [], set()
    for place, cell in enumerate(cells):
        calls = {n.attr for n in ast.walk(cell) if isinstance(n, ast.Attribute)}
        if place not in wanted:
            continue
        if calls & ON_THE_CPU or names(cell, ast.Load) & gone:
            gone |= made(cell)
        else:
            gone -= made(cell)
            kept.append(cell)
    return kept


def cells_of(chapter: str) -> list[ast.Module]:
    notebook = load_notebook_node(str(FOLDER / f"{chapter}.ipynb"))
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return live([ast.parse(source) for source in code])


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_rehearsal_runs_on_a_device(chapter, device):
    space = {"__name__": "__main__", "display": lambda *args: None}
    for place, cell in enumerate(cells_of(chapter)):
        exec(compile(cell, f"{chapter}, live cell {place}", "exec"), space)
        if place == 0:
            space.update(SETTING)
        plt.close("all")
    labs = [space["lab"]] if "lab" in space else space["labs"]
    assert {lab.clip.encoder.device.type for lab in labs} == {"cuda"}
