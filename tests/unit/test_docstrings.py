"""Docstrings explain every parameter, in sentences with a subject; rooms have pages."""

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
            yield node.name, node, ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for item in node.body:
                if isinstance(item, ast.FunctionDef):  # a class explains what `__init__` takes
                    own = node if item.name == "__init__" else item
                    yield f"{node.name}.{item.name}", item, ast.get_docstring(own) or ""


@functools.cache
def parsed(path):
    return ast.parse(path.read_text("utf-8"))


STOREYS = ("evidence", "cli")  # folders of rooms; the library's are beside them
ROOMS = {
    file.parent.name: ".".join(file.parent.relative_to(PACKAGE).parts)
    for file in (*PACKAGE.glob("*/__init__.py"), *PACKAGE.glob("*/*/__init__.py"))
    if file.parent.name != "evidence" and file.parent.parent.name in ("tasklab", *STOREYS)
}
FILES = sorted(PACKAGE.rglob("*.py"))


def public(path):
    """Yield name, parameters and docstring of public functions of three parameters or more."""
    for name, node, text in functions(parsed(path)):
        args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        args += filter(None, [node.args.vararg, node.args.kwarg])
        taken = [arg.arg for arg in args if arg.arg not in ("self", "cls")]
        overload = any("overload" in ast.unparse(one) for one in node.decorator_list)
        hidden = re.search(r"(?:^|\.)_(?!_init__$)", name)
        if len(taken) > 2 and not hidden and not overload:
            yield f"{path.relative_to(PACKAGE)} {name}", taken, text


def unexplained(taken, text):
    """Return parameters without a line in Args; a line may explain several, `x, y: ...`."""
    args = re.split(r"^(?:Returns|Yields|Raises):", text.partition("Args:\n")[2], flags=re.M)[0]
    lines = re.findall(r"^ {4}((?:\*{0,2}\w+, )*\*{0,2}\w+): *\S", args, re.M)
    return {*taken} - {name for line in lines for name in re.findall(r"\w+", line)}


def test_public_functions_explain_every_argument():
    found = [one for path in FILES for one in public(path)]
    silent = [(name, left) for name, *about in found if (left := unexplained(*about))]
    assert len(found) > 500 and len(silent) <= 0.02 * len(found), silent


def test_first_lines_name_their_subject():
    assert len(FILES) > 300 and [line for path in FILES for line in vague(path)] == []


def test_the_code_of_extend_it_does_as_well(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    page = (BOOK / "extend.md").read_text("utf-8")
    modules = re.findall(r"^```python\n# tasklab/\S+\.py\n(\"{3}.*?)```", page, re.M | re.S)
    for number, code in enumerate(modules):
        (tmp_path / f"{number}.py").write_text(code, "utf-8")
    assert len(modules) > 4
    assert [line for path in tmp_path.glob("*.py") for line in vague(path)] == []


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
