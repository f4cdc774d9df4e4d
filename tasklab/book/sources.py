"""Sources of the book: pages in its table of contents, and checksums that show changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasklab.errors import TasklabError
from tasklab.storage.code import code_of, modules

if TYPE_CHECKING:
    from nbformat import NotebookNode

_APART = ("__main__", "cli")  # that no chapter runs
_DATA = (".toml", ".html", ".csv", ".json", ".gz", ".xz", ".safetensors", ".txt", ".css", ".js")
_CODE = (".py", *_DATA)
_PAGES = (".ipynb", ".md", ".yml", ".bib", ".py", ".css", ".js", ".svg", ".cff", ".woff2")


def find_root(start: Path | None = None) -> Path:
    """Return the clone's top folder: the one above `start` (default: here), or the package's own.

    Raises:
        TasklabError: Neither holds the book's sources.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[2]):
        if (folder / "book" / "_toc.yml").is_file() and (folder / "notebooks").is_dir():
            return folder
    raise TasklabError(
        f"no book/_toc.yml at or above {here}: the report is built in a clone of the repository, "
        "an installed package alone has no chapters."
    )


def pages(root: Path) -> tuple[str, ...]:
    """Return the names in the table of contents, in its order, the landing page first."""
    import yaml

    def names(node: object) -> Iterator[str]:
        if isinstance(node, Mapping):
            found = (node[key] for key in ("root", "file") if key in node)
            yield from (str(name).removesuffix(".ipynb") for name in found)
            node = list(node.values())
        if isinstance(node, list):
            for item in node:
                yield from names(item)

    return tuple(names(yaml.safe_load((root / "_toc.yml").read_text("utf-8"))))


def chapters(root: Path) -> tuple[Path, ...]:
    """Return the notebooks in the table of contents, in its order."""
    notebooks = [root / f"{name}.ipynb" for name in pages(root) if name.startswith("notebooks/")]
    if missing := [str(path.relative_to(root)) for path in notebooks if not path.is_file()]:
        raise TasklabError(f"_toc.yml names chapters that do not exist: {', '.join(missing)}.")
    return tuple(notebooks)


def computed(root: Path) -> tuple[Path, ...]:
    """Return the pages of text in the table of contents that have code to execute, in its order."""
    from myst_nb.core.read import is_myst_markdown_notebook

    texts = (root / "book" / f"{name}.md" for name in pages(root))
    there = (path for path in texts if path.is_file())
    return tuple(one for one in there if is_myst_markdown_notebook(one.read_text("utf-8")))


def read_notebook(source: Path) -> NotebookNode:
    """Return a chapter, or a page of text with its code, as Jupyter Book reads it."""
    import nbformat
    from myst_nb.core.read import myst_nb_reader_plugin

    if source.suffix == ".md":
        return myst_nb_reader_plugin(str(source))
    return nbformat.read(source, as_version=4)


def fingerprint(root: Path | None = None) -> str:
    """Return a hash of the code and data that chapters run, or of all sources if `root` is given.

    By the first, stale outputs are recognised, whatever comments and docstrings say; by the second,
    a stale site.
    """
    package = Path(__file__).resolve().parents[1]
    files = [path for path in package.rglob("*") if path.suffix in _CODE]
    if root is None:
        data = [path for path in files if path.suffix != ".py"]
        return f"{code_of(modules(_APART), None)}-{checksum(data)}"
    folders = (root, root / "notebooks", root / "book", root / "book/_ext", root / "book/_static")
    files += [
        path
        for folder in folders
        for path in folder.glob("*")
        if path.suffix in _PAGES and path.is_file()
    ]
    files += measured()
    return checksum(files)


def measured() -> list[Path]:
    """Return the files of the benchmarks' results, which pages show; none beside a bare package."""
    return [*(Path(__file__).resolve().parents[2] / "benchmarks").glob("*.json")]


def checksum(files: Iterable[Path]) -> str:
    """Return a hash of files and their names."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.parent.name}/{path.name}".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
