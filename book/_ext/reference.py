"""Sphinx extension: the reference pages, from the docstrings, so that no list of modules can drift.

    ```{room} tasklab.analyses
    ```

gives every module of a sub-package a section with its docstring and its public members. Docstrings
are plain text with names in `backticks`; here they become reStructuredText.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

_LITERAL = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_CODE = re.compile(r"(``.+?``)")


def setup(app: Sphinx) -> dict[str, object]:
    """Connect to the build."""
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.napoleon")
    app.add_directive("room", Room)
    app.config.napoleon_use_ivar = True  # fields stand in the docstring of their class
    app.config.napoleon_numpy_docstring = False  # a second pass, which would take ": " away
    app.connect("autodoc-process-docstring", _as_rst, priority=400)  # napoleon's is 500
    app.connect("autodoc-process-signature", _short_types)
    app.connect("autodoc-skip-member", _skip)
    return {"version": "1", "parallel_read_safe": True}


class Room(SphinxDirective):
    """A section for every public module of a package, or for the modules that are named.

    The option `without` names a sub-package that has a page of its own.
    """

    required_arguments = 1
    optional_arguments = 99
    option_spec = {"without": str}  # noqa: RUF012 - as docutils has it

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        package, *chosen = self.arguments
        lines, without = [], self.options.get("without")
        for module in chosen or modules(package):
            if without and module.startswith(f"{without}."):
                continue
            lines += [f"## {module.removeprefix(package + '.')}", "", "```{eval-rst}"]
            lines += [f".. automodule:: {module}", "   :members:", "```", ""]
        parent = nodes.section()
        parent.document = self.state.document
        source = StringList(lines, source=self.env.doc2path(self.env.docname))
        self.state.nested_parse(source, self.content_offset, parent, match_titles=True)
        return parent.children


def modules(package: str) -> list[str]:
    """Return the public modules of a package and of its sub-packages."""
    there = importlib.import_module(package)
    names = []
    for found in pkgutil.iter_modules(there.__path__, f"{package}."):
        if not found.name.rpartition(".")[2].startswith("_"):
            names += modules(found.name) if found.ispkg else [found.name]
    return names


def _skip(
    app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object
) -> bool | None:
    """Leave out what the fields of named tuples say of themselves; comments `#:` on them stay."""
    if not str(getattr(obj, "__doc__", "")).startswith("Alias for field"):
        return None
    at = app.env.temp_data
    comments = ModuleAnalyzer.for_module(at["autodoc:module"]).find_attr_docs()
    return None if (at["autodoc:class"], name) in comments else True


def _short_types(
    app: Sphinx, what: str, name: str, obj: object, options: object, arguments: str, returns: str
) -> tuple[str, str]:
    """Leave the modules out of the names of types; those of this package lead to their own entry.

    `~` before a name hides its modules and keeps them in the link. Where Sphinx cannot read the
    arguments, as defaults that are objects, it would be shown, and no type is a link.
    """
    texts = [text for text in (arguments, returns) if text]
    try:
        ast.parse(f"def f{arguments or '()'} -> ({returns or None}): ...")
        own = r"(?!tasklab\.)"
    except SyntaxError:
        own = ""
    module = re.compile(rf"~{own}|(?<![\w.]){own}(?:[a-z_]\w*\.)+(?=[A-Z])")
    short = [module.sub("", text) for text in texts]
    return arguments and short.pop(0), returns and short.pop(0)


def _as_rst(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list) -> None:
    """Turn names in single backticks into literals, and let stars and bars be themselves."""
    verbatim = None  # indentation of the text above a block that is shown as it is
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if verbatim is not None and line.strip() and indent <= verbatim:
            verbatim = None
        if verbatim is None and line.strip() and not line.lstrip().startswith((">>>", "...")):
            lines[number] = line[:indent] + _prose(line[indent:])
            if line.rstrip().endswith("::"):
                verbatim = indent
    # A paragraph indented by four columns is code in these docstrings.
    _mark_code(lines)
    if what in ("attribute", "property") and lines:
        lines[0] = f": {lines[0]}"  # else napoleon takes what is before a colon for a type


def _prose(text: str) -> str:
    star = re.match(r"\*{1,2}\w+:", text)  # *args: of a section Args, which napoleon escapes
    start = star.end() if star else 0
    parts = _CODE.split(_LITERAL.sub(r"``\1``", text[start:]))
    for index in range(0, len(parts), 2):
        part = re.sub(r"(?<!\*)\*(?!\*)", r"\\*", parts[index])
        parts[index] = re.sub(r"(?<=\w)_(?!\w)", r"\\_", part.replace("|", r"\|"))
    return text[:start] + "".join(parts)


def _mark_code(lines: list[str]) -> None:
    """Put `::` before blocks that are indented without a heading above them."""
    heads = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Example|Examples|Note):$")
    section, number = False, 0
    while number < len(lines):
        line = lines[number]
        if line and not line.startswith(" "):
            section = bool(heads.match(line))
        starts = line.startswith("    ") and number and not lines[number - 1].strip()
        if starts and not section:
            lines[number:number] = ["::", ""]
            number += 2
            while number < len(lines) and (lines[number].startswith(" ") or not lines[number]):
                lines[number] = re.sub(r"``(.+?)``", r"`\1`", lines[number]).replace("\\", "")
                number += 1
            continue
        number += 1
