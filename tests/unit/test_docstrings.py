"""Docstrings explain parameters that a name and a type do not."""

import ast
import functools
import re
from pathlib import Path

from tasklab.book import sources

PACKAGE = Path(__file__).parents[2] / "tasklab"
BOOK = PACKAGE.parent / "book"


def functions(tree):
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node, ""
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    yield f"{node.name}.{item.name}", item, ast.get_docstring(node) or ""


def named():
    text = (BOOK / "reference" / "tasklab.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \| .", text, re.M)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


NAMED = named()


def unclear(node):
    both = [*node.args.posonlyargs, *node.args.args]
    pairs = [*zip(both[::-1], node.args.defaults[::-1], strict=False)]
    pairs += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    nothing = {a.arg for a, default in pairs if default and ast.unparse(default) == "None"}
    listed = [*both, *node.args.kwonlyargs]
    return nothing | {a.arg for a in listed if a.annotation and "Call" in ast.unparse(a.annotation)}


@functools.cache
def parsed(path):
    return ast.parse(path.read_text("utf-8"))


def undocumented(path):
    found = []
    for name, node, of_class in functions(parsed(path)):
        last = name.rpartition(".")[2]
        if last.startswith("_") and last != "__init__":
            continue
        if any(ast.unparse(d).endswith("overload") for d in node.decorator_list):
            continue
        text = of_class if last == "__init__" else ast.get_docstring(node) or ""
        _, _, args = text.partition("Args:")
        elsewhere = re.search(r"\bsee `\w+`", text)  # the protocol that a class keeps lists them
        if elsewhere or len([*node.args.args, *node.args.kwonlyargs]) < 3:
            continue
        line = r"^\s*(\w+, )*{}\b.*:"
        hidden = [n for n in unclear(node) - NAMED if f"`{n}`" not in text]
        if not all(re.search(line.format(re.escape(n)), args, re.M) for n in hidden):
            found.append(f"{path.relative_to(PACKAGE.parent)}:{node.lineno} {name}")
    return found


STOREYS = ("evidence", "cli")  # folders of rooms; the library's are beside them
ROOMS = {
    file.parent.name: ".".join(file.parent.relative_to(PACKAGE).parts)
    for file in (*PACKAGE.glob("*/__init__.py"), *PACKAGE.glob("*/*/__init__.py"))
    if file.parent.name != "evidence" and file.parent.parent.name in ("tasklab", *STOREYS)
}
MODULES = [p for p in sorted(PACKAGE.rglob("*.py")) if not p.name.startswith("_")]


def public():
    """Yield name and docstring of public functions and methods of three parameters or more."""
    paths = [p for p in PACKAGE.rglob("*.py") if not p.name.startswith("_")]
    for path in [*paths, *PACKAGE.rglob("__init__.py")]:
        for name, node, _ in functions(parsed(path)):
            args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            args += filter(None, [node.args.vararg, node.args.kwarg])
            taken = [arg for arg in args if arg.arg not in ("self", "cls")]
            overload = any("overload" in ast.unparse(one) for one in node.decorator_list)
            hidden = any(part.startswith("_") for part in name.split("."))
            if len(taken) > 2 and not hidden and not overload:
                yield f"{path.relative_to(PACKAGE)} {name}", ast.get_docstring(node) or ""


def test_public_functions_explain_their_arguments():
    found = dict(public())
    silent = [name for name, text in found.items() if not re.search(r"^Args:\n    \S", text, re.M)]
    assert len(found) > 500 and len(silent) <= 0.02 * len(found), silent


def test_names_are_explained_and_used():
    assert len(MODULES) > 200 and [one for path in MODULES for one in undocumented(path)] == []
    texts = " ".join(path.read_text("utf-8") for path in MODULES)
    assert len(NAMED) > 60 and NAMED <= {*re.findall(r"\b(\w+): ", texts)}
    paths = [*PACKAGE.rglob("*.py")]
    assert len(paths) > 300 and [line for path in paths for line in vague(path)] == []


def test_rooms_and_modules_have_pages():
    files = sources.pages(PACKAGE.parent)
    pages = {Path(file).name for file in files if file.startswith("reference/")}
    # What a room's page leaves to one of its own.
    parts = {"merging": "analyses.merging", "explore": "book.explore"}
    assert pages == {*ROOMS} - {"cli"} | {"tasklab", *parts}
    for name, part in parts.items():
        text = (BOOK / "reference" / f"{part.split('.')[0]}.md").read_text("utf-8")
        assert re.findall(r"^:without: tasklab\.(.+)$", text, re.M) == [part], name
    for name in pages:
        text = (BOOK / "reference" / f"{name}.md").read_text("utf-8")
        place = {**ROOMS, **parts, "tasklab": ""}[name]
        assert f"```{{room}} {f'tasklab.{place}'.rstrip('.')}" in text
        assert len(text.split("```{room}")[0].split()) > 20, name
    text = (BOOK / "architecture.md").read_text("utf-8")
    assert {room for room in ROOMS if f"`{room}`" not in text} == set()
    picture = re.sub(r"<[^>]*>", " ", text.split("<svg")[1].split("</svg>")[0])
    assert {*ROOMS} <= {*re.findall(r"\w+", picture)}
    text = (BOOK / "reference" / "tasklab.md").read_text("utf-8")
    there = {p.stem for p in PACKAGE.glob("[a-z]*.py")}
    assert set(re.findall(r"tasklab\.(\w+)", text.split("```{room}")[1])) == there


# First words that hide what a function does (an answer, a check, a file), and words to lean on.
VAGUE = re.compile(
    r"(?:Tell|Say|Let|Have|Give|Take|Make|Ask|Know|Look|Leave|Hold|Bring)s?\b"
    r"|Return (?:how|that|whether it|by how)\b"
    r"|.*\b(?:[Ww]hat|tells?|told|kept|[Tt]here|of which|[Nn]othing|[Nn]obody|whoever)\b"
)


def vague(path):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    nodes = [node for node in ast.walk(parsed(path)) if isinstance(node, kinds)]
    lines = [(ast.get_docstring(node) or "").split("\n")[0] for node in nodes]
    return [f"{path.relative_to(PACKAGE)}: {line}" for line in lines if VAGUE.match(line)]
