"""Plant one-line faults in a room, run its tests against each, and print the faults that survive.

    make mutate ROOM=analyses/merging COUNT=100
    python -m tests.mutate bench/contest.py --tests tests/unit/bench/test_contest.py

A fault swaps an operator, a comparison, a mean for a sum, a minimum for a maximum, the branches of
a condition or the arguments of a call, or changes a number. A first run of the tests notes which of
them reach which function, and how long each takes. Every fault then has a forked process, which has
PyTorch already, imports the changed source without writing it, and runs the tests that reach the
function, short ones first. Some survivors change no result; the others need a test.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import importlib.machinery
import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
WARM = ("torch", "open_clip", "scipy.stats", "pandas", "matplotlib.pyplot", "safetensors.torch")
SWAPS: dict[type, tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Pow: ("**", "*"), ast.Mod: ("%", "*"), ast.MatMult: ("@", "*"),
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
NAMES = {
    "mean": "sum", "sum": "mean", "min": "max", "max": "min", "argmin": "argmax", "any": "all",
    "argmax": "argmin", "all": "any", "floor": "ceil", "ceil": "floor", "sqrt": "square",
    "square": "abs", "abs": "square", "exp": "abs", "log": "abs", "clamp_min": "clamp_max",
    "minimum": "maximum", "maximum": "minimum", "cumsum": "cumprod", "geomspace": "linspace",
}  # fmt: skip
SKIPPED = (ast.Raise, ast.Import, ast.ImportFrom, ast.AnnAssign, ast.Assert)


class Fault(NamedTuple):
    """A change of one place of a file."""

    path: Path
    line: int  #: From 1
    begin: int  #: Of the changed bytes in the file
    end: int
    text: str  #: What stands there instead

    def source(self) -> bytes:
        """Return the changed file."""
        whole = self.path.read_bytes()
        return whole[: self.begin] + self.text.encode() + whole[self.end :]

    def diff(self) -> str:
        """Return the change as a unified diff without context."""
        before, after = (x.decode().splitlines() for x in (self.path.read_bytes(), self.source()))
        lines = [*difflib.unified_diff(before, after, n=0, lineterm="")][3:]
        return "\n".join([f"{os.path.relpath(self.path, ROOT)}:{self.line}", *lines])


def faults(path: Path) -> Iterator[Fault]:
    """Yield all faults of a file that compile."""
    whole = path.read_bytes()
    starts = [0]
    for line in whole.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: Any) -> tuple[int, int]:
        begin = starts[node.lineno - 1] + node.col_offset
        return begin, starts[node.end_lineno - 1] + node.end_col_offset

    def between(left: Any, right: Any, old: str, new: str) -> tuple[int, int, str] | None:
        begin, end = span(left)[1], span(right)[0]
        place = whole.find(old.encode(), begin, end)
        return None if place < 0 else (place, place + len(old), new)

    def changes(node: Any) -> Iterator[tuple[int, int, str] | None]:
        if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            yield between(node.left, node.right, *SWAPS[type(node.op)])
        elif isinstance(node, ast.AugAssign) and type(node.op) in SWAPS:
            old, new = SWAPS[type(node.op)]
            yield between(node.target, node.value, f"{old}=", f"{new}=")
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, right, op in zip(sides, sides[1:], node.ops, strict=False):
                yield between(left, right, *SWAPS[type(op)])
        elif isinstance(node, ast.BoolOp):
            yield between(*node.values[:2], *SWAPS[type(node.op)])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            yield (span(node)[0], span(node.operand)[0], "")
        elif isinstance(node, ast.If | ast.IfExp):
            begin, end = span(node.test)
            yield (begin, end, f"not ({whole[begin:end].decode()})")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            value = node.value
            new = not value if isinstance(value, bool) else value + 1 if value in (0, 1) else 0
            yield (*span(node), repr(new))
            if type(value) is float:
                yield (*span(node), repr(2 * value or 1.0))
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            end = span(node)[1]
            yield (end - len(node.attr), end, NAMES[node.attr])
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "any", "all"):
                yield (*span(node.func), NAMES[node.func.id])
            if len(node.args) > 1 and not any(isinstance(x, ast.Starred) for x in node.args[:2]):
                (a, b), (c, d) = map(span, node.args[:2])
                yield (a, d, (whole[c:d] + whole[b:c] + whole[a:b]).decode())

    for node in _reached(ast.parse(whole)):
        for change in filter(None, changes(node)):
            fault = Fault(path, node.lineno, *change)
            try:
                compile(fault.source(), path, "exec")
            except SyntaxError:
                continue
            yield fault


def _reached(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes of code that computes: no annotations, messages of errors, checks of types."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, SKIPPED):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":  # of zip
                continue
            yield child
            yield from _reached(child)


def functions(path: Path) -> list[range]:
    """Return the lines of each outermost function of a file, and of each method."""
    found = []

    def look(nodes: Sequence[ast.stmt]) -> None:
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                found.append(range(first, (node.end_lineno or first) + 1))
            elif isinstance(node, ast.ClassDef):
                look(node.body)

    look(ast.parse(path.read_bytes()).body)
    return found


class Reach:
    """A pytest plugin: which functions of some files each test reaches, and its seconds."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.bodies = {str(path): functions(path) for path in files}
        self.lines: set[tuple[str, int]] = set()
        self.once: set[tuple[str, int]] = set()  # in collection, imports and shared fixtures
        self.tests: dict[str, tuple[float, list[tuple[str, int]]]] = {}
        self.failed: list[str] = []

    def called(self, frame: Any, event: str, _: Any) -> None:
        """Note the function that a call enters."""
        if event == "call" and frame.f_code.co_filename in self.bodies:
            self.lines.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run a test, and note what it reached."""
        self.lines, began = set(), time.perf_counter()
        sys.setprofile(self.called)
        threading.setprofile(self.called)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            seconds = time.perf_counter() - began
            self.tests[item.nodeid] = seconds, sorted({*map(self._body, self.lines)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note tests that fail without a fault."""
        if report.failed:
            self.failed.append(report.nodeid)

    def _body(self, place: tuple[str, int]) -> tuple[str, int]:
        path, line = place
        return path, next((body.start for body in self.bodies[path] if line in body), 0)


def reaching(fault: Fault, tests: dict[str, tuple[float, list]], most: float) -> list[str]:
    """Return the tests that reach a fault's function, short ones first, in `most` seconds."""
    path, bodies = str(fault.path), functions(fault.path)
    place = [path, next((body.start for body in bodies if fault.line in body), 0)]
    chosen, taken = [], 0.0
    for name, (seconds, reached) in sorted(tests.items(), key=lambda one: one[1][0]):
        there = place in reached if place[1] else any(one[0] == path for one in reached)
        if there and (taken + seconds < most or not chosen):
            chosen.append(name)
            taken += seconds
    return chosen


def forked(seconds: float, call: Any, *args: Any) -> int | None:
    """Return the exit status of a call in a process of its own, `None` after some seconds."""
    process = multiprocessing.get_context("fork").Process(target=call, args=args)
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    return process.exitcode


def run(tests: Sequence[str], fault: Fault | None, log: str, plugins: Sequence[Any] = ()) -> int:
    """Run tests in this process, with a fault in the source of its module; print to a file."""
    usual = importlib.machinery.SourceFileLoader.get_code
    if fault is not None:
        source = fault.source()

        def get_code(self: Any, name: str) -> Any:
            if Path(self.path) == fault.path:
                return self.source_to_code(source, self.path)
            return usual(self, name)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    printed = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(printed, stream)
    words = ["-q", "-p", "no:cacheprovider", "--tb=no", *tests]
    words += ["--assert=plain"]  # else files that are named are loaded by pytest's own loader
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins that are loaded
    return int(pytest.main(words if plugins else ["-x", *words], plugins=plugins))


def _noted(tests: Sequence[str], files: Sequence[Path], place: str) -> None:
    reach = Reach(files)
    run(tests, None, f"{place}.log", [reach])
    Path(place).write_text(json.dumps([reach.tests, reach.failed]), "utf-8")


def _tried(tests: Sequence[str], fault: Fault) -> None:
    os._exit(run(tests, fault, os.devnull))


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return the number of faults that survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "room", help="a folder or file of tasklab, e.g. analyses/merging, evidence/records"
    )
    parser.add_argument("--tests", nargs="*", help="by default tests/unit/ROOM, and its doctests")
    parser.add_argument("--count", type=int, default=100, help="faults that are planted")
    parser.add_argument("--seed", type=int, default=0, help="of the sample of faults")
    parser.add_argument("--most", type=float, default=60.0, help="seconds of tests for one fault")
    asked = parser.parse_args(words)
    place = ROOT / "tasklab" / asked.room
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    room = Path(re.sub(r"^(evidence|book|cli)/(?=\w+(/|$))", "", asked.room))
    usual = ROOT / "tests/unit" / (room if place.is_dir() else room.parent)
    tests = asked.tests or [str(usual), str(place)]
    for name in WARM:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        notes = os.path.join(folder, "reached.json")
        if forked(3600, _noted, tests, files, notes) != 0:
            print(Path(f"{notes}.log").read_text("utf-8")[-2000:])
            return 1
        reached, failed = json.loads(Path(notes).read_text("utf-8"))
    if failed or not reached:
        print(f"without a fault {len(failed)} of {len(reached)} tests fail:", *failed, sep="\n")
        return 1
    every = [fault for path in files for fault in faults(path)]
    chosen = random.Random(asked.seed).sample(every, min(asked.count, len(every)))
    print(f"{len(chosen)} of {len(every)} faults, {len(reached)} tests", flush=True)
    survivors = 0
    for number, fault in enumerate(sorted(chosen), 1):
        known, began = reaching(fault, reached, asked.most), time.perf_counter()
        limit = 30 + 10 * sum(reached[name][0] for name in known)
        survived = not known or forked(limit, _tried, known, fault) == 0
        survivors += survived
        if survived:
            seconds = f"{len(known)} tests, {time.perf_counter() - began:.0f} s"
            print(f"\n{number}: survives {seconds}\n{fault.diff()}", flush=True)
    print(f"\n{survivors} of {len(chosen)} faults survive")
    return survivors


if __name__ == "__main__":
    main()
